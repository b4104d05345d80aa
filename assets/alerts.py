"""Alerts: found in runs and in the lake, written to `control/alerts` first, and only then delivered from there."""

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Protocol

import dagster as dg
import orjson
import polars as pl
import pyarrow as pa

from assets.gates import read_gate
from pipeline import errors
from pipeline.alerts import Alert, late, message, to_table
from pipeline.contracts import expected_checks, gate_problems
from pipeline.errors import DeliveryError, PipelineError
from pipeline.schemas import ALERT_DELIVERIES, ALERTS, RUN_VIEWS, SNAPSHOTS
from resources.lake.home import held
from resources.mail import Mail
from resources.project import Project
from resources.webhook import Webhook

logger = logging.getLogger(__name__)
DELIVERY_LOCK = "alert-delivery"  # one deliverer on a machine, so that none is sent twice at once
FIRST_BACKOFF, DOWN_BACKOFF, REFUSED_BACKOFF = timedelta(seconds=30), timedelta(minutes=5), timedelta(hours=1)
BACKLOG = timedelta(hours=24)  # a channel that is new begins with the alerts of a day, not with those of years
OPENED = "channel-opened"  # row of `alert_deliveries` that says since when a channel is there
MAX_DETAIL = 500
# what these say is ids and counts (pipeline/errors.py); of any other exception only the class is told, since libraries quote rows
OUR_ERRORS = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, PipelineError)}


class Channel(Protocol):
    """One way to a person. `send` is back only when the alert was taken, and raises DeliveryError otherwise."""

    name: str

    def send(self, message: Mapping[str, str]) -> None: ...


class LogChannel:
    """Always there: one warning per alert, as JSON."""

    name = "log"

    def send(self, message: Mapping[str, str]) -> None:
        logging.getLogger("runview.alerts").warning(orjson.dumps(dict(message)).decode())


def channels() -> dict[str, Callable[[], Channel]]:
    """How to open the channels that the environment names, the log first. Opening raises RecipeError when a value is wrong."""
    out: dict[str, Callable[[], Channel]] = {"log": LogChannel}
    webhook, smtp = os.environ.get("RUNVIEW_WEBHOOK", ""), os.environ.get("RUNVIEW_SMTP", "")
    if webhook:
        out["webhook"] = lambda: Webhook(webhook)
    if smtp:
        out["mail"] = lambda: Mail(smtp)
    return out


# -- finding ------------------------------------------------------------------------------------------------------------


def alerts_of_run(instance: dg.DagsterInstance, run: dg.DagsterRun) -> list[Alert]:
    """Red checks of a finished run, and its failure unless red checks are all of it. The same run always gives the same alerts."""
    kinds = {
        dg.DagsterEventType.ASSET_CHECK_EVALUATION,
        dg.DagsterEventType.STEP_FAILURE,
        dg.DagsterEventType.RUN_FAILURE,
    }
    out: list[Alert] = []
    causes: list[tuple[str, Any]] = []
    ended = datetime.fromtimestamp(0, UTC)
    for entry in instance.all_logs(run.run_id, of_type=kinds):
        event = entry.dagster_event
        assert event is not None  # for the type checker: of_type selects them
        when = datetime.fromtimestamp(entry.timestamp, UTC)
        ended = max(ended, when)
        if event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            found = event.asset_check_evaluation_data
            if not found.passed:
                out.append(_red_check(found, run.run_id, when))
        elif event.event_type == dg.DagsterEventType.STEP_FAILURE:
            causes.append((event.step_key or "", event.step_failure_data.error))
    if run.status == dg.DagsterRunStatus.FAILURE:
        unexplained = [(step, error) for step, error in causes if not _is_red_check(error)]
        if unexplained or not out:
            out.append(_failed_run(run, unexplained, ended))
    return out


def _red_check(found: Any, run_id: str, when: datetime) -> Alert:
    facts = {name: value.value for name, value in found.metadata.items() if name in ("version", "observed", "minimum", "maximum")}
    bounds = f"expected {facts.get('minimum', 'open')} to {facts.get('maximum', 'open')}, found {facts.get('observed', 'nothing')}"
    return Alert(
        "red_check",
        found.asset_key.to_user_string(),
        str(facts.get("version", run_id)),
        f"{bounds}; consumers refuse this version while an error stands, see the check in the UI for up to 20 ids",
        when,
        check=found.check_name,
        partition=str(found.partition or ""),
        severity="error" if found.severity == dg.AssetCheckSeverity.ERROR else "warn",
        run_id=run_id,
    )


def _is_red_check(error: Any) -> bool:
    while error is not None:
        if error.cls_name == "DagsterAssetCheckFailedError":
            return True
        error = error.cause
    return False


def _failed_run(run: dg.DagsterRun, causes: Sequence[tuple[str, Any]], when: datetime) -> Alert:
    again = run.tags.get("dagster/will_retry") == "true"
    said = "; ".join(f"step {step}: {_cause(error)}" for step, error in causes) or "no step failed: its process ended or never began"
    return Alert(
        "failed_run",
        run.job_name,
        run.run_id,
        f"{said[:MAX_DETAIL]}; {'it is started again by itself' if again else 'read its log, then re-execute it in the UI'}",
        when,
        partition=run.tags.get("dagster/partition", ""),
        severity="warn" if again else "error",
        run_id=run.run_id,
    )


def _cause(error: Any) -> str:
    """The first cause: with its words when they are ours, else its class alone."""
    while error is not None and error.cause is not None:
        error = error.cause
    if error is None:
        return "unknown"
    name = str(error.cls_name).rpartition(".")[2]
    return " ".join(str(error.message).split()) if name in OUR_ERRORS else f"{name} (its message is withheld, since it may quote rows)"


