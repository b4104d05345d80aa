"""A copy taken while others write holds together, in the right order and in no other."""

import hashlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from assets import shard_steps, view_steps
from pipeline.errors import LakeError
from pipeline.ids import canonical_json
from pipeline.schemas import APPROVALS, EVIDENCE, GATES, RELEASES, RUN_VIEWS, SHARDS
from pipeline.stages import StageVersion
from resources.blobs import BlobStore
from resources.files import FileStore
from resources.lake import Lake
from resources.lake.backup import Copied, copy_lake, copying
from resources.project import Project
from runview import Loader, RunView
from tests.support.project import RELEASE, VIEW, cli, command, environment, make_project, run_release
from tests.support.tables import NOW, ledger, rows

DAY = {"source": "web", "snapshot": "2026-11-01"}


def set_column(table: pa.Table, name: str, value: object) -> pa.Table:
    at = table.schema.get_field_index(name)
    return table.set_column(at, table.schema.field(at), pa.array([value] * len(table), table.schema.field(at).type))


def write_all(root: Path, n: int) -> None:
    """One of everything that refers to something, in the order in which the chain writes it."""
    lake, files, blobs = Lake(root), FileStore(root / "files"), BlobStore(root / "blobs")
    blob = blobs.put(b"payload %d" % n * 1000)
    evidence = StageVersion("evidence", "raw_evidence", DAY, str(n))
    payloads = set_column(rows(EVIDENCE, 3, evidence.version), "blob_sha256", blob)
    lake.publish(evidence, [(EVIDENCE, payloads)], [ledger(3)], run_id="r", now=NOW)
    lake.insert(GATES, rows(GATES, 1, evidence.version, start=n))
    members = canonical_json([{**DAY, "evidence_version": evidence.version}]).decode()
    release = set_column(set_column(rows(RELEASES, 1, ""), "name", f"release-{n}"), "members", members)
    lake.insert(RELEASES, release)
    shard = files.put("shards", b"tokens %d" % n * 1000, blocks=True)
    parents = {"evidence": evidence.version}
    stage = StageVersion("shards", "tokenized_shards", {"release": "demo", "tokenizer": "t"}, str(n), parents=parents)
    lake.publish(stage, [(SHARDS, set_column(rows(SHARDS, 1, stage.version), "shard_id", shard))], [ledger(1)], run_id="r", now=NOW)
    manifest = canonical_json({"n": n, "shard": shard})
    view_id = hashlib.sha256(manifest).hexdigest()
    files.put_view("candidates", view_id, manifest)
    state = set_column(set_column(rows(RUN_VIEWS, 1, stage.version), "view_id", view_id), "status", "candidate")
    lake.insert(RUN_VIEWS, state)
    view = StageVersion("view", "run_view", {"view": "v"}, str(n))
    lake.publish(view, [], [ledger(1)], run_id="r", now=NOW, record={"view_id": view_id})
    approval = set_column(set_column(rows(APPROVALS, 1, ""), "approval_id", hashlib.sha256(b"%d" % n).hexdigest()), "subject", view_id)
    lake.insert(APPROVALS, approval)
    files.write_record(view_id, canonical_json({"shard": shard}))
    files.put_view("views", view_id, manifest)
    lake.insert(RUN_VIEWS, set_column(state, "status", "published"))


def check(root: Path) -> int:
    """Everything a row or manifest of the copy names is in it, whole. Returns the complete versions."""
    lake, files, blobs = Lake(root), FileStore(root / "files"), BlobStore(root / "blobs")
    snapshots = {snapshot.version: snapshot for snapshot in lake.snapshots()}
    for version, snapshot in snapshots.items():
        lake.verify(version)
        assert all(parent in snapshots for parent in snapshot.identity["parents"].values())
        if snapshot.stage == "evidence":
            for blob in set(lake.read(EVIDENCE, version)["blob_sha256"].to_pylist()):
                blobs.read(blob)
        if snapshot.stage == "shards":
            for shard in lake.read(SHARDS, version)["shard_id"].to_pylist():
                files.get("shards", shard)
                assert files.path("shards", shard).with_suffix(".blocks").is_file()
        if snapshot.stage == "view":
            assert snapshot.record["view_id"] in lake.table(RUN_VIEWS)["view_id"].to_pylist()
    for release in lake.table(RELEASES).to_pylist():
        assert all(member["evidence_version"] in snapshots for member in json.loads(release["members"]))
    for row in lake.table(RUN_VIEWS).to_pylist():
        files.read_view("candidates" if row["status"] == "candidate" else "views", row["view_id"])
    for path in (root / "files").rglob("*.json"):
        files.get("shards", json.loads(path.read_bytes())["shard"])
        if path.parent.name == "views" and not path.stem.endswith(".record"):
            assert path.with_suffix(".record.json").is_file()
    for approval in lake.table(APPROVALS).to_pylist():
        files.read_view("candidates", approval["subject"])
    return len(snapshots)


def meanwhile(source: Path, steps: Iterator[str], n: int, *, every: int = 1, after: Callable[[str], None] = lambda _: None) -> int:
    """Between any two steps of the copying, or after every so many, write one more of everything. Returns how many there are then."""
    for number, step in enumerate(steps):
        if number % every == 0:
            write_all(source, n)
            n += 1
        after(step)
    return n


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_all(tmp_path / "lake", 0)
    return tmp_path / "lake"


