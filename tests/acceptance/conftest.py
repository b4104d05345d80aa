"""Projects made once for all workers; tests that change one copy it."""

from pathlib import Path

import pytest

from tests.support import chain
from tests.support.project import copy_project, make_project, shared


def _candidate(folder: Path) -> None:
    make_project(folder)
    chain.run(str(folder))


@pytest.fixture(scope="session")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a candidate, made without Dagster. Not to be changed."""
    return shared(tmp_path_factory, "steps", _candidate)


@pytest.fixture
def published(ran: Path, tmp_path: Path) -> Path:
    """A copy with its view published, to be changed."""
    copy_project(ran, tmp_path / "published")
    chain.publish(str(tmp_path / "published"))
    return tmp_path / "published"
