"""`backup` and `migrate`: the lake as a whole."""

import argparse
import os

from assets.commands.common import Answer, project_of, size
from resources.lake import migrate as migrations
from resources.lake.backup import copy_lake
from resources.lake.home import CURRENT, read_stand
from resources.lake.sharing import alone, working
from resources.places import is_local
from resources.project import Project


def backup(arguments: argparse.Namespace) -> Answer:
    """Copy the lake, or bring an earlier copy up to date. `ok` is false when files here are damaged: those are not copied."""
    project = project_of(arguments)
    target = arguments.folder
    if is_local(target):
        target = os.path.abspath(os.path.join(arguments.cwd, target))
    with working(_locks(project)):  # housekeeping would remove what is being copied
        done = copy_lake(project.lake_root, target)
    value = {"ok": not done.damaged, "to": target, "files": done.n_files, "bytes": done.size_bytes, "damaged": done.damaged}
    text = f"{target}: {done.n_files} files, {size(done.size_bytes)} copied"
    if done.damaged:
        text += f"\n{len(done.damaged)} files have other bytes than their names say and were left out: {', '.join(done.damaged[:5])}"
    return value, f"{text}\nKeys and Dagster's state are not in it: see docs/deployment.md"


def migrate(arguments: argparse.Namespace) -> Answer:
    """Say what a migration would change, and with `--yes` carry it out. Refused while anything works in the lake."""
    project = project_of(arguments)
    root = project.lake_root
    reached, unfinished = read_stand(root)
    planned = migrations.plan(root)
    value = {
        "from": {"format": reached.format, "schema": reached.schema},
        "to": {"format": CURRENT.format, "schema": CURRENT.schema},
        "steps": [{"what": step.what, "changes": list(step.changes)} for step in planned],
        "migrated": False,
    }
    lines = [f"lake {root}: {reached}{', a migration is unfinished' if unfinished else ''}; this release reads {CURRENT}"]
    for step in planned:
        lines.append(f"  {step.before} to {step.after}: {step.what}")
        lines.extend(f"    {change}" for change in step.changes)
    if not planned and not unfinished:
        return value, "\n".join([*lines, "Nothing to change."])
    if not arguments.yes:
        return value, "\n".join([*lines, "Nothing was changed. Stop runs and schedules, back the lake up, then: runviewctl migrate --yes"])
    with alone(_locks(project)):
        taken = migrations.migrate(root)
    return {**value, "migrated": True}, "\n".join([*lines, f"{len(taken)} steps taken."])


def _locks(project: Project) -> str:
    """As `Project.state_root`, without opening a lake that stands at another format."""
    return project.lake_root if is_local(project.lake_root) else os.path.join(project.root, ".dagster_state")
