"""Lakes of earlier formats stay readable, and migrations reach their end whatever interrupts them."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from assets import view_steps
from pipeline.errors import LakeError
from pipeline.schemas import DOCUMENTS, EVIDENCE, GATES, Column
from resources.lake import Lake
from resources.lake.home import CURRENT, read_stand
from resources.lake.migrate import STEPS, migrate, plan
from resources.lake.sharing import working
from resources.project import Project
from runview import Loader, RunView
from tests.support import old_lakes
from tests.support.crash import Crasher
from tests.support.old_lakes import NEW, OLD, unpack
from tests.support.project import RELEASE, VIEW, cli, run_release, shared, views
from tests.support.tables import NOW, ledger, rows, stage

FORMATS = sorted(path.name for path in old_lakes.FOLDER.iterdir() if path.is_dir())


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every packed lake, unpacked. Not to be changed."""
    return shared(tmp_path_factory, "old-lakes", lambda folder: [unpack(name, folder / name) for name in FORMATS])


@pytest.fixture(params=FORMATS)
def old(request: pytest.FixtureRequest, packed: Path, tmp_path: Path) -> Project:
    """The project of a packed lake, brought to today's format, to be changed."""
    shutil.copytree(packed / request.param, tmp_path / "project")
    project = Project.at(tmp_path / "project")
    migrate(project.lake_root)
    return project


@pytest.fixture
def first(packed: Path, tmp_path: Path) -> Path:
    """The lake of the first format, to be migrated by the steps of the tests."""
    return Path(shutil.copytree(packed / "v1" / ".lake", tmp_path / "lake"))


def files(root: Path) -> dict[str, bytes]:
    """Every file but locks, by its name."""
    found = (path for path in root.rglob("*") if path.is_file() and ".locks" not in path.parts)
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in found}


def deliver(path: str | Path) -> list[list[int]]:
    with Loader(RunView.open(path), micro_batch=4) as loader:
        return [batch.positions.tolist() for batch in loader]


def test_every_version_and_view_of_an_old_lake_is_read(old: Project) -> None:
    snapshots = old.lake.snapshots()
    assert {snapshot.stage for snapshot in snapshots} >= {"evidence", "documents", "clusters", "decisions", "shards", "view"}
    for snapshot in snapshots:
        old.lake.verify(snapshot.version)
        assert all(ledger.close() for ledger in snapshot.ledgers)
    evidence = next(snapshot for snapshot in snapshots if snapshot.stage == "evidence")
    n_rows = evidence.tables[EVIDENCE.path].n_rows
    assert n_rows == len(old.lake.read(EVIDENCE, evidence.version)) == sum(len(b) for b in old.lake.batches(EVIDENCE, evidence.version))
    (view,) = (name for name in views(old) if "." not in name.removesuffix(".json"))
    assert sorted(n for part in deliver(Path(old.files.root) / "views" / view) for n in part) == list(range(72))


@pytest.mark.slow
def test_a_view_is_published_from_an_old_lake(old: Project) -> None:
    before = {snapshot.version for snapshot in old.lake.snapshots()}
    run_release(old)
    assert before <= {snapshot.version for snapshot in old.lake.snapshots()}
    view_steps.sign_approval(old, VIEW, approver="", decision="approve", nonce="02")
    release = old.release(RELEASE)
    published = view_steps.publish_view(old, release, old.recipe(release.recipe), run_id="test")
    assert deliver(published.path)


def test_columns_that_come_later_are_null_in_old_rows_and_kept_in_new_ones(old: Project) -> None:
    later = replace(DOCUMENTS, columns=(*DOCUMENTS.columns, Column("grade", pa.int64(), "added later", nullable=True)))
    snapshot = old.lake.snapshots(stage="documents")[0]
    assert old.lake.read(later, snapshot.version)["grade"].null_count == snapshot.tables[DOCUMENTS.path].n_rows
    made = stage(source="notes")
    new = old.lake.publish(made, [(later, rows(later, 3, made.version, source="notes"))], [ledger(3)], run_id="r", now=NOW)
    assert old.lake.read(later, new.version, columns=["grade"])["grade"].to_pylist() == [0, 1, 2]
    assert len(old.lake.read(DOCUMENTS, new.version)) == 3
    old.lake.verify(snapshot.version)


