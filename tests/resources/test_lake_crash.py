"""Killed with -9 at any point and run again: one copy, nothing lost, nothing half-published."""

import hashlib
from pathlib import Path

import pytest

from pipeline.errors import LakeError
from pipeline.schemas import DOCUMENT_REJECTS, DOCUMENTS, GATES, SNAPSHOTS
from resources.durable import is_temporary
from resources.files import FileStore
from resources.lake import Lake
from tests.support.crash import Crasher
from tests.support.tables import NOW, ledger, rows, stage

VERSION = stage().version


def seen(lake: Lake) -> bool:
    """Is the version visible? When it is, all of it must be; when not, none."""
    if lake.snapshot(VERSION) is None:
        with pytest.raises(LakeError, match="is not complete"):
            lake.read(DOCUMENTS, VERSION)
        return False
    lake.verify(VERSION)
    assert len(lake.read(DOCUMENTS, VERSION)) == 40
    return True


def whole(lake: Lake, n_rejects: int) -> None:
    """One copy, and nothing else in the tables."""
    assert seen(lake)
    assert len(lake.table(SNAPSHOTS)) == 1
    for spec, n in ((DOCUMENTS, 40), (DOCUMENT_REJECTS, n_rejects)):
        everything = lake.table(spec)
        assert len(everything) == n
        assert everything.sort_by(spec.key[0]).equals(rows(spec, n, VERSION).sort_by(spec.key[0]))
    assert len(lake.table(GATES)) == 2


@pytest.mark.parametrize("n_rejects", [3, pytest.param(0, marks=pytest.mark.slow)])
def test_killed_at_every_point_and_run_again_is_one_copy(tmp_path: Path, n_rejects: int) -> None:
    with Crasher("tests.support.publishing:publish") as crasher:
        whole_run = crasher.run(str(tmp_path / "0"), "1", str(n_rejects))
        assert whole_run.error == ""
        whole(Lake(tmp_path / "0"), n_rejects)
        digests = Lake(tmp_path / "0").snapshot(VERSION).tables
        visible = []
        for n in range(1, whole_run.n_points + 1):
            root = tmp_path / str(n)
            assert crasher.run(str(root), "1", str(n_rejects), kill_at=n).killed
            visible.append(seen(Lake(root)))
            assert crasher.run(str(root), "1", str(n_rejects)).error == ""
            whole(Lake(root), n_rejects)
            found = Lake(root).snapshot(VERSION).tables
            assert {p: t.content_sha256 for p, t in found.items()} == {p: t.content_sha256 for p, t in digests.items()}
    assert visible == sorted(visible), "once published, a version stays published"
    assert True in visible
    assert False in visible


def test_killed_inside_a_commit_and_run_again_is_one_copy(tmp_path: Path) -> None:
    with Crasher("tests.support.publishing:publish") as crasher:
        n_killed = 0
        for n, seconds in enumerate((0.01, 0.02, 0.04, 0.06, 0.08, 0.11, 0.15)):
            root = tmp_path / str(n)
            n_killed += crasher.run(str(root), kill_after_seconds=seconds).killed
            seen(Lake(root))
            assert crasher.run(str(root)).error == ""
            whole(Lake(root), 3)
    assert n_killed


def test_what_a_killed_attempt_left_goes_also_when_the_new_rows_are_none(tmp_path: Path) -> None:
    made = stage(code="2")
    lake = Lake(tmp_path)
    with Crasher("tests.support.publishing:publish") as crasher:
        for n in range(1, 200):  # until both tables hold rows of a version that is not complete
            assert crasher.run(str(tmp_path), "2", "3", kill_at=n).killed
            if len(lake.table(DOCUMENT_REJECTS)) == 3:
                break
    assert lake.snapshot(made.version) is None
    tables = [(DOCUMENTS, rows(DOCUMENTS, 7, made.version)), (DOCUMENT_REJECTS, DOCUMENT_REJECTS.schema.empty_table())]
    lake.publish(made, tables, [ledger(7)], run_id="second", now=NOW)
    assert (len(lake.table(DOCUMENTS)), len(lake.table(DOCUMENT_REJECTS))) == (7, 0)
    lake.verify(made.version)


def test_files_killed_at_every_point_are_whole_or_absent(tmp_path: Path) -> None:
    shard, manifest = b"tokens" * 50_000, b'{"format":1}'
    shard_id, view_id = hashlib.sha256(shard).hexdigest(), hashlib.sha256(manifest).hexdigest()
    with Crasher("tests.support.publishing:store_files") as crasher:
        n_points = crasher.run(str(tmp_path / "0")).n_points
        assert n_points > 10
        for n in range(1, n_points + 1):
            root = tmp_path / str(n)
            assert crasher.run(str(root), kill_at=n).killed
            files = FileStore(root / "files")
            for path in (p for p in root.rglob("*") if p.is_file() and not is_temporary(p.name)):
                assert path.read_bytes() == (tmp_path / "0" / path.relative_to(root)).read_bytes()
            if files.path("shards", shard_id).exists():
                assert files.path("shards", shard_id).with_suffix(".blocks").exists(), "a shard is never there without its digests"
            assert crasher.run(str(root)).error == ""
            assert files.get("shards", shard_id) == shard
            assert files.read_view("views", view_id) == manifest
            files.sweep(min_age_seconds=0)
            names = {p.relative_to(root / "files") for p in (root / "files").rglob("*") if p.is_file()}
            assert names == {p.relative_to(tmp_path / "0/files") for p in (tmp_path / "0/files").rglob("*") if p.is_file()}