@pytest.mark.slow
def test_what_is_written_between_any_two_steps_leaves_the_copy_whole(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    seen: list[int] = []

    def look(step: str) -> None:
        if step in ("placed raw_evidence/evidence", "placed control/snapshots"):
            seen.append(check(target))

    n = meanwhile(source, copying(str(source), str(target), Copied()), 1, after=look)
    assert seen == [0, 12], "whole at every step; three tables were noted before the snapshots, so three writes came before"
    n = meanwhile(source, copying(str(source), str(target), Copied()), n, every=6, after=look)
    assert seen[2] == 12, "an earlier moment until the newer one is placed"
    assert seen[3] > 12
    copy_lake(str(source), str(target))
    assert check(target) == 3 * n
    again = copy_lake(str(source), str(target))
    assert {path.suffix for path in target.rglob("*")} >= {".parquet", ".json", ".safetensors", ".blocks"}
    assert again.n_files == n, "the records of views, and nothing else"


def backwards(source: Path, target: Path) -> Iterator[str]:
    """The order that seems safe and is not: large files first, control tables last."""
    for name in ("blobs", "files", "raw_evidence", "tokenized_shards", "run_view", "control"):
        shutil.copytree(source / name, target / name)
        yield name
    shutil.copy(source / "lake.json", target)


def test_the_other_order_makes_a_copy_that_names_what_it_lacks(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    meanwhile(source, backwards(source, target), 1)
    with pytest.raises(LakeError):
        check(target)


def test_a_copy_is_refused_where_it_would_do_harm(source: Path, tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="inside the lake itself"):
        copy_lake(str(source), str(source / "copy"))
    write_all(tmp_path / "other", 5)
    before = check(tmp_path / "other")
    with pytest.raises(LakeError, match="holds another lake"):
        copy_lake(str(source), str(tmp_path / "other"))
    assert check(tmp_path / "other") == before
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("x")
    with pytest.raises(LakeError, match="expected lake.json or an empty folder"):
        copy_lake(str(source), str(tmp_path / "full"))


def test_damaged_files_are_named_and_not_copied_over_whole_ones(source: Path, tmp_path: Path) -> None:
    copy_lake(str(source), str(tmp_path / "copy"))
    (shard,) = (source / "files" / "shards").rglob("*.safetensors")
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1] + b"x")
    fresh = copy_lake(str(source), str(tmp_path / "fresh"))
    assert fresh.damaged == [shard.relative_to(source).as_posix()]
    assert not (tmp_path / "fresh" / fresh.damaged[0]).exists()
    copy_lake(str(source), str(tmp_path / "copy"))
    assert (tmp_path / "copy" / fresh.damaged[0]).read_bytes() == whole


def restored(project: Project, lake: Path, folder: Path) -> Project:
    """A project that has everything but the lake and Dagster's state, with the lake put back from a copy."""
    shutil.copytree(project.root, folder, ignore=shutil.ignore_patterns(".lake", ".dagster_state"))
    shutil.copytree(lake, folder / ".lake")
    return Project.at(folder)


def verified(project: Project) -> int:
    """Complete versions, each verified, with every file of its shards."""
    snapshots = project.lake.snapshots()
    for snapshot in snapshots:
        project.lake.verify(snapshot.version)
        if snapshot.stage == "shards":
            assert shard_steps.missing_files(project, snapshot.version) == []
    return len(snapshots)


@pytest.mark.slow
def test_a_copy_of_a_running_chain_is_restored_elsewhere_and_goes_on(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project")
    running = subprocess.Popen(
        command(tmp_path / "project", "run", RELEASE),
        env=environment(),
        cwd=tmp_path / "project",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    counts: list[int] = []
    try:
        while running.poll() is None:
            if (tmp_path / "project" / ".lake" / "lake.json").exists():
                target = tmp_path / f"copy-{len(counts)}"
                copy_lake(project.lake_root, str(target))
                counts.append(len(Lake(target).snapshots()))
            time.sleep(1.0)
    finally:
        running.kill()
        assert running.wait() in (0, -9)
    complete = verified(project)
    assert counts == sorted(counts)
    halves = [n for n, count in enumerate(counts) if 0 < count < complete]
    assert halves, f"no copy was taken while the chain ran: {counts} of {complete}"
    for n in {halves[0], halves[-1]}:
        assert verified(restored(project, tmp_path / f"copy-{n}", tmp_path / f"look-{n}")) == counts[n]
    back = restored(project, tmp_path / f"copy-{halves[len(halves) // 2]}", tmp_path / "back")
    run_release(back)
    assert verified(back) == complete
    assert view_steps.current_candidate(back, VIEW)["view_id"] == view_steps.current_candidate(project, VIEW)["view_id"]
    view_steps.sign_approval(back, VIEW, approver="", decision="approve", nonce="01")
    release = back.release(RELEASE)
    published = view_steps.publish_view(back, release, back.recipe(release.recipe), run_id="test")
    with Loader(RunView.open(published.path), micro_batch=4) as loader:
        assert sum(1 for _ in loader) == len(loader)


def test_the_command_copies_and_the_doctor_finds_nothing_in_the_copy(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project")
    write_all(Path(project.lake_root), 0)
    done = cli(tmp_path / "project", "backup", "copy", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["to"] == str(tmp_path / "copy")
    assert check(tmp_path / "copy") == 3
