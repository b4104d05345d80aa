"""One candidate of the fixture, made under Dagster once for all workers; tests that change it copy it."""

from pathlib import Path

import pytest

from assets import view_steps
from resources.project import Project
from tests.support import chain
from tests.support.project import RELEASE, VIEW, add_release, copy_project, edit, make_project, run_release, shared
from tests.support.terminal import Terminal


def _build(folder: Path) -> None:
    run_release(make_project(folder))


@pytest.fixture(scope="session")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose release ran up to its candidate. Not to be changed."""
    return shared(tmp_path_factory, "candidate", _build)


@pytest.fixture
def candidate(ran: Path, tmp_path: Path) -> Project:
    """A copy of it, to be changed."""
    return copy_project(ran, tmp_path / "project")


def _build_history(folder: Path) -> None:
    """Publish the candidate; run a second release under a stricter recipe, then with other packs."""
    project = Project.at(folder)
    release = project.release(RELEASE)
    view_steps.sign_approval(project, VIEW, approver="", decision="approve", nonce="01")
    view_steps.publish_view(project, release, project.recipe(release.recipe), run_id="test")
    add_release(folder, "strict", recipe_old='bound = 5\nkinds = ["prose"]', recipe_new='bound = 18\nkinds = ["prose"]')
    recipe = folder / "recipes" / "strict.toml"
    for old, new in (("", ""), ('seed = "7b1d5a90"', 'seed = "7b1d5a91"')):
        if old:
            edit(recipe, old, new)
        for _, make in chain.stages(project, "strict"):
            make()


@pytest.fixture(scope="session")
def history(ran: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with a published view and two candidates of a stricter release, of which the last one waits. Not to be changed."""

    def build(folder: Path) -> None:
        copy_project(ran, folder)
        _build_history(folder)

    return shared(tmp_path_factory, "history", build)


@pytest.fixture
def past(history: Path, tmp_path: Path) -> Project:
    """A copy of it, to be changed."""
    return copy_project(history, tmp_path / "project")


@pytest.fixture
def terminal(past: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """`runviewctl` on that copy."""
    return Terminal(Path(past.root), capsys, monkeypatch)