def test_there_is_a_lake_of_every_format_and_steps_from_each(packed: Path) -> None:
    stands = {name: read_stand(str(packed / name / ".lake"))[0] for name in FORMATS}
    assert CURRENT in stands.values(), "pack a lake of the new format: python -m tests.support.old_lakes NAME"
    for name in FORMATS:
        plan(str(packed / name / ".lake"))
    assert {step.before for step in STEPS} <= set(stands.values())


def test_a_dry_run_lists_what_would_change_and_changes_nothing(first: Path) -> None:
    before = files(first)
    planned = plan(str(first), steps=old_lakes.STEPS, current=NEW)
    assert [(step.what, step.changes) for step in planned] == [
        ("candidates into folders", ("1 candidates moved",)),
        ("count candidates", ("1 file made",)),
    ]
    assert files(first) == before


def test_killed_at_every_point_a_migration_is_refused_and_then_finished(first: Path, tmp_path: Path) -> None:
    with Crasher("tests.support.old_lakes:migrate_test") as crasher:
        shutil.copytree(first, tmp_path / "0")
        n_points = crasher.run(str(tmp_path / "0")).n_points
        whole = files(tmp_path / "0")
        assert json.loads(whole["lake.json"]) == {"format": 2, "schema": 2}
        assert json.loads(whole["files/about.json"]) == {"n_candidates": 1}
        assert set(whole) != set(files(first))
        untouched = 0
        for n in range(1, n_points + 1):
            root = tmp_path / str(n)
            shutil.copytree(first, root)
            assert crasher.run(str(root), kill_at=n).killed
            stand, unfinished = read_stand(str(root))
            if stand == OLD and not unfinished:
                assert {name: data for name, data in files(root).items() if not name.startswith(".")} == files(first)
                untouched += 1
            else:
                with pytest.raises(LakeError, match="a migration stands unfinished|install the release that wrote it"):
                    Lake(root)
            assert crasher.run(str(root)).error == ""
            assert {name: data for name, data in files(root).items() if not name.split("/")[-1].startswith(".")} == whole
        assert 0 < untouched < n_points
        assert crasher.run(str(tmp_path / "0")).n_points == 0, "what is done is not done again"


def test_newer_lakes_and_lakes_without_a_way_are_refused(first: Path) -> None:
    migrate(str(first), steps=old_lakes.STEPS, current=NEW)
    with pytest.raises(LakeError, match="format 2 found, this release reads 1; install the release that wrote it"):
        Lake(first)
    for act in (plan, migrate):
        with pytest.raises(LakeError, match="no step leads from format 2, schema 2 to format 1, schema 1.*install the release"):
            act(str(first))
    (first / "lake.json").write_text('{"format":0,"schema":1}')
    with pytest.raises(LakeError, match="format 0 found.*run `runviewctl migrate`"):
        Lake(first)
    with pytest.raises(LakeError, match="migrate it with an earlier release first"):
        plan(str(first))
    with pytest.raises(LakeError, match=r"no lake\.json there"):
        plan(str(first / "nothing"))
    assert not (first / "nothing").exists()


def test_a_process_that_opened_the_lake_before_writes_nothing_more(first: Path) -> None:
    lake, made = Lake(first), stage(code="late")
    migrate(str(first), steps=old_lakes.STEPS, current=NEW)
    before = files(first)
    with pytest.raises(LakeError, match="format 2 found"):
        lake.publish(made, [(DOCUMENTS, rows(DOCUMENTS, 3, made.version))], [ledger(3)], run_id="r", now=NOW)
    with pytest.raises(LakeError, match="format 2 found"):
        lake.insert(GATES, rows(GATES, 1, made.version))
    assert files(first) == before


def test_the_command_says_what_it_would_do_and_waits_for_nobody(old: Project) -> None:
    done = cli(Path(old.root), "migrate", "--json")
    assert (done.returncode, json.loads(done.stdout)["steps"]) == (0, []), done.stderr
    lake = Path(old.lake_root) / "lake.json"
    lake.write_text(json.dumps({"format": CURRENT.format, "schema": CURRENT.schema, "reached": json.loads(lake.read_text())}))
    refused = cli(Path(old.root), "status")
    assert refused.returncode == 1
    assert "go on with `runviewctl migrate --yes`" in refused.stderr
    with working(old.lake_root):
        busy = cli(Path(old.root), "migrate", "--yes")
    assert busy.returncode == 1
    assert "is working in it" in busy.stderr
    done = cli(Path(old.root), "migrate", "--yes", "--json")
    assert (done.returncode, json.loads(done.stdout)["migrated"]) == (0, True), done.stderr
    assert cli(Path(old.root), "status").returncode == 0
