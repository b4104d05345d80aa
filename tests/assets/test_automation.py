"""What starts by itself: once, only when it is whole and green, and never unasked."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.schedule_definition import ScheduleExecutionData

from assets import automation, shard_steps, steps, view_steps
from assets.automation import judge_arrival, nightly
from assets.definitions import build_definitions
from pipeline.errors import RecipeError
from pipeline.recipe import COMPLETE_MARKER, parse_source
from pipeline.schemas import ALERTS
from resources.inbox import Arrival, arrivals
from resources.project import Project
from tests.support.project import RELEASE, TOKENIZER, VIEW, copy_project, edit, environment, make_project, views
from tests.support.sensors import Ticker

TODAY = datetime.now(UTC).date()
PAST = date(2026, 11, 3)
DATED = """\
name = "letters"
reader = "jsonl"
location = "../inbox"
dated = true
licence = "CC0-1.0"
consent_basis = "written for the tests"
fields = { id = "id", text = ["text"] }
"""


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test(temp_dir=str(tmp_path)) as made:
        yield made


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """The fixture with one more source, an inbox without folders."""
    made = make_project(tmp_path / "project")
    (tmp_path / "project" / "sources" / "letters.toml").write_text(DATED)
    (tmp_path / "project" / "inbox").mkdir()
    return made


def send(project: Project, day: date, *names: str, marked: bool = True) -> Path:
    """Files of a date arrive in the inbox."""
    folder = Path(project.root) / "inbox" / day.isoformat()
    folder.mkdir(exist_ok=True)
    for name in names:
        rows = [
            {"id": f"{name}-{i}", "text": f"Letter {i} of {name}: the ferry leaves at noon, and nobody is late for it."} for i in range(3)
        ]
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    if marked:
        (folder / COMPLETE_MARKER).touch()
    return folder


def keys(requests: list[dg.RunRequest]) -> list[str]:
    return sorted(str(request.partition_key) for request in requests)


# -- defaults -----------------------------------------------------------------------------------------------------------


def test_nothing_starts_a_run_unasked() -> None:
    definitions = build_definitions(Project.at(Path(__file__).parents[2]))
    running = {sensor.name for sensor in definitions.sensors or [] if sensor.default_status == dg.DefaultSensorStatus.RUNNING}  # type: ignore[union-attr]
    assert running == {
        "approvals", "alerts_of_successful_runs", "alerts_of_failed_runs", "alert_reconciliation", "late_sources", "waiting_approvals",
        "alert_delivery",
    }  # fmt: skip
    assert {sensor.name for sensor in automation.launching} - running == {"inbox", "releases", "automation_conditions"}
    assert nightly.default_status == dg.DefaultScheduleStatus.STOPPED


# -- nightly ------------------------------------------------------------------------------------------------------------


def night(project: Project, instance: dg.DagsterInstance, at: datetime) -> ScheduleExecutionData:
    definitions = build_definitions(project)
    context = dg.build_schedule_context(
        instance, scheduled_execution_time=at, repository_def=definitions.get_repository_def(), resources={"project": project}
    )
    return definitions.resolve_schedule_def("nightly").evaluate_tick(context)


def test_a_night_captures_every_source_that_has_no_date_of_its_own(project: Project, instance: dg.DagsterInstance) -> None:
    skipped = night(project, instance, datetime.now(UTC))
    assert not skipped.run_requests and skipped.skip_message == (
        "none of 5 sources is captured nightly: each is pinned to a snapshot or a dated inbox"
    )
    for name in ("notes", "sums"):
        path = Path(project.root) / "sources" / f"{name}.toml"
        edit(path, "snapshot = 2026-11-01\n", "")
    asked = night(project, instance, datetime.now(UTC)).run_requests or []
    assert keys(asked) == [f"{TODAY}|notes", f"{TODAY}|sums"]
    assert [request.run_key for request in asked] == [f"nightly/notes/{TODAY}", f"nightly/sums/{TODAY}"]
    assert asked[0].run_config == {"ops": {"documents": {"config": {"recipe": "small"}}}}, "the recipe of its releases"
    past = night(project, instance, datetime.now(UTC) - timedelta(days=1))
    assert not past.run_requests and "is over" in (past.skip_message or ""), "what it held yesterday cannot be captured today"


# -- inbox --------------------------------------------------------------------------------------------------------------


def test_an_inbox_is_declared_without_changing_what_a_source_is() -> None:
    plain = parse_source(DATED.replace("dated = true\n", ""), where="letters.toml")
    dated = parse_source(DATED + "expect_every_hours = 24\n", where="letters.toml")
    assert dated.identity() == plain.identity()
    assert (dated.at(PAST).location, dated.at(PAST).exclude) == ("../inbox/2026-11-03", (COMPLETE_MARKER,))
    assert plain.at(PAST) is plain
    with pytest.raises(RecipeError, match="dated = true needs"):
        parse_source(DATED + "snapshot = 2026-11-01\n", where="letters.toml")
    with pytest.raises(RecipeError, match="expect_every_hours must be 0"):
        parse_source(DATED + "expect_every_hours = -1\n", where="letters.toml")


def test_folders_are_told_apart(project: Project) -> None:
    folder = send(project, PAST, "a.jsonl", marked=False)
    for name in ("2026-11-3", "20261104", "notes"):
        (folder.parent / name).mkdir()
    (folder.parent / "2026-11-05").touch()
    source = project.source("letters")

    def look() -> Arrival:
        (one,) = arrivals(source, project.source_dir(), wanted=lambda _day: True)[0]
        return one

    first = look()
    assert (first.day, first.n_files, first.marked) == (PAST, 1, False)
    assert arrivals(source, project.source_dir(), wanted=lambda _day: False) == ([], ["2026-11-3", "20261104", "notes"])
    assert look() == first
    (folder / COMPLETE_MARKER).touch()
    assert look() == Arrival(PAST, first.listing, 1, True), "the marker is no content"
    send(project, PAST, "b.jsonl")
    assert look().listing != first.listing


def test_whole_is_what_the_sender_marks_or_what_stayed_the_same_for_long() -> None:
    start = datetime(2026, 11, 20, tzinfo=UTC)
    quiet = timedelta(seconds=automation.QUIET_SECONDS)
    seen = Arrival(PAST, "l1", 2, False)
    state, whole = judge_arrival(seen, None, done=False, now=start)
    assert (state, whole) == (["l1", start.isoformat(), False], False)
    state, whole = judge_arrival(seen, state, done=False, now=start + quiet / 2)
    assert not whole
    grown, whole = judge_arrival(Arrival(PAST, "l2", 3, False), state, done=False, now=start + quiet * 2)
    assert grown == ["l2", (start + quiet * 2).isoformat(), False] and not whole, "a change begins the wait again"
    assert judge_arrival(seen, state, done=False, now=start + quiet)[1]
    assert not judge_arrival(Arrival(PAST, "l1", 0, False), state, done=False, now=start + quiet)[1], "nothing is not whole"
    assert judge_arrival(Arrival(PAST, "l1", 2, True), None, done=False, now=start) == (["l1", start.isoformat(), False], True)
    assert judge_arrival(seen, None, done=True, now=start)[0][2], "what is complete already is only remembered"


def test_a_marked_folder_becomes_a_partition_a_run_and_documents(project: Project, instance: dg.DagsterInstance) -> None:
    ticker = Ticker(project, instance)
    send(project, PAST, "a.jsonl", marked=False)
    assert ticker.tick("inbox") == []
    send(project, PAST, "b.jsonl")
    send(project, TODAY + timedelta(days=1), "c.jsonl")
    (request,) = ticker.tick("inbox")
    assert "no partition" in "".join(ticker.said or "no partition"), "a date to come waits"
    assert keys([request]) == ["2026-11-03|letters"]
    assert instance.get_dynamic_partitions("sources") == ["letters"]
    assert ticker.run(request, "ingest").success
    (made,) = project.lake.snapshots(stage="documents")
    assert dict(made.partition) == {"source": "letters", "snapshot": "2026-11-03"}
    (evidence,) = project.lake.snapshots(stage="evidence")
    assert evidence.ledgers[0].total == 6 and evidence.ledgers[0].extra["containers"] == 2, "the marker is no evidence"
    assert ticker.tick("inbox") == []

    ticker.cursors.clear()
    ticker.used.clear()
    assert ticker.tick("inbox") == [], "Dagster's state is lost, the lake knows"


def test_files_that_arrive_late_make_a_new_version_beside_the_old(project: Project, instance: dg.DagsterInstance) -> None:
    ticker = Ticker(project, instance)
    send(project, TODAY, "a.jsonl")
    (first,) = ticker.tick("inbox")
    steps.collect_evidence(project, "letters", TODAY, run_id="test")
    assert ticker.tick("inbox") == []
    send(project, TODAY, "b.jsonl")
    (second,) = ticker.tick("inbox")
    steps.collect_evidence(project, "letters", TODAY, run_id="test")
    assert first.partition_key == second.partition_key and first.run_key != second.run_key
    assert ticker.tick("inbox") == []
    assert [made.ledgers[0].total for made in project.lake.snapshots(stage="evidence")] == [3, 6]


def test_an_inbox_that_cannot_be_listed_holds_up_no_other(project: Project, instance: dg.DagsterInstance) -> None:
    (Path(project.root) / "sources" / "gone.toml").write_text(DATED.replace("letters", "gone").replace("../inbox", "../nowhere"))
    (Path(project.root) / "sources" / "wrong.toml").write_text("name = 1")
    send(project, PAST, "a.jsonl")
    ticker = Ticker(project, instance)
    assert keys(ticker.tick("inbox")) == ["2026-11-03|letters"]
    assert ticker.tick("inbox") == []
    assert "gone: inbox '../nowhere' cannot be listed" in (ticker.said or "") and "wrong.toml" in (ticker.said or "")


# -- releases and approvals ---------------------------------------------------------------------------------------------


def test_a_release_file_is_brought_to_its_candidate_and_an_approval_to_its_view(
    ran: Path, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    """A second release of documents that are there; in between, a run is killed after it wrote and before it judged."""
    project = copy_project(ran, tmp_path / "copy")
    folder, name = tmp_path / "copy" / "releases", "again"
    text = (folder / f"{RELEASE}.toml").read_text().replace(f'name = "{RELEASE}"', f'name = "{name}"')
    (folder / f"{name}.toml").write_text(text.replace(VIEW, "again-view"))
    recipe = Path(project.root) / "recipes" / f"{RELEASE}.toml"
    ticker = Ticker(project, instance)

    (judge,) = ticker.tick("releases")
    assert (judge.job_name, judge.partition_key) == ("judge", name), "the other is proposed already"
    assert [member.source for member in steps.require_sealed(project, name)] == ["handbook", "notes", "sayings", "sums"]
    assert ticker.tick("releases") == [], "asked for once"
    assert ticker.run(judge).success
    (tokenize,) = ticker.tick("releases")
    release = project.release(name)
    shards = shard_steps.make_shards(project, release, project.recipe(release.recipe), TOKENIZER, run_id="killed").snapshot
    (again,) = ticker.tick("releases")
    assert (tokenize.run_key, again.run_key) == (f"tokenize/{shards.version}", f"tokenize/{shards.version}/judge")
    assert ticker.run(again).success
    (propose,) = ticker.tick("releases")
    assert (propose.job_name, propose.partition_key) == ("propose", "again-view")
    assert ticker.run(propose).success
    made = view_steps.current_candidate(project, "again-view")["view_id"]

    edit(recipe, 'seed = "5eed0001"', 'seed = "5eed0002"')
    assert ticker.tick("releases") == [], "a proposed release rests, whatever happens to its recipe"
    edit(recipe, 'seed = "5eed0002"', 'seed = "5eed0001"')

    assert ticker.tick("approvals") == []
    view_steps.sign_approval(project, "again-view", approver="demo-proposer", decision="approve", nonce="01")
    assert ticker.tick("approvals") == [] and "proposer" in (ticker.said or ""), "an approval that does not count starts nothing"
    view_steps.sign_approval(project, "again-view", approver="", decision="approve", nonce="02")
    (publish,) = ticker.tick("approvals")
    assert publish.partition_key == "again-view"
    assert ticker.tick("approvals") == []
    assert views(project) == []
    assert ticker.run(publish, "publish").success
    assert f"{made}.json" in views(project)
    ticker.used.clear()
    assert ticker.tick("approvals") == [], "published"


def test_a_release_waits_for_files_for_green_gates_and_for_runs_under_way(project: Project, instance: dg.DagsterInstance) -> None:
    root = Path(project.root)
    release = root / "releases" / f"{RELEASE}.toml"
    text = release.read_text()
    members = (
        f'members = [\n    {{ source = "notes", dates = [2026-11-01] }},\n    {{ source = "letters", dates = [{PAST}, 2027-01-01] }},\n]\n'
    )
    release.write_text(text[: text.index("members")] + members)
    (root / "releases" / "broken.toml").write_text("name = 1")
    notes = root / "data" / "notes.jsonl"
    good = notes.read_text()
    notes.write_text("".join(json.dumps({"title": "A title", "text": f"Some more words, number {i}"}) + "\n" for i in range(3)))
    ticker = Ticker(project, instance)
    (request,) = ticker.tick("releases")
    assert keys([request]) == ["2026-11-01|notes"], "the inbox has not arrived, the other date is to come"
    assert not ticker.run(request).success
    assert ticker.tick("releases") == [] and "broken.toml" in (ticker.said or "")
    assert project.lake.snapshots(stage="documents") == [], "its gate is red"

    notes.write_text(good)
    edit(release, f"[{PAST}, 2027-01-01]", f"[{PAST}]")
    assert ticker.run(dg.RunRequest(partition_key=request.partition_key, run_config=request.run_config), "ingest").success
    send(project, PAST, "a.jsonl")
    run = ticker.definitions.resolve_job_def("ingest")
    busy = instance.create_run_for_job(run, status=dg.DagsterRunStatus.STARTED, tags={"dagster/partition": f"{PAST}|letters"})
    assert ticker.tick("releases") == [], "somebody is at it"
    instance.delete_run(busy.run_id)
    (request,) = ticker.tick("releases")
    assert keys([request]) == [f"{PAST}|letters"]
    assert ticker.run(request).success
    assert steps.sealed_members(project, RELEASE) is None
    assert [request.job_name for request in ticker.tick("releases")] == ["judge"]
    assert [member.source for member in steps.require_sealed(project, RELEASE)] == ["letters", "notes"]


# -- conditions and freshness -------------------------------------------------------------------------------------------


def test_documents_follow_evidence_that_is_green(project: Project, instance: dg.DagsterInstance) -> None:
    definitions = build_definitions(project)
    ticker = Ticker(project, instance)
    instance.add_dynamic_partitions("sources", ["letters"])
    key = dg.MultiPartitionKey({"source": "letters", "snapshot": TODAY.isoformat()})
    asset = dg.AssetKey("documents")
    cursor = None

    def requested() -> set[str]:
        nonlocal cursor
        result = dg.evaluate_automation_conditions(defs=definitions, instance=instance, cursor=cursor)
        cursor = result.cursor
        assert {k for k in definitions.resolve_all_asset_keys() if result.get_requested_partitions(k)} <= {asset}
        return set(result.get_requested_partitions(asset))

    assert requested() == set()
    folder = send(project, TODAY, "a.jsonl")
    source = Path(project.root) / "sources" / "letters.toml"
    source.write_text(DATED + 'deletion_key_fields = ["author"]\n')
    (folder / "a.jsonl").write_text('{"text": "A letter that nobody signed."}\n')
    assert not ticker.run(dg.RunRequest(partition_key=key), "collect").success
    assert requested() == set(), "its gate is red"
    source.write_text(DATED)
    assert ticker.run(dg.RunRequest(partition_key=key), "collect").success
    assert requested() == {str(key)}
    assert ticker.run(dg.RunRequest(partition_key=key), "clean").success
    assert requested() == set()
    send(project, TODAY, "b.jsonl")
    assert ticker.run(dg.RunRequest(partition_key=key), "ingest").success
    assert requested() == set(), "made in the same run"


def test_freshness_is_what_a_source_declares(project: Project) -> None:
    def policy() -> object:
        return build_definitions(project).resolve_assets_def("evidence").specs_by_key[dg.AssetKey("evidence")].freshness_policy

    assert policy() is None, "nothing is expected of what is pinned"
    for name, hours in (("sums", 48), ("notes", 30)):
        path = Path(project.root) / "sources" / f"{name}.toml"
        path.write_text(path.read_text() + f"expect_every_hours = {hours}\n")
    assert policy() == dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=30))


# -- the daemon ---------------------------------------------------------------------------------------------------------


def wait(what: str, done: Callable[[], object], seconds: float = 150) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.2)


class Daemon:
    """Dagster's daemon with its code server on a project, in a process group of its own."""

    def __init__(self, root: str) -> None:
        extra = {"DAGSTER_HOME": root, "RUNVIEW_PROJECT": root, "RUNVIEW_AUTOMATION": "on", "RUNVIEW_SENSOR_SECONDS": "2"}
        command = [sys.executable, "-m", "dagster._daemon", "run", "-m", "assets.definitions"]
        with open(f"{root}/daemon.log", "ab") as log:
            self.process = subprocess.Popen(command, env=environment(extra), cwd=root, stdout=log, stderr=log, start_new_session=True)

    def kill(self) -> None:
        """SIGKILL to the whole group, which this test started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def worker(instance: dg.DagsterInstance, partition: str) -> int:
    """Process that runs a step of a partition now, 0 when none does."""
    for run in instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED], tags={"dagster/partition": partition})):
        for entry in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT):
            if found := re.search(r"Executing steps in process \(pid: (\d+)\)", entry.user_message):
                return int(found.group(1))
    return 0


@pytest.mark.slow
def test_the_daemon_ingests_a_folder_and_goes_on_after_itself_and_a_step_were_killed(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder appears: partition, run, documents. The daemon is killed while the next one arrives, then the run of that one."""
    (Path(project.root) / "releases" / f"{RELEASE}.toml").unlink()
    monkeypatch.chdir(project.root)  # dagster.yaml names its folders relative to where it lies
    days = [PAST, PAST + timedelta(days=1)]

    def complete(n: int) -> bool:
        return len(project.lake.snapshots(stage="documents")) == n

    with dg.DagsterInstance.from_config(project.root) as instance:  # made here, before several processes use it at once
        daemon = Daemon(project.root)
        try:
            send(project, days[0], "a.jsonl")
            wait("documents of the first folder", lambda: complete(1))
            assert instance.get_dynamic_partitions("sources") == ["letters"]
            wait("its run's end", lambda: instance.get_runs_count(dg.RunsFilter(statuses=[dg.DagsterRunStatus.SUCCESS])))
            daemon.kill()
            send(project, days[1], "b.jsonl")
            daemon = Daemon(project.root)
            wait("a run of the second folder", lambda: worker(instance, f"{days[1]}|letters"))
            os.kill(worker(instance, f"{days[1]}|letters"), signal.SIGKILL)
            wait("documents of the second folder", lambda: complete(2))
            done = dg.RunsFilter(statuses=[dg.DagsterRunStatus.SUCCESS])
            wait("the end of all runs", lambda: instance.get_runs_count(done) == 2)
            wait("the alert", lambda: project.lake.table(ALERTS).num_rows)
        finally:
            daemon.kill()
        ended = sorted((run.tags["dagster/partition"], run.status.value) for run in instance.get_runs())
    assert ended == [(f"{days[0]}|letters", "SUCCESS"), (f"{days[1]}|letters", "FAILURE"), (f"{days[1]}|letters", "SUCCESS")]
    (alert,) = project.lake.table(ALERTS).to_pylist()
    assert (alert["kind"], alert["partition"], alert["severity"]) == ("failed_run", f"{days[1]}|letters", "warn")
