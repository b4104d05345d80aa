"""The process pool: order, bounds, and what becomes of workers that fail or are killed."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from assets import steps
from pipeline.cleaned_docs import documents
from pipeline.errors import RecipeError
from pipeline.ids import content_digest
from pipeline.schemas import DOCUMENT_REJECTS, DOCUMENTS, EVIDENCE
from resources import workers
from resources.project import Project
from resources.workers import ITEMS_PER_WORKER, WorkerError, mapped, usable_cores, worker_count
from tests.support.project import RELEASE, make_project
from tests.support.work import die, double, fail, leave

NOTES = ("notes", steps.date(2026, 11, 1))


def children() -> list[int]:
    """Living children of this process that are workers."""
    found = []
    for task in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        for pid in task.read_text().split():
            if b"resources.workers" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
    return found


def test_results_come_in_the_order_of_the_items_and_few_items_are_taken_ahead() -> None:
    taken, handed = 0, 0

    def items() -> Iterator[pa.RecordBatch]:
        nonlocal taken
        whole = pa.record_batch({"n": pa.array(range(100))})
        for n in range(12):
            taken += 1
            assert taken - handed <= 2 * ITEMS_PER_WORKER + 1
            yield whole.slice(n, 1)

    results = mapped(double, items(), n_workers=2, what="doubling")
    for n, table in enumerate(results):
        handed += 1
        assert table["n"].to_pylist() == [2 * n]
        assert table["threads"].to_pylist() == ["1"], "libraries must not start a thread per core in every worker"
    assert (taken, handed) == (12, 12)
    assert children() == []


def test_slices_are_sent_as_slices() -> None:
    whole = pa.record_batch({"n": pa.array(range(1_000_000))})
    assert len(workers._dump(whole.slice(10, 1))) < 2000
    assert len(workers._dump(pa.table({"n": whole["n"]}).slice(10, 1))) < 2000


@pytest.mark.parametrize("n_workers", [2, 4])
def test_a_killed_worker_is_an_error_that_names_the_work(n_workers: int) -> None:
    with pytest.raises(WorkerError, match=r"of x: worker \d of \d was killed by SIGKILL while it worked on item 3 .*run the same"):
        list(mapped(die, range(10), n_workers=n_workers, what="documents of x"))
    assert children() == []


def test_errors_pass_and_what_cannot_be_sent_is_named() -> None:
    with pytest.raises(ValueError, match="comma is refused") as caught:
        list(mapped(fail, ["comma"], n_workers=2, what="x"))
    assert "in a worker process" in caught.value.__notes__[0] and "work.py" in caught.value.__notes__[0]
    with pytest.raises(WorkerError, match="Odd in a worker"):
        list(mapped(fail, ["odd"], n_workers=2, what="x"))
    with pytest.raises(WorkerError, match="ended with status 7"):
        list(mapped(leave, [1], n_workers=2, what="x"))
    assert children() == []


def test_a_consumer_that_stops_ends_the_workers() -> None:
    batches = [pa.record_batch({"n": [n]}) for n in range(20)]
    results = mapped(double, batches, n_workers=2, what="x")
    next(results)
    assert len(children()) == 2
    results.close()  # type: ignore[attr-defined]
    assert children() == []


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    program = (
        "import os, sys, time\nfrom resources.workers import mapped\nfrom tests.support.work import die\n"
        "def slow():\n    yield 1\n    yield 2\n    time.sleep(60)\n"
        "for one in mapped(die, slow(), n_workers=2, what='x'):\n    pass\n"
    )
    import subprocess
    import sys

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    parent = subprocess.Popen([sys.executable, "-c", program], env=environment)
    try:
        deadline = time.monotonic() + 60
        found: list[str] = []
        while len(found) < 2 and time.monotonic() < deadline:
            found = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
            time.sleep(0.05)
    finally:
        parent.kill()
        parent.wait()
    assert len(found) == 2
    while any(Path(f"/proc/{pid}").exists() for pid in found) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in found)


def test_how_many(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RUNVIEW_WORKERS", raising=False)
    assert worker_count(workers.PARALLEL_BYTES - 1) == 1
    assert worker_count(2**40) == usable_cores() == len(os.sched_getaffinity(0))
    monkeypatch.setenv("RUNVIEW_WORKERS", "3")
    assert (worker_count(workers.PARALLEL_BYTES), worker_count(0)) == (3, 1)
    for text in ("0", "-1", "two"):
        monkeypatch.setenv("RUNVIEW_WORKERS", text)
        with pytest.raises(RecipeError, match="RUNVIEW_WORKERS: a number of processes from 1"):
            worker_count(workers.PARALLEL_BYTES)
    monkeypatch.setattr(workers, "_CPU_MAX", tmp_path / "cpu.max")
    for text, cores in (("100000 100000", 1), ("50000 100000", 1), ("max 100000", len(os.sched_getaffinity(0)))):
        (tmp_path / "cpu.max").write_text(text)
        assert usable_cores() == cores


@pytest.fixture
def collected(tmp_path: Path) -> Project:
    """The fixture project with the evidence of one source, green."""
    from tests.support.chain import judge

    project = make_project(tmp_path / "project")
    judge(project, "evidence", steps.collect_evidence(project, *NOTES, run_id="test"))
    return project


def test_documents_are_the_same_bytes_for_any_number_of_workers(collected: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "PIECE_BYTES", 200)  # many pieces
    recipe = collected.recipe(collected.release(RELEASE).recipe)
    (evidence,) = collected.lake.snapshots(stage="evidence")
    made = {}
    for n in (1, 2, 4):
        cleaned = documents.clean(
            collected.lake.batches(EVIDENCE, evidence.version, columns=documents.EVIDENCE_COLUMNS, batch_rows=5),
            source=collected.source("notes"),
            cleaning=recipe.cleaning,
            version="v",
            read_blob=collected.blobs.read,
            each=partial(mapped, n_workers=n, what="documents"),
        )
        assert cleaned.documents["doc_id"].to_pylist() != sorted(cleaned.documents["doc_id"].to_pylist()), "in the order of the evidence"
        ledgers = {name: ledger.to_json() for name, ledger in cleaned.ledgers.items()}
        tables = (cleaned.documents, cleaned.rejects)
        digests = [content_digest(table, spec.key) for table, spec in zip(tables, (DOCUMENTS, DOCUMENT_REJECTS), strict=True)]
        made[n] = (digests, ledgers, cleaned.documents.combine_chunks())
    assert made[1][2].num_rows == 19
    for n in (2, 4):
        assert made[n][:2] == made[1][:2]
        assert made[n][2].equals(made[1][2])


def test_a_step_whose_worker_is_killed_fails_by_name_and_completes_when_run_again(
    collected: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "PARALLEL_BYTES", 0)
    monkeypatch.setattr(documents, "PIECE_BYTES", 200)
    monkeypatch.setenv("RUNVIEW_WORKERS", "2")
    recipe = collected.recipe(collected.release(RELEASE).recipe)
    killed: list[int] = []

    def kill() -> None:
        deadline = time.monotonic() + 60
        while not killed and time.monotonic() < deadline:
            for pid in children():
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
            time.sleep(0.01)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(WorkerError, match="documents source=notes snapshot=2026-11-01: worker . of 2 was killed by SIGKILL"):
        steps.make_documents(collected, recipe, *NOTES, run_id="test")
    killer.join()
    assert collected.lake.snapshots(stage="documents") == []
    done = steps.make_documents(collected, recipe, *NOTES, run_id="test")
    assert (done.reused, done.snapshot.tables["cleaned_docs/documents"].n_rows) == (False, 19)
    collected.lake.verify(done.snapshot.version)
