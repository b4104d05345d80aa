"""`candidates` and `view diff`: what waits for approval, and what another view would change for a run."""

import argparse
from typing import Any

import polars as pl

from assets import view_steps
from assets.commands.common import Answer, project_of
from assets.commands.gc import read_manifest
from assets.commands.release import decision_lines
from assets.release_plan import Known
from pipeline.cleaned_docs import compare as decision_compare
from pipeline.errors import LakeError, PipelineError
from pipeline.recipe import parse_recipe
from pipeline.recipe_check import differences
from pipeline.run_view import compare
from pipeline.schemas import DECISIONS, RUN_VIEWS, SHARD_DOCS
from resources.project import Project
from runview.manifest import Manifest


def candidates(arguments: argparse.Namespace) -> Answer:
    """Candidates that are not published, newest first: who proposed them, their gate, and what was filed."""
    project = project_of(arguments)
    known = Known(project)
    rows = project.lake.table(RUN_VIEWS).to_pylist()
    done = {row["view_id"] for row in rows if row["status"] != "candidate"}
    waiting = [row for row in rows if row["status"] == "candidate" and row["view_id"] not in done]
    current = {name: _current(project, name) for name in {row["name"] for row in waiting}}
    out = []
    for row in sorted(waiting, key=lambda row: (row["created_at"], row["view_id"]), reverse=True):
        problems = known.problems("candidate", row["version"])
        out.append(
            {
                "name": row["name"],
                "view_id": row["view_id"],
                "release": row["release"],
                "proposer": row["proposer"],
                "created_at": row["created_at"].isoformat(),
                "gate": "red" if problems else "green",
                "problems": problems,
                "filed": view_steps.filed_decisions(project, row["view_id"]),
                "current": row["view_id"] == current[row["name"]],
            }
        )
    return {"candidates": out}, candidates_text(out)


def _current(project: Project, name: str) -> str:
    """The candidate that the release file makes now; empty when it makes none."""
    try:
        return str(view_steps.current_candidate(project, name)["view_id"])
    except PipelineError:
        return ""


def candidates_text(rows: list[dict[str, Any]]) -> str:
    """One line each."""
    if not rows:
        return "nothing waits for approval"
    lines = []
    for row in rows:
        state = "" if row["current"] else ", superseded: its release file makes another now"
        filed = f"; filed: {', '.join(row['filed'])}" if row["filed"] else ""
        lines.append(
            f"{row['gate']:<6} {row['name']} {row['view_id']}  release {row['release']}, proposed by {row['proposer']}{filed}{state}"
        )
        lines.extend(f"         {problem}" for problem in row["problems"])
    return "\n".join(lines)


def diff(arguments: argparse.Namespace) -> Answer:
    """Shares, documents and decisions of one view against another."""
    project = project_of(arguments)
    before, after = (manifest_of(project, name) for name in (arguments.before, arguments.after))
    value = {
        "before": {"name": before.name, "view_id": before.view_id, "release": before.release},
        "after": {"name": after.name, "view_id": after.view_id, "release": after.release},
        "settings": compare.settings(before, after),
        "recipe": differences(parse_recipe(before.recipe_text, where="before"), parse_recipe(after.recipe_text, where="after")),
        "mixture": compare.mixture(before, after),
        "documents": compare.membership(*(_rows(project, view, "shards") for view in (before, after))),
        "decisions": decision_compare.changes(*(_rows(project, view, "decisions") for view in (before, after))),
    }
    return value, diff_text(value)


def manifest_of(project: Project, name: str) -> Manifest:
    """A view by id; by name the newest published one, else the newest candidate. Raises LakeError when there is none."""
    row = view_steps.view_row(project, name, "published") or view_steps.view_row(project, name, "candidate")
    if row is None:
        known = sorted({row["name"] for row in project.lake.table(RUN_VIEWS, columns=["name"]).to_pylist()})
        raise LakeError(f"no view has the name or id {name!r}; known names are {known}")
    return read_manifest(project, str(row["view_id"]))


def _rows(project: Project, view: Manifest, stage: str) -> pl.DataFrame:
    spec, columns = {"shards": (SHARD_DOCS, compare.COLUMNS), "decisions": (DECISIONS, decision_compare.COLUMNS)}[stage]
    return pl.DataFrame(project.lake.read(spec, str(view.stage_versions[stage]), columns=list(columns)))


def diff_text(value: dict[str, Any]) -> str:
    """The difference as lines."""
    before, after = value["before"], value["after"]
    lines = [f"view {before['name']} {before['view_id']} -> {after['name']} {after['view_id']}"]
    lines.extend(f"  {name}: {pair['before']} -> {pair['after']}" for name, pair in value["settings"].items())
    lines.extend(f"  recipe {place}: {pair['before']} -> {pair['after']}" for place, pair in value["recipe"].items())
    lines.append(f"  {'stage':<10} {'component':<14} {'declared':>22} {'achieved':>26} {'packs':>16} {'documents':>16}")
    for row in value["mixture"]:
        cells = [_arrow(row[name]) for name in ("declared_share", "achieved_share", "packs", "n_docs")]
        lines.append(f"  {row['stage']:<10} {row['component']:<14} {cells[0]:>22} {cells[1]:>26} {cells[2]:>16} {cells[3]:>16}")
    documents = value["documents"]
    lines.append(f"  documents in shards: {documents['n_before']} -> {documents['n_after']}, {documents['stayed']} stayed where they were")
    for word in ("added", "removed"):
        lines.extend(f"    {word} {place}: {n}" for place, n in documents[word].items())
    lines.extend(f"    moved {row['before']} -> {row['after']}: {row['n_docs']}" for row in documents["moved"])
    return "\n".join([*lines, *decision_lines(value["decisions"])])


def _arrow(pair: dict[str, Any]) -> str:
    before, after = ("-" if pair[side] is None else str(pair[side]) for side in ("before", "after"))
    return before if before == after else f"{before} -> {after}"
