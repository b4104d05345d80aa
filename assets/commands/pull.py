"""`view pull`: the files of a published view on this machine, so that it can be trained from."""

import argparse
from pathlib import Path

from assets import view_steps
from assets.commands.common import Answer, project_of, size
from assets.commands.run import load_lines
from pipeline.errors import ViewError
from resources.mirror import pull as pull_files


def pull(arguments: argparse.Namespace) -> Answer:
    """Copy exactly what the view needs, every file compared with its digest; a second call copies what is missing."""
    project = project_of(arguments)
    row = view_steps.view_row(project, arguments.view, "published")
    if row is None:
        raise ViewError(f"no published view named {arguments.view!r}; see `runviewctl status`")
    done = pull_files(project.files, str(row["view_id"]), Path(arguments.folder).absolute())
    value = {
        "view_id": row["view_id"],
        "path": str(done.path),
        "files": done.n_files,
        "size_bytes": done.size_bytes,
        "copied": done.n_copied,
        "copied_bytes": done.copied_bytes,
    }
    text = f"view {row['view_id']}: {done.n_files} files, {size(done.size_bytes)}; {done.n_copied} copied ({size(done.copied_bytes)})"
    return value, f"{text}\n{load_lines(str(done.path))}"
