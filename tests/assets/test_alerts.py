"""Alerts: each kind arrives exactly once, whatever is down or killed in between, and none carries text of a document."""

import email
import email.policy
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import dagster as dg
import polars as pl
import pytest

from assets import alerts
from pipeline.alerts import Alert, late, message, to_table
from pipeline.errors import DeliveryError, LakeError, RecipeError
from pipeline.schemas import ALERT_DELIVERIES, ALERTS
from resources.mail import Mail
from resources.project import Project
from resources.webhook import Webhook
from tests.support.project import RELEASE, VIEW, edit, environment, make_project
from tests.support.receivers import MailServer, Receiver
from tests.support.sensors import Ticker

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
SECRET = "the gardener's unlisted telephone number"
WATCHERS = ("alerts_of_successful_runs", "alerts_of_failed_runs", "alert_reconciliation", "late_sources", "waiting_approvals")
DELIVER = """
import sys
from datetime import UTC, datetime
from assets import alerts
from resources.project import Project
from resources.webhook import Webhook
alerts.deliver(Project.at(sys.argv[1]), Webhook(sys.argv[2]), clock=lambda: datetime.now(UTC))
"""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.stop()


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test(temp_dir=str(tmp_path)) as made:
        yield made


def rows(project: Project) -> pl.DataFrame:
    return pl.DataFrame(project.lake.table(ALERTS)).sort("kind", "subject", "check")


def later(minutes: float) -> datetime:
    return datetime.now(UTC) + timedelta(minutes=minutes)


def some(project: Project, n: int) -> list[str]:
    """`n` alerts in the table, oldest first."""
    made = [Alert("failed_run", "ingest", f"run-{i}", f"{i} of {n}", NOW + timedelta(seconds=i)) for i in range(n)]
    for i, alert in enumerate(made):
        alerts.write_alerts(project, [alert], now=datetime.now(UTC) + timedelta(milliseconds=i))
    return [alert.alert_id for alert in made]


@dg.op
def quoting(_context: dg.OpExecutionContext) -> None:
    raise ValueError(f"cannot read {SECRET}")


@dg.job
def outsider() -> None:
    quoting()


