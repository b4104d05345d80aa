"""Killed with -9 at any point and run again: one copy, nothing lost, nothing half-published."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from pipeline.schemas import APPROVALS, GATES, RUN_VIEWS, SNAPSHOTS, TABLES
from resources.project import Project
from runview import RunView
from tests.support.crash import Crasher
from tests.support.project import RELEASE, VIEW, VIEW_ID, cli, command, copy_project, environment, make_project, views

pytestmark = pytest.mark.slow


def nothing_half(project: Project) -> None:
    """Whatever is visible is whole: every complete version verifies, and a view that is there opens with its approval."""
    for snapshot in project.lake.snapshots():
        project.lake.verify(snapshot.version)
    for name in views(project):
        if name.endswith(".json") and not name.endswith(".record.json") and not name.startswith("."):
            path = Path(project.files.root) / "views" / name
            RunView.open(path, allowed_signers=Path(project.keys_root) / "allowed_signers")
            assert path.stem == VIEW_ID


def contents(project: Project) -> dict[str, dict[str, str]]:
    """Content digests of every table of every version; evidence holds hashes under the project's own key, so its count stands for it."""
    return {
        snapshot.version: {
            path: str(table.n_rows) if path == "raw_evidence/evidence" else table.content_sha256 for path, table in snapshot.tables.items()
        }
        for snapshot in project.lake.snapshots()
    }


def one_copy(project: Project, clean: Project, *, published: bool) -> None:
    """The same versions with the same content as of the run that nobody killed, each row once, and the same view."""
    nothing_half(project)
    assert contents(project) == contents(clean)
    n_rows: dict[str, int] = {}
    for snapshot in project.lake.snapshots():
        for path, table in snapshot.tables.items():
            n_rows[path] = n_rows.get(path, 0) + table.n_rows
    for path, n in n_rows.items():
        rows = pl.DataFrame(project.lake.table(TABLES[path]))
        assert rows.height == n, f"{path} holds rows of no complete version, or rows twice"
        assert rows.select("version", *TABLES[path].key).is_unique().all()
    for spec in (SNAPSHOTS, GATES, RUN_VIEWS):
        assert project.lake.table(spec).num_rows == clean.lake.table(spec).num_rows - (spec is RUN_VIEWS and not published)
    assert [name for name in views(project) if not name.startswith(".")] == (
        [f"{VIEW_ID}.json", f"{VIEW_ID}.record.json"] if published else []
    )
    tokens = {path.name: path.read_bytes() for path in Path(clean.files.root).rglob("*.safetensors")}
    assert {path.name: path.read_bytes() for path in Path(project.files.root).rglob("*.safetensors")} == tokens


@pytest.fixture(scope="module")
def crasher() -> Iterator[Crasher]:
    with Crasher("tests.support.chain:everything") as crasher:
        yield crasher


def strides(kind: str) -> Iterator[int]:
    """At which durable act, counted from its start, each attempt is killed; growing, so that every stage is passed at last."""
    seeded = random.Random(20261101)
    for n in range(1, 200):
        yield n + n * n // 8 if kind == "growing" else seeded.randint(1, 60 + 4 * n)


@pytest.mark.parametrize("kind", ["growing", "random"])
def test_killed_again_and_again_on_its_way_the_chain_ends_as_one_copy(crasher: Crasher, published: Path, tmp_path: Path, kind: str) -> None:
    project = make_project(tmp_path / "project")
    complete, n_killed = 0, 0
    for at in strides(kind):
        outcome = crasher.run(str(tmp_path / "project"), kill_at=at)
        assert outcome.error == ""
        now = Project.at(tmp_path / "project")
        nothing_half(now)
        assert len(now.lake.snapshots()) >= complete, "what is complete stays complete"
        complete = len(now.lake.snapshots())
        if not outcome.killed:
            break
        n_killed += 1
    assert not outcome.killed
    assert n_killed >= 6
    one_copy(project, Project.at(published), published=True)
    assert project.lake.table(APPROVALS).num_rows <= 1 + n_killed


def test_killed_at_every_other_act_of_the_publication(ran: Path, published: Path, tmp_path: Path) -> None:
    clean = Project.at(published)
    with Crasher("tests.support.chain:publish") as crasher:
        copy_project(ran, tmp_path / "0")
        n_points = crasher.run(str(tmp_path / "0")).n_points
        assert n_points >= 10
        visible = []
        for n in [*range(1, n_points, 2), n_points]:
            folder = tmp_path / str(n)
            project = copy_project(ran, folder)
            assert crasher.run(str(folder), kill_at=n).killed
            nothing_half(project)
            visible.append(f"{VIEW_ID}.json" in views(project))
            assert crasher.run(str(folder)).error == ""
            one_copy(Project.at(folder), clean, published=True)
    assert visible == sorted(visible)
    assert True in visible
    assert False in visible


def killed_after(folder: Path, seconds: float, *arguments: str) -> bool:
    """Start the real command and kill it after that time. False when it had ended."""
    started = subprocess.Popen(
        command(folder, *arguments),
        env=environment(),
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        started.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.kill(started.pid, signal.SIGKILL)
    return started.wait() == -signal.SIGKILL


def test_the_real_commands_killed_at_some_time_and_run_again(published: Path, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    project = make_project(folder)
    began = time.monotonic()
    clean_seconds = 0.0
    n_killed = 0
    for share in (0.35, 0.6, 0.8):
        seconds = 9.0 * share if not clean_seconds else clean_seconds * share
        n_killed += killed_after(folder, seconds, "run", RELEASE)
        nothing_half(Project.at(folder))
        assert views(Project.at(folder)) == []
    done = cli(folder, "run", RELEASE)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() > began
    assert n_killed >= 1
    one_copy(Project.at(folder), Project.at(published), published=False)

    for seconds in (3.0, 4.5):
        killed_after(folder, seconds, "approve", VIEW)
        nothing_half(Project.at(folder))
    done = cli(folder, "approve", VIEW)
    assert done.returncode == 0, done.stderr
    one_copy(project, Project.at(published), published=True)