def late_sources(project: Project, expected: Mapping[str, int], first_seen: Mapping[str, datetime], *, now: datetime) -> list[Alert]:
    """Alerts for sources whose next snapshot is overdue. A date that is captured again is no arrival, nor is an older date."""
    table = project.lake.table(SNAPSHOTS, columns=["partition", "created_at"], where={"stage": "evidence"})
    rows = pl.DataFrame(table).group_by("partition").agg(pl.col("created_at").min())
    newest: dict[str, tuple[date, datetime]] = {}
    for partition, created_at in rows.iter_rows():
        place = orjson.loads(partition)
        day = date.fromisoformat(place["snapshot"])
        if place["source"] not in newest or day > newest[place["source"]][0]:
            newest[place["source"]] = (day, created_at)
    return late(expected, newest, first_seen, now=now)


def waiting_approvals(project: Project) -> list[Alert]:
    """One alert for the newest candidate of each view that is green and not published."""
    rows = project.lake.table(RUN_VIEWS).to_pylist()
    done = {row["view_id"] for row in rows if row["status"] != "candidate"}
    newest: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: (row["created_at"], row["view_id"])):
        if row["status"] == "candidate":
            newest[row["name"]] = row
    out = []
    for name, row in sorted(newest.items()):
        if row["view_id"] in done or gate_problems(expected_checks("candidate"), read_gate(project, row["version"])):
            continue
        words = f"proposed by {row['proposer']} from release {row['release']}; decide with `runviewctl approve {name}`"
        out.append(Alert("waiting_approval", name, row["view_id"], words, row["created_at"], severity="warn"))
    return out


# -- keeping ------------------------------------------------------------------------------------------------------------


def write_alerts(project: Project, alerts: Iterable[Alert], *, now: datetime) -> int:
    """Keep alerts that are not there yet; what is there stays as it was first said. Returns how many are new."""
    made = to_table(alerts, now=now)
    if not len(made):
        return 0
    there = set(project.lake.table(ALERTS, columns=["alert_id"])["alert_id"].to_pylist())
    return project.lake.insert(ALERTS, made.filter(pa.array([alert_id not in there for alert_id in made["alert_id"].to_pylist()])))


# -- delivering ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Delivered:
    """What one pass over a channel did: alerts taken, attempts that failed, alerts still waiting."""

    taken: int
    failed: int
    waiting: int


def deliver(project: Project, channel: Channel, *, clock: Callable[[], datetime], budget_seconds: float = 20.0) -> Delivered:
    """Send what a channel has not taken yet, oldest first, until all is tried, nobody answers, or the budget is used.

    At least once: an alert is marked after the receiver took it, so a process killed between the two sends it again, under the
    same key. An alert is never given up; one that is refused waits longer and does not hold up the others.
    """
    with held(str(project.state_root), DELIVERY_LOCK):
        stop = time.monotonic() + budget_seconds
        waiting = _undelivered(project, channel.name, clock())
        taken = failed = 0
        for row, before in waiting:
            now = clock()
            if time.monotonic() >= stop:
                break
            if before and now < before["tried_at"] + _backoff(before):
                continue
            state, problem, down = "delivered", "", False
            try:
                channel.send(message(row))
            except DeliveryError as error:
                state, problem, down = "waiting" if error.down else "refused", str(error), error.down
            attempts = before["attempts"] + 1 if before else 1
            _mark(project, row["alert_id"], channel.name, state=state, attempts=attempts, problem=problem, now=clock())
            taken, failed = taken + (state == "delivered"), failed + (state != "delivered")
            if state != "delivered":
                logger.warning("alert %s on channel %s, attempt %d: %s", row["alert_id"], channel.name, attempts, problem)
            if down:
                break
        return Delivered(taken, failed, len(waiting) - taken)


def _undelivered(project: Project, channel: str, now: datetime) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Alerts the channel has not taken, oldest first, each with its row of deliveries. A new channel is opened here."""
    alerts = project.lake.table(ALERTS).to_pylist()
    if not alerts:
        return []
    marks = {row["alert_id"]: row for row in project.lake.table(ALERT_DELIVERIES, where={"channel": channel}).to_pylist()}
    if OPENED not in marks:
        _mark(project, OPENED, channel, state="delivered", attempts=0, problem="", now=now)
    since = (marks[OPENED]["tried_at"] if OPENED in marks else now) - BACKLOG
    open_ones = [row for row in alerts if row["created_at"] >= since and marks.get(row["alert_id"], {}).get("state") != "delivered"]
    return [(row, marks.get(row["alert_id"])) for row in sorted(open_ones, key=lambda row: (row["created_at"], row["alert_id"]))]


def _backoff(before: Mapping[str, Any]) -> timedelta:
    longest = DOWN_BACKOFF if before["state"] == "waiting" else REFUSED_BACKOFF
    return min(FIRST_BACKOFF * 2 ** min(before["attempts"] - 1, 10), longest)


def _mark(project: Project, alert_id: str, channel: str, *, state: str, attempts: int, problem: str, now: datetime) -> None:
    row = {
        "alert_id": alert_id,
        "channel": channel,
        "state": state,
        "attempts": attempts,
        "problem": problem,
        "tried_at": now,
        "delivered_at": now if state == "delivered" else None,
    }
    project.lake.insert(ALERT_DELIVERIES, pa.Table.from_pylist([row], schema=ALERT_DELIVERIES.schema), update=True)
