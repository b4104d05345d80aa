"""Housekeeping of the tables: what is stored by version, rows and files that go, and who may work at the same time."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.errors import LakeError
from pipeline.schemas import DOCUMENT_REJECTS, DOCUMENTS, SNAPSHOTS
from resources.lake import Lake
from resources.lake.sharing import alone, working
from resources.lake.upkeep import Upkeep
from tests.support.tables import NOW, ledger, rows, stage

OLD = time.time() - 7200


def publish(lake: Lake, code: str, n_rows: int = 4) -> str:
    """A version of documents and their rejects."""
    made = stage(code=code)
    tables = [(spec, rows(spec, n_rows, version=made.version)) for spec in (DOCUMENTS, DOCUMENT_REJECTS)]
    lake.publish(made, tables, [ledger(n_rows)], run_id="run", now=NOW)
    return made.version


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def test_rows_of_every_version_are_counted_from_the_log(lake: Lake) -> None:
    counts = {publish(lake, code, n): n for code, n in (("1", 3), ("2", 5))}
    upkeep = Upkeep(lake)
    found = {(row.table, row.version): row.n_rows for row in upkeep.rows()}
    assert found == {(spec.path, version): n for spec in (DOCUMENTS, DOCUMENT_REJECTS) for version, n in counts.items()}
    files = upkeep.stored()
    on_disk = sum(path.stat().st_size for path in Path(lake.root).rglob("*.parquet"))
    assert files["size_bytes"].sum() == on_disk
    assert upkeep.unused_files(min_age_hours=0) == []
    assert list(upkeep.missing_files()) == []


def test_a_file_of_several_versions_is_counted_row_by_row(lake: Lake) -> None:
    counts = {publish(lake, code, n): n for code, n in (("1", 3), ("2", 5))}
    table = lake._tables.open(DOCUMENTS)
    assert table is not None
    table.optimize.compact()
    assert Upkeep(lake).stored([DOCUMENTS])["version"].to_list() == [None]
    found = {row.version: row.n_rows for row in Upkeep(lake).rows() if row.table == DOCUMENTS.path}
    assert found == counts


def test_forgotten_rows_leave_the_others_and_their_files_go_with_age(lake: Lake) -> None:
    gone, kept = publish(lake, "1"), publish(lake, "2")
    upkeep = Upkeep(lake)
    for _ in range(2):  # twice is once
        upkeep.forget_keys(SNAPSHOTS, [gone])
        for row in upkeep.rows():
            if row.version == gone:
                upkeep.forget(row)
    assert {row.version for row in upkeep.rows()} == {kept}
    lake.verify(kept)
    assert upkeep.unused_files(min_age_hours=1) == [], "another machine may still read or write what is young"
    found = upkeep.unused_files(min_age_hours=0)
    assert len(found) == 3 and all(size > 0 for _, size in found)
    assert upkeep.unused_files(min_age_hours=0, remove=True) == found
    assert upkeep.unused_files(min_age_hours=0) == []
    assert not any(Path(lake.root, name).exists() for name, _ in found)
    lake.verify(kept)
    publish(lake, "1")
    lake.verify(gone)


def test_what_a_killed_writer_left_beside_a_table_is_found_and_a_missing_file_named(lake: Lake) -> None:
    version = publish(lake, "1")
    there = next(Path(lake.root, DOCUMENTS.path).rglob("*.parquet"))
    stray = there.with_name("part-00000-stray.parquet")
    stray.write_bytes(b"x" * 10)
    os.utime(stray, (OLD, OLD))
    ((name, size),) = Upkeep(lake).unused_files(min_age_hours=1, remove=True)
    assert (Path(lake.root, name), size, stray.exists()) == (stray, 10, False)
    lake.verify(version)
    there.unlink()
    ((table, path),) = Upkeep(lake).missing_files()
    assert (table, Path(lake.root, table, path)) == (DOCUMENTS.path, there)


def test_housekeeping_is_alone_and_a_killed_worker_holds_nothing(tmp_path: Path) -> None:
    root = str(tmp_path)
    with working(root), working(root), pytest.raises(LakeError, match="nothing was removed"), alone(root):
        pass
    with alone(root), pytest.raises(LakeError, match="nothing was removed"), alone(root):
        pass
    code = (
        f"import time\nfrom resources.lake.sharing import working\nwith working({root!r}):\n    print('in', flush=True)\n    time.sleep(60)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        with pytest.raises(LakeError), alone(root):
            pass
        process.kill()
        process.wait()
    with alone(root):
        pass
