"""What every command shares: the project it runs in, and how it answers."""

import argparse
from pathlib import Path
from typing import Any

from assets.runner import Runner, persistent_instance, ticking
from pipeline.errors import RecipeError
from resources.project import Project

Answer = tuple[dict[str, Any], str]
"""The result as plain data and as text for a person. `ok: False` in the data means: refused or something is wrong, exit 1."""


def project_of(arguments: argparse.Namespace) -> Project:
    """The project the command runs in. Raises RecipeError when the folder is none."""
    root = Path(arguments.project).resolve()
    if not (root / "releases").is_dir() or not (root / "sources").is_dir():
        raise RecipeError(f"{root} has no sources/ and releases/; run in a project folder or give --project")
    return Project.at(root)


def runner_of(project: Project) -> Runner:
    """A runner on the project's persistent Dagster instance, with progress on stderr."""
    return Runner(project, persistent_instance(project), ticking)


def size(n_bytes: float) -> str:
    """Bytes for a person: `1.5 GiB`."""
    value = float(n_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
