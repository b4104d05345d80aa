"""`keys` and `docs`: demonstration keys where there are none, and the pages of the data contract."""

import argparse
from pathlib import Path

from assets.commands.common import Answer, project_of
from assets.profile_steps import PROFILES
from pipeline.contracts import RULES
from pipeline.errors import LakeError
from resources.expectations import build_data_docs


def keys(arguments: argparse.Namespace) -> Answer:
    """Make the keys of the demonstration where there are none."""
    made = project_of(arguments).keystore.make_demo_keys()
    return {"made": made}, f"made {', '.join(made)}" if made else "keys and policy are there already; nothing was changed"


def docs(arguments: argparse.Namespace) -> Answer:
    """Data Docs of the newest version of every partition."""
    project = project_of(arguments)
    profiles = {}
    for snapshot in project.lake.snapshots():
        stage = "candidate" if snapshot.stage == "view" else snapshot.stage
        title = " ".join([stage, *dict(snapshot.partition).values()])
        profiles[title] = (RULES[stage], PROFILES[stage](project, snapshot.version).counts)
    if not profiles:
        raise LakeError("the lake has no completed version yet; run a release first")
    page = build_data_docs(Path(project.root) / "site", profiles)
    return {"index": str(page), "pages": sorted(profiles)}, f"Data Docs: {page}"
