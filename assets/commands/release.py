"""`release seal`, `show` and `diff`: what is judged together, in which versions, and what another set would change."""

import argparse
from typing import Any

import polars as pl

from assets import steps, view_steps
from assets.commands.common import Answer, project_of
from assets.release_plan import Known
from pipeline.cleaned_docs import compare
from pipeline.errors import PipelineError
from pipeline.recipe import Recipe, Release
from pipeline.schemas import DECISIONS, DOCUMENTS, EVIDENCE, RUN_VIEWS
from resources.lake.sharing import working
from resources.project import Project


def seal(arguments: argparse.Namespace) -> Answer:
    """Pin the newest evidence of every member. Sealed already: say so, and change nothing."""
    project = project_of(arguments)
    release = project.release(arguments.name)
    there = steps.sealed_members(project, release.name) is not None
    with working(str(project.state_root)):
        members = steps.seal_release(project, release, run_id="runviewctl")
    row = steps.sealed_row(project, release.name) or {}
    value = {
        "release": release.name,
        "release_id": row["release_id"],
        "already_sealed": there,
        "members": [{"source": m.source, "snapshot": m.snapshot.isoformat(), "evidence_version": m.evidence_version} for m in members],
    }
    state = "was sealed already" if there else "is sealed"
    return value, f"release {release.name} {state} with {len(members)} members: {row['release_id']}"


def show(arguments: argparse.Namespace) -> Answer:
    """Members with their versions, counts and gates, and how far the release is."""
    project = project_of(arguments)
    release = project.release(arguments.name)
    recipe = project.recipe(release.recipe)
    known, row = Known(project), steps.sealed_row(project, release.name)
    sealed = {(m.source, m.snapshot): m.evidence_version for m in steps.sealed_members(project, release.name) or []}
    members = []
    for source, day in sorted({*steps.places(release), *sealed}):
        version = sealed.get((source, day)) if row else known.evidence(source, day)
        members.append(_member(project, recipe, known, source, day, version))
    value: dict[str, Any] = {
        "release": release.name,
        "recipe": release.recipe,
        "parent": release.parent or None,
        "sealed": row is not None,
        "release_id": row["release_id"] if row else None,
        "sealed_at": row["sealed_at"].isoformat() if row else None,
        "members": members,
        "stages": _stages(project, release, recipe, known) if row else [],
        "views": [
            {"view_id": view["view_id"], "name": view["name"], "status": view["status"]}
            for view in project.lake.table(RUN_VIEWS, where={"release": release.name}).to_pylist()
        ],
    }
    return value, show_text(value)


def _member(project: Project, recipe: Recipe, known: Known, source: str, day: Any, version: str | None) -> dict[str, Any]:
    out: dict[str, Any] = {"source": source, "snapshot": day.isoformat(), "evidence_version": version, "gate": "missing", "counts": {}}
    snapshot = project.lake.snapshot(version) if version else None
    if version is None or snapshot is None:
        return out
    out["gate"] = "red" if known.problems("evidence", version) else "green"
    out["counts"]["payloads"] = snapshot.ledgers[0].line()
    made = steps.documents_stage(recipe, steps.Member(source, day, version)).version
    documents = project.lake.snapshot(made)
    out["documents_version"] = made if documents else None
    out["documents_gate"] = "missing" if documents is None else "red" if known.problems("documents", made) else "green"
    if documents is not None:
        out["counts"]["documents"] = next(ledger for ledger in documents.ledgers if ledger.unit == "documents").line()
    return out


def _stages(project: Project, release: Release, recipe: Recipe, known: Known) -> list[dict[str, Any]]:
    """The stages after the documents, in the versions the files make now."""
    members = steps.require_sealed(project, release.name)
    versions = {member: steps.documents_stage(recipe, member).version for member in members}
    made = {
        "clusters": steps.clusters_stage(recipe, release.name, versions).version,
        "decisions": steps.decisions_stage(recipe, release.name, versions).version,
    }
    try:
        candidate, shards, *_ = view_steps.candidate_stage(project, release, recipe)
        made |= {"shards": shards.version, "candidate": candidate.version}
    except PipelineError:
        pass  # its documents are not complete and green, which the members say
    out = []
    for stage, version in made.items():
        snapshot = project.lake.snapshot(version)
        gate = "missing" if snapshot is None else "red" if known.problems(stage, version) else "green"
        counts = " | ".join(ledger.line() for ledger in snapshot.ledgers[:1]) if snapshot else ""
        out.append({"stage": stage, "version": version, "gate": gate, "counts": counts})
    return out


