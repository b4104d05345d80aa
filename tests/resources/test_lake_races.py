"""Several writers at once end as one copy."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.errors import LakeError
from pipeline.schemas import DOCUMENT_REJECTS, DOCUMENTS, GATES, SNAPSHOTS
from resources.lake import Lake, store
from tests.support.tables import NOW, ledger, rows, stage

RUN = "import sys; from tests.support.publishing import publish_many; publish_many(*sys.argv[1:])"
UNLOCKED = "import contextlib\nfrom resources.lake import store\nstore.held = lambda *_: contextlib.nullcontext()\n"


def race(root: Path, codes: list[str], *, locked: bool) -> None:
    """One process per entry, all started at the same moment, each publishing its versions."""
    start = root.parent / "start"
    program = RUN if locked else UNLOCKED + RUN
    command = [sys.executable, "-c", program, str(root), str(start)]
    environment = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    running = [subprocess.Popen([*command, f"writer-{n}", own], env=environment) for n, own in enumerate(codes)]
    time.sleep(1.5)  # all have imported by then; a late one only makes the race easier
    start.touch()
    assert [process.wait(timeout=120) for process in running] == [0] * len(codes)


# Without the lock the writers meet as they would on two machines: Delta's conflicts alone must lead to one copy.
@pytest.mark.parametrize("locked", [True, False])
def test_writers_of_the_same_and_of_other_versions_end_as_one_copy_each(tmp_path: Path, locked: bool) -> None:
    race(tmp_path / "lake", ["1,2", "1,2", "2,3", "3,1"], locked=locked)
    lake = Lake(tmp_path / "lake")
    versions = {stage(code=code).version for code in "123"}
    assert {snapshot.version for snapshot in lake.snapshots("documents")} == versions
    assert (len(lake.table(SNAPSHOTS)), len(lake.table(GATES))) == (3, 2 * 3)
    assert (len(lake.table(DOCUMENTS)), len(lake.table(DOCUMENT_REJECTS))) == (3 * 40, 3 * 3)
    for version in versions:
        lake.verify(version)


def test_endless_lost_races_end_with_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_ATTEMPTS", 3)
    monkeypatch.setattr(store, "BACKOFF_SECONDS", 0.0)
    lake = Lake(tmp_path)
    n = 0

    def lost() -> int:
        nonlocal n
        n += 1
        raise store.Conflict

    with pytest.raises(LakeError, match="3 attempts lost"):
        lake._retry(DOCUMENTS, lost)
    assert n == 3


def test_a_writer_with_other_content_loses_and_changes_nothing(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    made = stage()
    lake.publish(made, [(DOCUMENTS, rows(DOCUMENTS, 5, made.version))], [ledger(5)], run_id="a", now=NOW)
    before = lake.table(DOCUMENTS)
    with pytest.raises(LakeError, match="same version, other content") as caught:
        lake.publish(made, [(DOCUMENTS, rows(DOCUMENTS, 6, made.version))], [ledger(6)], run_id="b", now=NOW)
    assert "cleaned_docs/documents" in str(caught.value)
    assert lake.table(DOCUMENTS).equals(before)
    lake.verify(made.version)
