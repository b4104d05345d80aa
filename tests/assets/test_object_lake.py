"""The whole chain with its lake in an object store: killed, run twice at once, approved, copied, trained from."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from assets import view_steps
from assets.gates import read_gate
from pipeline.contracts import expected_checks, gate_problems
from pipeline.errors import LakeError, PipelineError, ViewError
from pipeline.schemas import DECISIONS, SNAPSHOTS
from resources import mirror
from resources.mirror import opened, pull
from resources.places import place_of
from resources.project import Project
from runview import Loader, RunView
from tests.support.object_store import ACCESS_KEY, BUCKET, SECRET, ObjectStore, object_store
from tests.support.project import RELEASE, VIEW, VIEW_ID, cli, command, environment, make_project

pytestmark = pytest.mark.slow
CHAIN = "import sys; from tests.support.chain import run; run(sys.argv[1])"
SECONDS = 240  # of one process on a busy machine


class World:
    """A project of this machine, its lake in the store, and everything its commands have printed."""

    def __init__(self, folder: Path, store: ObjectStore) -> None:
        make_project(folder)
        self.folder = folder
        self.variables = store.environment("team/lake", RUNVIEW_FIRST_DATE="2026-01-01")
        self.printed = ""

    def command(self, *words: str) -> str:
        """Run `runviewctl` to its good end; returns what it printed to stdout."""
        done = cli(self.folder, "-v", *words, extra=self.variables)
        self.printed += done.stdout + done.stderr
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as running:
        yield running


@pytest.fixture(scope="module")
def world(store: ObjectStore, tmp_path_factory: pytest.TempPathFactory) -> World:
    """A published view: begun by a run that was killed, finished by two at once, one of them without Dagster."""
    made = World(tmp_path_factory.mktemp("object-lake") / "project", store)
    variables = environment(made.variables)
    log = made.folder.parent / "log"
    with open(log, "w") as out:
        first = subprocess.Popen(command(made.folder, "-v", "run", RELEASE), env=variables, cwd=made.folder, stdout=out, stderr=out)
        wait_for(store, "team/lake/cleaned_docs/documents/source=", first)
        first.send_signal(signal.SIGKILL)
        assert first.wait(timeout=30) == -signal.SIGKILL
        both = [command(made.folder, "-v", "run", RELEASE), [sys.executable, "-c", CHAIN, str(made.folder)]]
        running = [subprocess.Popen(words, env=variables, cwd=made.folder, stdout=out, stderr=out) for words in both]
        ended = [process.wait(timeout=SECONDS) for process in running]
    made.printed += log.read_text()
    assert ended == [0, 0], made.printed[-3000:]
    said = made.command("approve", VIEW)
    assert f"runviewctl view pull {VIEW_ID} DIR" in said
    return made


def wait_for(store: ObjectStore, prefix: str, process: subprocess.Popen[bytes]) -> None:
    """Until an object lies below the prefix."""
    from obstore.store import S3Store

    keys = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET, "region": "us-east-1", "endpoint": store.endpoint}
    bucket = S3Store(BUCKET, config=keys, client_options={"allow_http": True})  # type: ignore[arg-type]
    for _ in range(SECONDS * 10):
        assert process.poll() is None, "the run ended before it could be killed"
        folder, _, begin = prefix.rpartition("/")
        if any(begin in str(one["path"]) for page in bucket.list(folder) for one in page):
            return
        time.sleep(0.1)
    raise AssertionError(f"nothing came below {prefix}")


@pytest.fixture
def project(world: World, monkeypatch: pytest.MonkeyPatch) -> Project:
    for name, value in world.variables.items():
        monkeypatch.setenv(name, value)
    return Project.at(world.folder)


def test_killed_and_run_twice_at_once_is_one_copy_of_the_same_view(project: Project) -> None:
    snapshots = project.lake.snapshots()
    assert Counter(snapshot.stage for snapshot in snapshots) == {
        "evidence": 4, "documents": 4, "clusters": 1, "decisions": 1, "shards": 1, "view": 1,
    }  # fmt: skip
    assert len(project.lake.table(SNAPSHOTS)) == 12
    for snapshot in snapshots:
        project.lake.verify(snapshot.version)
        stage = "candidate" if snapshot.stage == "view" else snapshot.stage
        assert gate_problems(expected_checks(stage), read_gate(project, snapshot.version)) == []
    assert len(project.lake.table(DECISIONS)) == 48
    assert project.files.names("views") == [f"{VIEW_ID}.json", f"{VIEW_ID}.record.json"], "the bytes a local lake gives too"
    assert project.files.names("candidates") == [f"{VIEW_ID}.json"]
    assert not (Path(project.root) / ".lake").exists()


def test_the_copy_is_the_view_and_is_trained_from(world: World, project: Project, tmp_path: Path) -> None:
    world.command("view", "pull", VIEW, str(tmp_path / "copy"))
    path = tmp_path / "copy" / "views" / f"{VIEW_ID}.json"
    view = RunView.open(path, allowed_signers=Path(project.keys_root) / "allowed_signers")
    with Loader(view, micro_batch=4) as loader:
        delivered = sum(int(batch.input_ids.shape[0]) for batch in loader)
    assert delivered == sum(stage.length for stage in view.manifest.stages) == 72
    files = {p: p.stat().st_mtime_ns for p in sorted((tmp_path / "copy").rglob("*")) if p.is_file()}
    assert not [p for p in files if p.name.startswith(".")]
    shards = [p for p in files if p.parts[-3] == "shards" and p.suffix == ".safetensors"]
    shards[0].write_bytes(shards[0].read_bytes()[:-1])
    shards[1].unlink()
    again = pull(project.files, VIEW_ID, tmp_path / "copy")
    assert (again.n_copied, again.n_files) == (2, len([p for p in files if p.suffix != ".blocks"]))
    same = [p for p in files if p.stat().st_mtime_ns == files[p]]
    assert set(files) - set(same) == {*shards[:2], path, path.with_suffix(".record.json")}
    assert hashlib.sha256(shards[0].read_bytes()).hexdigest() == shards[0].stem


def test_publication_reads_every_file_through_a_small_mirror(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNVIEW_MIRROR_BYTES", "4000")
    most = 0
    fetch = mirror.Mirror._fetch

    def watched(self: mirror.Mirror, kind: str, sha256: str) -> None:
        nonlocal most
        fetch(self, kind, sha256)
        held = [p for kind in ("shards", "packs") for p in (self.root / kind).rglob("*.safetensors")]
        most = max(most, sum(p.stat().st_size for p in held))

    monkeypatch.setattr(mirror.Mirror, "_fetch", watched)
    view_steps.check_files(project, VIEW_ID)
    assert 1000 < most <= 4000
    with opened(project.files, "views", VIEW_ID) as view:
        root = view.root
        assert root.is_dir()
    assert not root.exists()
    monkeypatch.setenv("RUNVIEW_MIRROR_BYTES", "much")
    with pytest.raises(LakeError, match="RUNVIEW_MIRROR_BYTES"), opened(project.files, "views", VIEW_ID):
        pass


def test_damaged_and_missing_files_stop_publication_and_copy(project: Project, tmp_path: Path) -> None:
    place = place_of(project.files.root)
    names = sorted(name for name, _ in place.files("shards") if name.endswith(".safetensors"))
    whole = {name: place.read(name) for name in names[:2]}
    place.replace(names[0], whole[names[0]][:-1] + b"\0\0")
    place._store.delete(names[1])  # type: ignore[attr-defined]
    try:
        with pytest.raises(ViewError, match="2 files are not what was approved") as caught:
            view_steps.check_files(project, VIEW_ID)
        for name in whole:
            assert Path(name).stem in str(caught.value)
        with pytest.raises(LakeError, match="is damaged|is missing"):
            pull(project.files, VIEW_ID, tmp_path / "copy")
        assert not list((tmp_path / "copy" / "views").glob("*.json")), "no manifest without its files"
    finally:
        for name, data in whole.items():
            place.replace(name, data)
    view_steps.check_files(project, VIEW_ID)
    pull(project.files, VIEW_ID, tmp_path / "copy")


def test_a_withdrawn_view_is_not_copied_and_marks_its_copies(project: Project, tmp_path: Path) -> None:
    place = place_of(project.files.root)
    path = pull(project.files, VIEW_ID, tmp_path).path
    name = f"views/{VIEW_ID}.withdrawn.json"
    place.replace(name, b"{}")
    try:
        with pytest.raises(ViewError, match="was withdrawn"):
            pull(project.files, VIEW_ID, tmp_path)
        assert path.with_suffix(".withdrawn.json").exists(), "the loader refuses the copy from now on"
    finally:
        place._store.delete(name)  # type: ignore[attr-defined]


def test_the_secret_is_nowhere(world: World, project: Project) -> None:
    status = world.command("status")
    assert "published view small-view" in status
    marks = [SECRET.encode(), ACCESS_KEY.encode()]
    n_files = 0
    place = place_of(project.lake.root)
    for name, _ in place.files():
        data = place.read(name)
        n_files += 1
        assert not [mark for mark in marks if mark in data], name
    assert n_files > 100
    state = [path for path in world.folder.rglob("*") if path.is_file()]
    assert any(path.suffix == ".db" for path in state), "Dagster's events and metadata were looked at"
    for path in state:
        data = path.read_bytes()
        assert not [mark for mark in marks if mark in data], path.name
    assert "INFO" in world.printed
    assert not [mark for mark in (SECRET, ACCESS_KEY) if mark in world.printed]


def test_a_refused_command_names_the_cause_and_no_secret(world: World) -> None:
    done = cli(world.folder, "status", extra={**world.variables, "RUNVIEW_LAKE": "s3://no-such-bucket-here/lake"})
    assert (done.returncode, "there is no such bucket" in done.stderr) == (1, True), done.stderr
    assert SECRET not in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"AWS_ENDPOINT_URL": "ftp://x"}, "AWS_ENDPOINT_URL must be"),
        ({"RUNVIEW_LAKE": f"gs://{BUCKET}/lake"}, "expected s3://bucket/prefix"),
        ({"RUNVIEW_LAKE": f"s3://key:{SECRET}@{BUCKET}/lake"}, "expected s3://bucket/prefix"),
        ({"AWS_ACCESS_KEY_ID": ""}, "AWS_SECRET_ACCESS_KEY"),
    ],
)
def test_what_cannot_be_a_lake_is_refused_before_anything_is_asked(
    project: Project, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], says: str
) -> None:
    for name, value in changed.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PipelineError, match=says) as caught:
        _ = Project.at(project.root).lake
    assert SECRET not in str(caught.value)


def test_processes_end_well(world: World) -> None:
    """The libraries' threads outlive the work; a process that read from the store must still end with 0."""
    program = "import sys; from resources.project import Project; print(len(Project.at(sys.argv[1]).lake.snapshots()))"
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", program, str(world.folder)],
            env={**environment(world.variables), "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
        assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "12", "")
