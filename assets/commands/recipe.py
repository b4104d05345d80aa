"""`recipe check` and `recipe diff`: a recipe before it runs, and what another one would make anew."""

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from assets import steps
from assets.commands.common import Answer, project_of
from assets.release_plan import Known
from pipeline.errors import LakeError, TokenizerError
from pipeline.recipe import Recipe
from pipeline.recipe_check import differences, doubts, new_stages, problems
from pipeline.schemas import DECISIONS, DOCUMENTS
from pipeline.tokenized_shards.components import FIELDS, combinations
from resources.project import Project


def check(arguments: argparse.Namespace) -> Answer:
    """Values, tokenizer, and with `--release` how the release's kept documents fall into the components."""
    project = project_of(arguments)
    recipe = project.recipe(arguments.name)
    wrong = problems(recipe)
    tokenizer: dict[str, Any] = {"name": recipe.tokenization.tokenizer}
    try:
        tokenizer["tokenizer_id"] = project.tokenizers.load(recipe.tokenization.tokenizer).tokenizer_id
    except TokenizerError as error:
        wrong.append(str(error))
    value: dict[str, Any] = {"recipe": recipe.name, "recipe_id": recipe.recipe_id, "tokenizer": tokenizer}
    value["rules"] = len(recipe.cleaning.rules)
    if arguments.release:
        value["assignment"] = assignment(project, recipe, arguments.release)
        wrong.extend(value["assignment"].pop("problems"))
    known = sorted(path.stem for path in Path(project.source_dir()).glob("*.toml"))
    value = {"ok": not wrong, **value, "problems": wrong, "doubts": doubts(recipe, sources=known)}
    return value, check_text(value)


def assignment(project: Project, recipe: Recipe, name: str) -> dict[str, Any]:
    """Kept documents of a release by component, as far as they are there.

    `judged_by`: `this recipe` where its decisions are complete; else `own rules` of its documents; else `another recipe`'s documents.
    """
    release = project.release(name)
    sealed = steps.sealed_members(project, name)
    known = Known(project)
    members = sealed or [
        steps.Member(source, day, version) for source, day in steps.places(release) if (version := known.evidence(source, day))
    ]
    versions = {member: steps.documents_stage(recipe, member).version for member in members}
    mine = bool(members) and all(known.complete(version) for version in versions.values())
    if not mine:
        versions = {member: _newest_documents(project, member) for member in members}
    decided = steps.decisions_stage(recipe, name, versions).version if mine else ""
    columns = ["doc_id", "decision", *FIELDS]
    table = pa.concat_tables([project.lake.read(DOCUMENTS, version, columns=columns) for version in versions.values()])
    if decided and known.complete(decided):
        final = project.lake.read(DECISIONS, decided, columns=["doc_id", "decision"])
        table = table.drop_columns(["decision"]).join(final, "doc_id", join_type="inner")
        judged_by = "this recipe"
    else:
        judged_by = "own rules of this recipe" if mine else "own rules of another recipe"
    kept = table.filter(pa.compute.equal(table["decision"], "keep"))
    counts: Counter[str] = Counter({component.name: 0 for component in recipe.components})
    wrong = []
    for place, n_docs, names in combinations(kept, recipe.components):
        where = " ".join(f"{field}={value}" for field, value in zip(FIELDS, place, strict=True))
        if len(names) == 1:
            counts[names[0]] += n_docs
        else:
            wrong.append(f"{n_docs} documents ({where}) are in {names or 'no component'}")
    wrong.extend(f"component {name} would have no documents" for name, n in counts.items() if not n)
    return {
        "release": name,
        "judged_by": judged_by,
        "members": len(members),
        "missing_members": len(steps.places(release)) - len(members),
        "kept": len(kept),
        "components": dict(counts),
        "problems": wrong,
    }


def _newest_documents(project: Project, member: steps.Member) -> str:
    partition = {"source": member.source, "snapshot": member.snapshot.isoformat()}
    made = project.lake.snapshots(stage="documents", partition=partition)
    found = [snapshot for snapshot in made if snapshot.identity["parents"]["evidence"] == member.evidence_version]
    if not found:
        raise LakeError(f"no documents of {member.source} {member.snapshot} yet; run the release, or check without --release")
    return found[-1].version


def diff(arguments: argparse.Namespace) -> Answer:
    """Values that differ, and the stages that get new versions by it."""
    project = project_of(arguments)
    before, after = project.recipe(arguments.before), project.recipe(arguments.after)
    tokenizers = tuple(project.tokenizers.load(recipe.tokenization.tokenizer) for recipe in (before, after))
    value = {
        "before": {"name": before.name, "recipe_id": before.recipe_id},
        "after": {"name": after.name, "recipe_id": after.recipe_id},
        "values": differences(before, after),
        "new_versions": new_stages(before, after, tokenizers=(tokenizers[0], tokenizers[1])),
    }
    return value, diff_text(value)


def check_text(value: dict[str, Any]) -> str:
    """The check as lines."""
    tokenizer = value["tokenizer"]
    lines = [f"recipe {value['recipe']} {value['recipe_id']}: {value['rules']} rules, tokenizer {tokenizer['name']}"]
    found = value.get("assignment")
    if found:
        lines.append(f"release {found['release']}: {found['kept']} kept documents, by {found['judged_by']}")
        lines.extend(f"  {name:<16} {n} documents" for name, n in found["components"].items())
        if found["missing_members"]:
            lines.append(f"  {found['missing_members']} members are not collected yet")
    lines.extend(f"doubt: {doubt}" for doubt in value["doubts"])
    lines.extend(f"problem: {problem}" for problem in value["problems"])
    lines.append("nothing stops a run by it" if value["ok"] else f"{len(value['problems'])} problems")
    return "\n".join(lines)


def diff_text(value: dict[str, Any]) -> str:
    """The difference as lines."""
    lines = [f"recipe {value['before']['name']} -> {value['after']['name']}: {len(value['values'])} values differ"]
    lines.extend(f"  {place}: {_shown(pair['before'])} -> {_shown(pair['after'])}" for place, pair in value["values"].items())
    lines.extend(f"new version of {stage} ({why})" for stage, why in value["new_versions"].items())
    if not value["new_versions"]:
        lines.append("no stage gets a new version")
    return "\n".join(lines)


def _shown(value: Any) -> str:
    return "(not there)" if value is None else repr(value) if isinstance(value, str) else str(value)