def test_every_kind_arrives_exactly_once_through_a_receiver_that_is_down_first(
    candidate: Project, instance: dg.DagsterInstance, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RUNVIEW_WEBHOOK", receiver.url)
    caplog.set_level(logging.WARNING)
    root = Path(candidate.root)
    notes = root / "data" / "notes.jsonl"
    notes.write_text(
        "".join(json.dumps({"title": "A", "text": f"{SECRET} and some more words {i}"}) + "\n" for i in range(3))
    )  # no author and no id: nobody could ask to delete them
    edit(root / "sources" / "handbook.toml", 'licence = "MIT"', 'licence = "MIT"\nexpect_every_hours = 24')
    ticker = Ticker(candidate, instance)
    for name in WATCHERS:
        ticker.tick(name)  # as when the daemon starts, so that the status sensors have a "now"
    instance.add_dynamic_partitions("sources", ["notes", "sums"])
    red = ticker.run(dg.RunRequest(partition_key=dg.MultiPartitionKey({"source": "notes", "snapshot": "2026-11-01"})), "ingest")
    wrong_day = ticker.run(dg.RunRequest(partition_key=dg.MultiPartitionKey({"source": "sums", "snapshot": "2026-11-02"})), "ingest")
    foreign = outsider.execute_in_process(instance=instance, raise_on_error=False)
    assert not red.success and not wrong_day.success and not foreign.success

    # the late one: evidence of the handbook is a day old
    written = alerts.late_sources(candidate, {"handbook": 24, "sayings": 24}, {}, now=later(25 * 60))
    assert [(alert.subject, alert.occasion) for alert in written] == [("handbook", "2026-11-02"), ("sayings", "2026-11-01")]
    alerts.write_alerts(candidate, written[:1], now=datetime.now(UTC))
    for _ in range(2):
        for name in WATCHERS:
            ticker.tick(name)
    found = rows(candidate)
    assert found.select("kind", "subject", "check", "partition", "severity").rows() == [
        ("failed_run", "ingest", "", "2026-11-02|sums", "error"),
        ("failed_run", "outsider", "", "", "error"),
        ("late_source", "handbook", "", "", "error"),
        ("red_check", "evidence", "deletion_keys_missing", "2026-11-01|notes", "error"),
        ("waiting_approval", VIEW, "", "", "warn"),
    ], "a run that failed of its red check is told by the check alone"
    assert "pinned to snapshot 2026-11-01" in found["detail"][0]
    assert found["detail"][1].startswith("step quoting: ValueError (its message is withheld")
    assert found["run_id"].to_list()[:2] == [wrong_day.run_id, foreign.run_id]

    ticker.tick("alert_delivery")
    assert ticker.said is not None and "log: 5 taken" in ticker.said and "webhook: 0 taken, 1 failed, 5 waiting" in ticker.said
    receiver.start()
    done = alerts.deliver(candidate, Webhook(receiver.url), clock=lambda: later(1))
    assert (done.taken, done.failed, done.waiting) == (5, 0, 0)
    for _ in range(2):
        for name in WATCHERS:
            ticker.tick(name)
        ticker.tick("alert_delivery")
    assert receiver.kinds() == ["failed_run", "failed_run", "late_source", "red_check", "waiting_approval"]
    assert sorted(receiver.keys()) == sorted(found["alert_id"].to_list())
    said = [record.getMessage() for record in caplog.records if record.name == "runview.alerts"]
    assert sorted(json.loads(line)["alert_id"] for line in said) == sorted(receiver.keys())

    everything = json.dumps([body for _, body in receiver.posts]) + found.write_json() + " ".join(said)
    marks = pl.DataFrame(candidate.lake.table(ALERT_DELIVERIES))
    for part in (SECRET, "gardener", "hush", str(receiver.port)):
        assert part not in everything + marks.write_json() + caplog.text


def test_the_release_of_the_fixture_warns_once_and_waits_once(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    project = make_project(tmp_path / "project")
    ticker = Ticker(project, instance)
    instance.add_dynamic_partitions("sources", ["notes"])
    request = dg.RunRequest(
        partition_key=dg.MultiPartitionKey({"source": "notes", "snapshot": "2026-11-01"}),
        run_config={"ops": {"documents": {"config": {"recipe": RELEASE}}}},
    )
    ticker.tick("alerts_of_successful_runs")
    for _ in range(2):
        assert ticker.run(request, "ingest").success
        ticker.tick("alerts_of_successful_runs")
    (row,) = rows(project).to_dicts()
    assert (row["kind"], row["check"], row["severity"]) == ("red_check", "rejected_share", "warn"), "3 of 23, and the same version twice"
    assert "found 0.13" in row["detail"]


def test_a_tick_that_fails_loses_nothing(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    project = make_project(tmp_path / "project")
    ticker = Ticker(project, instance)
    ticker.tick("alerts_of_failed_runs")
    outsider.execute_in_process(instance=instance, raise_on_error=False)
    broken = Path(project.lake.root) / "control" / "alerts" / "part.parquet"  # files without a log: the table cannot be told
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"")
    ticker.tick("alerts_of_failed_runs")
    with pytest.raises(LakeError):
        ticker.tick("alert_reconciliation")
    broken.unlink()
    ticker.tick("alerts_of_failed_runs")
    assert rows(project).height == 0, "the status sensor has moved on: its alert would be lost"
    ticker.tick("alert_reconciliation")
    assert rows(project)["subject"].to_list() == ["outsider"]
    watermark = json.loads(ticker.cursors["alert_reconciliation"] or "")["watermark"]
    ticker.tick("alert_reconciliation")
    assert ticker.said is not None and ticker.said.startswith("0 runs read")
    assert abs(datetime.fromisoformat(watermark) - datetime.now(UTC)) < timedelta(minutes=10), "run times are read as UTC"


def test_runs_that_ended_before_the_first_tick_are_told(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    project = make_project(tmp_path / "project")
    outsider.execute_in_process(instance=instance, raise_on_error=False)
    ticker = Ticker(project, instance)
    for name in ("alerts_of_failed_runs", "alerts_of_failed_runs", "alert_reconciliation"):
        ticker.tick(name)
    assert rows(project).height == 1


@pytest.mark.parametrize("answered", [True, False], ids=["after the receiver took it", "before anybody answered"])
def test_a_killed_delivery_is_gone_on_with(tmp_path: Path, receiver: Receiver, answered: bool) -> None:
    project = make_project(tmp_path / "project")
    ids = some(project, 3)
    child: list[subprocess.Popen[bytes]] = []

    def kill(_key: str) -> int:
        if len(receiver.posts) == 2 and child[0].poll() is None:
            os.kill(child[0].pid, signal.SIGKILL)
            child[0].wait()
        return 200

    receiver.answer = kill
    receiver.start()
    command = [sys.executable, "-c", DELIVER, str(project.root), receiver.url]
    child.append(subprocess.Popen(command, env=environment(), cwd=Path(__file__).parents[2]))
    assert child[0].wait(60) == -signal.SIGKILL
    assert receiver.keys() == ids[:2], "killed in the middle of the second"
    taken = list(receiver.posts)
    if not answered:
        receiver.posts.pop()  # a receiver that died with the connection
    alerts.deliver(project, Webhook(receiver.url), clock=lambda: datetime.now(UTC))
    assert list(dict.fromkeys(receiver.keys())) == ids
    assert receiver.keys() == ([*ids[:2], *ids[1:]] if answered else ids), "told again under the same key, or once"
    again = [body for key, body in receiver.posts if key == ids[1]]
    assert all(body == taken[1][1] for body in again)
    assert alerts.deliver(project, Webhook(receiver.url), clock=lambda: later(100)).taken == 0


def test_a_refused_alert_holds_up_no_other_and_a_busy_receiver_is_left_alone(tmp_path: Path, receiver: Receiver) -> None:
    project = make_project(tmp_path / "project")
    ids = some(project, 3)
    receiver.start()
    receiver.answer = lambda key: 400 if key == ids[0] else 302 if key == ids[1] else 204
    done = alerts.deliver(project, Webhook(receiver.url), clock=lambda: datetime.now(UTC))
    assert (done.taken, done.failed, done.waiting) == (1, 2, 2)
    assert receiver.keys() == ids, "a redirect is not followed"
    marks = {row["alert_id"]: row for row in project.lake.table(ALERT_DELIVERIES).to_pylist()}
    assert [(marks[one]["state"], marks[one]["problem"]) for one in ids] == [
        ("refused", "the receiver answered 400"),
        ("refused", "the receiver answered 302"),
        ("delivered", ""),
    ]
    assert alerts.deliver(project, Webhook(receiver.url), clock=lambda: datetime.now(UTC)).failed == 0, "not again at once"
    receiver.answer = lambda _key: 503
    assert alerts.deliver(project, Webhook(receiver.url), clock=lambda: later(1)).failed == 1, "nobody is there for the other either"
    receiver.answer = lambda _key: 200
    assert alerts.deliver(project, Webhook(receiver.url), clock=lambda: later(10)).waiting == 0
    marks = {row["alert_id"]: row for row in project.lake.table(ALERT_DELIVERIES).to_pylist()}
    assert [marks[one]["attempts"] for one in ids] == [3, 2, 1]


def test_a_new_channel_begins_with_the_last_day_and_then_forgets_nothing(tmp_path: Path, receiver: Receiver) -> None:
    project = make_project(tmp_path / "project")
    old, recent = (Alert("failed_run", "ingest", name, "x", NOW) for name in ("old", "recent"))
    alerts.write_alerts(project, [old], now=NOW)
    alerts.write_alerts(project, [recent], now=NOW + timedelta(days=30))
    begun = NOW + timedelta(days=30, hours=1)
    assert alerts.deliver(project, Webhook(receiver.url), clock=lambda: begun).waiting == 1
    receiver.start()
    assert alerts.deliver(project, Webhook(receiver.url), clock=lambda: begun + timedelta(days=90)).taken == 1
    assert receiver.keys() == [recent.alert_id]


def test_a_wrong_address_stops_no_other_channel_and_is_not_shown(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make_project(tmp_path / "project")
    some(project, 1)
    server = MailServer()
    monkeypatch.setenv("RUNVIEW_WEBHOOK", "hooks.example.org/hush")
    monkeypatch.setenv("RUNVIEW_SMTP", f"smtp://127.0.0.1:{server.port}?from=a@example.org&to=b@example.org")
    ticker = Ticker(project, instance)
    ticker.tick("alert_delivery")
    server.stop()
    assert ticker.said is not None and "log: 1 taken" in ticker.said and "mail: 1 taken" in ticker.said
    assert "webhook: not delivered, RUNVIEW_WEBHOOK must be like" in ticker.said and "hush" not in ticker.said
    assert len(server.letters) == 1


def test_mail() -> None:
    server = MailServer()
    row = {**to_table([Alert("late_source", "web", "2026-11-01", "expected 24 hours", NOW)], now=NOW).to_pylist()[0]}
    sent = message(row)
    Mail(f"smtp://127.0.0.1:{server.port}?from=a@example.org&to=b@example.org&to=c@example.org").send(sent)
    letter = email.message_from_string(server.letters[0], policy=email.policy.default)
    assert letter["Message-ID"].strip() == f"<{sent['alert_id']}@runview>"
    assert (letter["Subject"], letter["To"]) == ("[runview] late_source: web", "b@example.org, c@example.org")
    assert "detail: expected 24 hours" in letter.get_content()
    for recipients in ("to=nobody@example.org", "to=b@example.org&to=nobody@example.org"):
        with pytest.raises(DeliveryError, match="refused 1") as refused:
            Mail(f"smtp://127.0.0.1:{server.port}?from=a@example.org&{recipients}").send(sent)
        assert not refused.value.down
    server.stop()
    with pytest.raises(DeliveryError, match="no answer") as gone:
        Mail(f"smtp://127.0.0.1:{server.port}?from=a@example.org&to=b@example.org").send(sent)
    assert gone.value.down


@pytest.mark.parametrize(
    "address",
    ["mail.example.org", "smtp://h?from=a", "smtp://u:hush@h?to=a@b&from=c@d", "smtp://h:port?from=a@b&to=c@d", "http://h?from=a@b&to=c@d"],
)
def test_mail_that_is_set_up_wrongly_is_refused_without_its_secret(address: str) -> None:
    with pytest.raises(RecipeError) as error:
        Mail(address)
    assert "hush" not in str(error.value) and "RUNVIEW_SMTP" in str(error.value)


def test_lateness() -> None:
    hour = timedelta(hours=1)
    newest = {
        "on-time": (date(2026, 11, 20), NOW - 24 * hour),
        "late": (date(2026, 11, 19), NOW - 25 * hour),
        "free": (date(2026, 1, 1), NOW),
    }
    expected = {"on-time": 24, "late": 24, "free": 0, "never": 24, "new": 24, "unseen": 24}
    seen = {"never": NOW - 30 * hour, "new": NOW - hour}
    made = late(expected, newest, seen, now=NOW)
    assert [(alert.subject, alert.occasion) for alert in made] == [("late", "2026-11-19"), ("never", "never")]
    assert [alert.happened_at for alert in made] == [NOW - hour, NOW - 6 * hour]
    tomorrow = late(expected, newest, seen, now=NOW + 5 * hour)
    assert {alert.alert_id for alert in made} < {alert.alert_id for alert in tomorrow}, "the same absence is the same alert"


def test_an_alert_is_told_apart_by_what_it_is_about() -> None:
    base = Alert("red_check", "evidence", "v1", "x", NOW, check="c", partition="p", run_id="r")
    assert base.alert_id == Alert("red_check", "evidence", "v1", "y", NOW + timedelta(1), check="c", partition="p").alert_id
    others = [
        Alert("failed_run", "evidence", "v1", "x", NOW, check="c", partition="p"),
        Alert("red_check", "documents", "v1", "x", NOW, check="c", partition="p"),
        Alert("red_check", "evidence", "v2", "x", NOW, check="c", partition="p"),
        Alert("red_check", "evidence", "v1", "x", NOW, check="d", partition="p"),
        Alert("red_check", "evidence", "v1", "x", NOW, check="c", partition="q"),
    ]
    assert len({alert.alert_id for alert in [base, *others]}) == 6
    assert base.alert_id == "f2fd26fd5f1ab9326e57b0fe4e9fd42cefff69848c87d1efbbf3e60484645b45"
    assert to_table([base, *others], now=NOW).num_rows == 6
    assert to_table([*others, base], now=NOW).equals(to_table([base, *others], now=NOW)), "the order of alerts changes nothing"
