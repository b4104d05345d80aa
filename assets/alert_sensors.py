"""Sensors that watch and tell. They start no run, so they run from the beginning.

The two run-status sensors are the fast way. Dagster moves their cursor on when their body fails, and starts it at "now", so
`alert_reconciliation` goes through the runs table behind them from a watermark of its own, which only moves over what is written.
"""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg

from assets import alerts
from assets.automation import read_sources
from pipeline.errors import PipelineError
from resources.project import Project

OVERLAP = timedelta(minutes=2)  # a run's time is set before its row can be read
FIRST_LOOK = timedelta(hours=24)  # how far back the first tick of all goes
BUDGET = timedelta(seconds=30)  # a tick is cut off at 60 s
RUNNING = dg.DefaultSensorStatus.RUNNING


def _tell(context: dg.RunStatusSensorContext, project: Project) -> None:
    # nothing is returned: Dagster would end the tick after this run
    alerts.write_alerts(project, alerts.alerts_of_run(context.instance, context.dagster_run), now=datetime.now(UTC))


@dg.run_status_sensor(
    run_status=dg.DagsterRunStatus.SUCCESS,
    name="alerts_of_successful_runs",
    monitor_all_code_locations=True,
    default_status=RUNNING,
    description="Red checks of runs that succeeded: a check that only warns fails no run.",
)
def alerts_of_successful_runs(context: dg.RunStatusSensorContext, project: dg.ResourceParam[Project]) -> None:
    _tell(context, project)


@dg.run_status_sensor(
    run_status=dg.DagsterRunStatus.FAILURE,
    name="alerts_of_failed_runs",
    monitor_all_code_locations=True,
    default_status=RUNNING,
    description="Red checks of runs that failed, and their failures.",
)
def alerts_of_failed_runs(context: dg.RunStatusSensorContext, project: dg.ResourceParam[Project]) -> None:
    _tell(context, project)


@dg.sensor(
    name="alert_reconciliation",
    minimum_interval_seconds=60,
    default_status=RUNNING,
    description="Goes through ended runs from a stored watermark, so that no alert is lost with a failed tick or a stopped daemon.",
)
def alert_reconciliation(context: dg.SensorEvaluationContext, project: dg.ResourceParam[Project]) -> dg.SensorResult:
    start = datetime.now(UTC)
    seen: dict[str, Any] = json.loads(context.cursor) if context.cursor else {}
    watermark = datetime.fromisoformat(seen["watermark"]) if seen else start - FIRST_LOOK
    known: dict[str, str] = seen.get("runs", {})
    ended = dg.RunsFilter(statuses=[dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE], updated_after=watermark - OVERLAP)
    records = context.instance.get_run_records(ended, order_by="update_timestamp", ascending=True)
    n_new = n_runs = 0
    for record in records:
        run, at = record.dagster_run, record.update_timestamp.astimezone(UTC)
        if known.get(run.run_id) == at.isoformat():
            continue
        if datetime.now(UTC) - start > BUDGET:
            break
        n_new += alerts.write_alerts(project, alerts.alerts_of_run(context.instance, run), now=datetime.now(UTC))
        n_runs += 1
        watermark = max(watermark, at)
        known[run.run_id] = at.isoformat()
    if not seen and not records:
        watermark = start
    kept = {run_id: at for run_id, at in known.items() if datetime.fromisoformat(at) > watermark - OVERLAP}
    cursor = json.dumps({"watermark": watermark.isoformat(), "runs": kept})
    return dg.SensorResult(skip_reason=dg.SkipReason(f"{n_runs} runs read, {n_new} alerts written that were missing"), cursor=cursor)


@dg.sensor(
    name="late_sources",
    minimum_interval_seconds=300,
    default_status=RUNNING,
    description="Compares the newest snapshot of every source that declares `expect_every_hours` with that time.",
)
def late_sources(context: dg.SensorEvaluationContext, project: dg.ResourceParam[Project]) -> dg.SensorResult:
    now = datetime.now(UTC)
    found, problems = read_sources(project)
    for problem in problems:
        context.log.warning(problem)
    expected = {source.name: source.expect_every_hours for source in found.values() if source.expect_every_hours}
    before = json.loads(context.cursor) if context.cursor else {}
    first_seen = {name: before.get(name, now.isoformat()) for name in expected}
    late = alerts.late_sources(project, expected, {name: datetime.fromisoformat(at) for name, at in first_seen.items()}, now=now)
    n_new = alerts.write_alerts(project, late, now=now)
    reason = f"{len(late)} of {len(expected)} sources with an expectation are late, {n_new} alerts are new"
    return dg.SensorResult(skip_reason=dg.SkipReason(reason), cursor=json.dumps(first_seen))


@dg.sensor(
    name="waiting_approvals",
    minimum_interval_seconds=60,
    default_status=RUNNING,
    description="Tells once of every green candidate that waits for a person.",
)
def waiting_approvals(project: dg.ResourceParam[Project]) -> dg.SkipReason:
    waiting = alerts.waiting_approvals(project)
    n_new = alerts.write_alerts(project, waiting, now=datetime.now(UTC))
    return dg.SkipReason(f"{len(waiting)} candidates wait for approval, {n_new} alerts are new")


@dg.sensor(
    name="alert_delivery",
    minimum_interval_seconds=30,
    default_status=RUNNING,
    description="Sends from control/alerts what a channel has not taken yet: log always, RUNVIEW_WEBHOOK, RUNVIEW_SMTP.",
)
def alert_delivery(context: dg.SensorEvaluationContext, project: dg.ResourceParam[Project]) -> dg.SkipReason:
    said = []
    for name, open_channel in alerts.channels().items():
        try:
            done = alerts.deliver(project, open_channel(), clock=lambda: datetime.now(UTC), budget_seconds=12.0)
        except PipelineError as error:  # one channel that is set up wrongly holds up no other
            context.log.error(f"channel {name}: {error}")
            said.append(f"{name}: not delivered, {error}")
            continue
        said.append(f"{name}: {done.taken} taken, {done.failed} failed, {done.waiting} waiting")
    return dg.SkipReason("; ".join(said))


alert_sensors = [alerts_of_successful_runs, alerts_of_failed_runs, alert_reconciliation, late_sources, waiting_approvals, alert_delivery]
