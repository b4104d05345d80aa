"""The fixture project: copied, run in process, under Dagster, or as the real command in a process of its own."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import dagster as dg
import pytest

from assets.runner import Runner
from resources.project import Project

ROOT = Path(__file__).parents[2]
FIXTURE = ROOT / "tests" / "fixtures" / "project"
RELEASE, VIEW = "small", "small-view"
TOKENIZER = "runview-bpe-8k"
# What the fixture gives, on every machine with the packages of constraints.txt: another release of a package that a stage's version
# names gives another view id.
IDS = json.loads((ROOT / "tests" / "fixtures" / "ids.json").read_text())
VIEW_ID: str = IDS["view_id"]


def make_project(folder: Path) -> Project:
    """A copy of the fixture with keys of its own."""
    shutil.copytree(FIXTURE, folder)
    shutil.copy(ROOT / "dagster.yaml", folder)
    project = Project.at(folder)
    project.keystore.make_demo_keys()
    return project


def copy_project(folder: Path, target: Path) -> Project:
    """A copy of a project with its lake, keys and Dagster state."""
    shutil.copytree(folder, target)
    return Project.at(target)


def edit(path: Path, old: str, new: str) -> None:
    """Replace text that must be there."""
    text = path.read_text()
    assert old in text, f"{path.name} does not hold {old!r}"
    path.write_text(text.replace(old, new))


def add_release(folder: Path, name: str, *, old: str = "", new: str = "", recipe_old: str = "", recipe_new: str = "") -> None:
    """A release like the fixture's under another name and view; with `recipe_old`, under a recipe of its own with that text replaced."""
    text = (folder / "releases" / f"{RELEASE}.toml").read_text().replace(old, new)
    text = text.replace(f'name = "{RELEASE}"', f'name = "{name}"').replace(f'view = "{VIEW}"', f'view = "{name}-view"')
    if recipe_old:
        recipe = (folder / "recipes" / f"{RELEASE}.toml").read_text()
        assert recipe_old in recipe
        changed = recipe.replace(recipe_old, recipe_new).replace(f'name = "{RELEASE}"', f'name = "{name}"', 1)
        (folder / "recipes" / f"{name}.toml").write_text(changed)
        text = text.replace(f'recipe = "{RELEASE}"', f'recipe = "{name}"')
    (folder / "releases" / f"{name}.toml").write_text(text)


def run_release(project: Project, name: str = RELEASE, instance: dg.DagsterInstance | None = None) -> Runner:
    """The chain of a release under Dagster, up to its candidate; by default on an instance that is forgotten afterwards."""
    runner = Runner(project, instance or dg.DagsterInstance.ephemeral())
    runner.run_release(name)
    return runner


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment of a child: this one's without what would choose another project, and the paths of this process."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RUNVIEW_", "DAGSTER_HOME"))}
    return {**kept, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PYTHONWARNINGS": "ignore", **(extra or {})}


def command(folder: Path, *arguments: str) -> list[str]:
    """`runviewctl` on a project."""
    return [sys.executable, "-m", "assets.cli", "--project", str(folder), *arguments]


def cli(folder: Path, *arguments: str, extra: Mapping[str, str] | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `runviewctl` in a process of its own to its end."""
    return subprocess.run(
        command(folder, *arguments), capture_output=True, text=True, env=environment(extra), cwd=cwd or folder, timeout=300, check=False
    )


def shared(tmp_path_factory: pytest.TempPathFactory, name: str, build: Callable[[Path], object]) -> Path:
    """A folder that `build` fills once for all workers of this test run. Read it or copy it, never change it."""
    base = tmp_path_factory.getbasetemp()
    place = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / f"shared-{name}"
    with open(place.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            unfinished = place.with_suffix(".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            build(unfinished)
            unfinished.rename(place)
    return place


def views(project: Project) -> list[str]:
    """Names of the files under `views/`."""
    folder = Path(project.files.root) / "views"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def commits(project: Project) -> dict[str, int]:
    """Commits of every Delta table, by its path below the lake."""
    root = Path(project.lake.root)
    return {
        log.parent.relative_to(root).as_posix(): sum(entry.suffix == ".json" for entry in log.iterdir())
        for log in sorted(root.rglob("_delta_log"))
    }
