"""One candidate of the fixture, made under Dagster once for all workers; tests that change it copy it."""

from pathlib import Path

import pytest

from resources.project import Project
from tests.support.project import copy_project, make_project, run_release, shared


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
