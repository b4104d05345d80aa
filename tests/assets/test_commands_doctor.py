"""`runviewctl doctor`: a healthy lake passes, and each planted fault is named."""

import os
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from assets import runs, view_steps
from assets.runner import persistent_instance
from pipeline.schemas import EVIDENCE, GATES
from resources.project import Project
from tests.support.project import VIEW
from tests.support.terminal import Terminal

OLD = time.time() - 3 * 86400


def problems(terminal: Terminal, *arguments: str) -> dict[str, list[str]]:
    """Problems by check; exit 1 when there are any."""
    value = terminal.json("doctor", *arguments, code=1)
    assert value["ok"] is False
    out: dict[str, list[str]] = {}
    for row in value["problems"]:
        out.setdefault(row["check"], []).append(f"{row['where']}: {row['message']}")
    return out


def test_a_healthy_lake_passes_and_every_check_looked_at_something(terminal: Terminal) -> None:
    value = terminal.json("doctor")
    assert value["ok"] is True
    looked = {row["check"]: row["looked_at"] for row in value["checks"]}
    assert set(looked) == {"lake", "table files", "digests", "views", "registry", "partitions", "orphans", "stuck runs"}
    assert all(n > 0 for name, n in looked.items() if name not in ("stuck runs", "partitions"))
    assert "ok         views" in terminal.text("doctor")


def test_a_corrupt_shard_and_a_missing_one_are_named(terminal: Terminal, past: Project) -> None:
    row = view_steps.view_row(past, VIEW, "published")
    assert row is not None
    shards = sorted(Path(past.files.root, "shards").rglob("*.safetensors"))
    data = bytearray(shards[0].read_bytes())
    data[-1] ^= 1
    shards[0].write_bytes(bytes(data))
    found = problems(terminal)
    assert list(found) == ["views"]
    assert any(shards[0].stem in message for message in found["views"])
    shards[0].unlink()
    assert any(shards[0].stem in message for message in problems(terminal)["views"])


def test_a_deleted_parquet_file_is_named_also_by_the_quick_look(terminal: Terminal, past: Project) -> None:
    victim = next(Path(past.lake.root, EVIDENCE.path, "source=sums").glob("*.parquet"))
    victim.unlink()
    found = problems(terminal, "--quick")
    assert found["table files"] == [f"{EVIDENCE.path}/source=sums/{victim.name}: listed in the table's log and missing"]
    assert any("evidence" in message and "sums" in message for message in problems(terminal)["digests"])


def test_orphan_files_and_what_killed_writers_left_are_named_with_their_bytes(terminal: Terminal, past: Project) -> None:
    root = Path(past.files.root)
    orphan, young = root / "shards" / "ab" / f"{'ab' * 32}.safetensors", root / "packs" / "cd" / f"{'cd' * 32}.safetensors"
    blob, temporary = Path(past.lake.blobs_root) / "ef" / ("ef" * 32), root / "stats" / ".x.tmp"
    for path, n_bytes in ((orphan, 1000), (young, 10), (blob, 500), (temporary, 7)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * n_bytes)
        if path is not young:
            os.utime(path, (OLD, OLD))
    found = problems(terminal, "--quick")
    assert list(found) == ["orphans"]
    assert len(found["orphans"]) == 3
    assert any(orphan.name in line and "(1000 bytes)" in line for line in found["orphans"])
    assert any(blob.name in line and "(500 bytes)" in line for line in found["orphans"])
    value = terminal.json("gc", "--yes")
    assert (value["removed_files"], value["removed_bytes"]) == (3, 1507)
    assert not orphan.exists() and not blob.exists() and not temporary.exists()
    assert young.exists()


def test_records_that_contradict_each_other_are_named(terminal: Terminal, past: Project) -> None:
    gates = past.lake.table(GATES).slice(0, 1).to_pylist()
    row = {**gates[0], "version": "f" * 64, "judged_at": gates[0]["judged_at"].replace(year=2025)}
    past.lake.insert(GATES, pa.Table.from_pylist([row], schema=GATES.schema))
    published = view_steps.view_row(past, VIEW, "published")
    assert published is not None
    Path(past.files.view_place("views", published["view_id"])).unlink()
    release = Path(past.root) / "releases" / "gone.toml"
    persistent_instance(past).add_dynamic_partitions("releases", [release.stem])
    found = problems(terminal, "--quick")
    assert any(message.startswith(f"gates {'f' * 64}") for message in found["registry"])
    assert any("is published and its manifest is not there" in message for message in found["registry"])
    assert found["partitions"] == ["releases/gone: is a partition in Dagster and has no file in the project"]


def test_a_lake_of_another_format_is_said_and_nothing_else_is_tried(terminal: Terminal, past: Project) -> None:
    Path(past.lake.root, "lake.json").write_text('{"format":99,"schema":1}')
    found = problems(terminal)
    assert list(found) == ["lake"]
    assert "format 99 found" in found["lake"][0]


def started(instance: dg.DagsterInstance, tags: dict[str, str]) -> str:
    """A run that says it has begun, carried by the process its tags name."""

    @dg.op
    def nothing() -> None: ...

    @dg.job(name="ingest")
    def ingest() -> None:
        nothing()

    run = instance.create_run_for_job(ingest, tags=tags, status=dg.DagsterRunStatus.STARTED)
    return run.run_id


def test_a_run_whose_process_is_gone_is_found_and_marked(terminal: Terminal, past: Project) -> None:
    instance = persistent_instance(past)
    code = "from assets.runs import process_tag, PROCESS; print(process_tag()[PROCESS])"
    dead = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    mine, elsewhere = runs.process_tag(), {runs.PROCESS: "another-host:1:1"}
    again = {runs.PROCESS: ":".join([*mine[runs.PROCESS].split(":")[:2], "1"])}
    killed = started(instance, {runs.PROCESS: dead.stdout.strip(), "dagster/partition": "sums|2026-11-01"})
    reused = started(instance, again)
    alive = [started(instance, mine), started(instance, elsewhere)]

    found = problems(terminal, "--quick")
    assert sorted(message.split(":")[0] for message in found["stuck runs"]) == sorted([killed, reused])
    assert any("ingest sums|2026-11-01: its process" in message for message in found["stuck runs"])
    assert {row["run_id"] for row in terminal.json("status")["failures"]["stuck_runs"]} == {killed, reused}
    assert "Dagster runs are in progress" in terminal.refused("gc", "--yes")

    value = terminal.json("doctor", "--quick", "--fix")
    assert (value["ok"], sorted(value["fixed"])) == (True, sorted([killed, reused]))
    after = {run_id: instance.get_run_by_id(run_id).status for run_id in (killed, reused, *alive)}  # type: ignore[union-attr]
    assert [after[run_id] for run_id in (killed, reused)] == [dg.DagsterRunStatus.FAILURE] * 2
    assert [after[run_id] for run_id in alive] == [dg.DagsterRunStatus.STARTED] * 2


def test_a_run_that_never_showed_a_process_is_stuck_only_after_a_while(
    past: Project, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = persistent_instance(past)
    run_id = started(instance, {})
    assert runs.stuck(instance) == []
    monkeypatch.setattr(runs, "STARTING_SECONDS", -1)
    assert [run.run_id for run in runs.stuck(instance)] == [run_id]