def diff(arguments: argparse.Namespace) -> Answer:
    """Members that differ, documents that are new or gone, and decisions that changed side."""
    project = project_of(arguments)
    before, after = (_side(project, name) for name in (arguments.before, arguments.after))
    old, new = before["members"], after["members"]
    value: dict[str, Any] = {
        "before": {key: before[key] for key in ("release", "recipe", "sealed")},
        "after": {key: after[key] for key in ("release", "recipe", "sealed")},
        "members": {
            "added": sorted(set(new) - set(old)),
            "removed": sorted(set(old) - set(new)),
            "changed": sorted(place for place in set(old) & set(new) if old[place] != new[place]),
            "same": sum(old[place] == new[place] for place in set(old) & set(new)),
        },
        "decisions": None,
    }
    if before["decisions"] and after["decisions"]:
        frames = [pl.DataFrame(project.lake.read(DECISIONS, side["decisions"], columns=list(compare.COLUMNS))) for side in (before, after)]
        value["decisions"] = compare.changes(frames[0], frames[1])
        value["unit"], (value["n_new"], value["n_gone"]) = "documents", (sum(value["decisions"][key].values()) for key in ("new", "gone"))
    else:
        value["unit"], value["n_new"], value["n_gone"] = _new_and_gone(project, before, after)
    return value, diff_text(value)


def _side(project: Project, name: str) -> dict[str, Any]:
    """A release as it is sealed, else as its file would be sealed now."""
    release = project.release(name)
    recipe = project.recipe(release.recipe)
    known = Known(project)
    sealed = steps.sealed_members(project, name)
    members = sealed
    if members is None:
        members = [steps.Member(source, day, version) for source, day in steps.places(release) if (version := known.evidence(source, day))]
    versions = {member: steps.documents_stage(recipe, member).version for member in members}
    decisions = steps.decisions_stage(recipe, name, versions).version
    places = {f"{source}/{day}": None for source, day in steps.places(release)}
    return {
        "release": name,
        "recipe": recipe.name,
        "sealed": sealed is not None,
        "members": {**places, **{f"{m.source}/{m.snapshot}": m.evidence_version for m in members}},
        "documents": list(versions.values()) if all(known.complete(v) for v in versions.values()) else [],
        "decisions": decisions if known.complete(decisions) else "",
    }


def _new_and_gone(project: Project, before: dict[str, Any], after: dict[str, Any]) -> tuple[str, int, int]:
    """Counted in documents where both sides have them, else in payloads. Members with the same evidence hold the same payloads."""
    if before["documents"] and after["documents"]:
        spec, column, sides = DOCUMENTS, "doc_id", [before["documents"], after["documents"]]
    else:
        spec, column, sides = EVIDENCE, "evidence_id", [[v for v in side["members"].values() if v] for side in (before, after)]
    both = set(sides[0]) & set(sides[1])
    ids = [
        pl.concat([pl.DataFrame({column: []}, schema={column: pl.String})]
                  + [pl.DataFrame(project.lake.read(spec, version, columns=[column])) for version in side if version not in both])
        for side in sides
    ]  # fmt: skip
    unit = "documents" if column == "doc_id" else "payloads"
    return unit, ids[1].join(ids[0], on=column, how="anti").height, ids[0].join(ids[1], on=column, how="anti").height


def show_text(value: dict[str, Any]) -> str:
    """The release as lines."""
    state = f"sealed {value['sealed_at']} as {value['release_id']}" if value["sealed"] else "not sealed: the newest evidence is shown"
    lines = [f"release {value['release']} under recipe {value['recipe']}: {state}"]
    for row in value["members"]:
        version, counts = row["evidence_version"] or "-", row["counts"]
        lines.append(f"  {row['gate']:<7} {row['source']} {row['snapshot']}  evidence {version}  {counts.get('payloads', '')}")
        if "documents_gate" in row:
            made = row["documents_version"] or "-"
            lines.append(f"  {row['documents_gate']:<7}   documents {made}  {counts.get('documents', '')}")
    lines.extend(f"  {row['gate']:<7} {row['stage']:<10} {row['version']}  {row['counts']}" for row in value["stages"])
    lines.extend(f"  {row['status']} view {row['name']} {row['view_id']}" for row in value["views"])
    return "\n".join(lines)


def diff_text(value: dict[str, Any]) -> str:
    """The difference as lines."""
    members = value["members"]
    lines = [f"release {value['before']['release']} -> {value['after']['release']}"]
    for word in ("added", "removed", "changed"):
        lines.extend(f"  member {word}: {place}" for place in members[word])
    lines.append(f"  {members['same']} members the same")
    lines.append(f"  {value['unit']}: {value['n_new']} new, {value['n_gone']} gone")
    decisions = value["decisions"]
    if decisions is None:
        lines.append("  decisions: not made for both; run the releases to compare them")
        return "\n".join(lines)
    return "\n".join([*lines, *decision_lines(decisions)])


def decision_lines(decisions: dict[str, Any]) -> list[str]:
    """Documents that changed side, and why."""
    lines = [f"  documents that changed side: {decisions['to_kept']} to kept, {decisions['to_dropped']} to dropped"]
    lines.extend(f"    {row['before']} -> {row['after']}: {row['n_docs']}" for row in decisions["changed"])
    for word in ("new", "gone"):
        if decisions[word]:
            lines.append(f"    {word}: " + ", ".join(f"{standing} {n}" for standing, n in decisions[word].items()))
    return lines
