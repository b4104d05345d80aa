"""What is wrong or doubtful about a recipe before anything runs, which values two recipes differ in, and what that makes anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from pipeline.cleaned_docs import decide, documents, duplicates
from pipeline.errors import PipelineError
from pipeline.raw_evidence import rights
from pipeline.recipe import KINDS, Component, Recipe, to_json
from pipeline.run_view import manifest
from pipeline.stages import StageVersion
from pipeline.tokenized_shards import build
from pipeline.tokenized_shards.tokenizer import Tokenizer

STAGES = ("documents", "clusters", "decisions", "shards", "view")
_FIELDS = ("sources", "languages", "kinds", "domains")
_DAY = date(2000, 1, 1)


def problems(recipe: Recipe) -> list[str]:
    """What stops a run by this recipe, from its values alone; empty when nothing does. Parsing has already refused what it can."""
    out: list[str] = []
    for check in (_documents, _clusters, _decisions):
        try:
            check(recipe)
        except PipelineError as error:
            out.append(str(error))
    out.extend(
        f"cleaning.allowed_licences: {licence!r} is neither an SPDX expression nor `unknown`"
        for licence in recipe.cleaning.allowed_licences
        if rights.spdx(licence) is None
    )
    for component in recipe.components:
        unknown = sorted(set(component.kinds) - set(KINDS))
        if unknown:
            out.append(f"component {component.name}: kind {unknown[0]!r} is none of {list(KINDS)}")
    return out


def doubts(recipe: Recipe, *, sources: Sequence[str]) -> list[str]:
    """What is allowed and probably not meant: overlaps, kinds and languages nobody takes, components no stage uses.

    Args: sources, names of the project's sources.
    """
    out: list[str] = []
    components = recipe.components
    for i, one in enumerate(components):
        others = [other.name for other in components[i + 1 :] if _meet(one, other)]
        out.extend(f"components {one.name} and {other} could select the same document" for other in others)
    taken = {kind for one in components for kind in (one.kinds or KINDS)}
    out.extend(f"no component takes documents of kind {kind}" for kind in KINDS if kind not in taken)
    for kind in sorted(taken):
        for language in ("zxx",) if kind == "code" else recipe.cleaning.language.accept:  # the language of code is always zxx
            if not any((not one.kinds or kind in one.kinds) and (not one.languages or language in one.languages) for one in components):
                out.append(f"no component takes {kind} in language {language}, which is accepted")
    for one in components:
        out.extend(f"component {one.name}: source {name} is not in this project" for name in one.sources if name not in sources)
    used = {name for stage in recipe.view.stages for name in stage.shares}
    if all(stage.shares for stage in recipe.view.stages):
        out.extend(
            f"component {one.name} has a share in no stage: its shards are made and never read"
            for one in components
            if one.name not in used
        )
    return out


def differences(before: Recipe, after: Recipe) -> dict[str, dict[str, Any]]:
    """Values that differ: dotted place -> {before, after}; None where a side has none. Rules, components and stages go by name."""
    old, new = _flat(before), _flat(after)
    return {key: {"before": old.get(key), "after": new.get(key)} for key in dict.fromkeys((*old, *new)) if old.get(key) != new.get(key)}


def new_stages(before: Recipe, after: Recipe, *, tokenizers: tuple[Tokenizer, Tokenizer]) -> dict[str, str]:
    """Stages that get a new version when `after` takes the place of `before` on the same evidence: stage -> `changed` or `input changed`.

    Asked of the stages' own identities, so that a value that enters none makes nothing anew.
    """
    old, new = (_identities(recipe, tokenizer) for recipe, tokenizer in zip((before, after), tokenizers, strict=True))
    out = {}
    for stage in STAGES:
        if old[stage] != new[stage]:
            out[stage] = "changed"
        elif out:
            out[stage] = "input changed"
    return out


def _identities(recipe: Recipe, tokenizer: Tokenizer) -> dict[str, Any]:
    """What of a recipe each stage's version digests, over the same inputs."""
    shards = build.stage_version(
        recipe.tokenization,
        recipe.packing,
        recipe.components,
        release="-",
        tokenizer=tokenizer,
        decisions_version="-",
        documents_versions={},
    )
    view = manifest.candidate_version(recipe.named("-"), release="-", tokenizer=tokenizer.name, shards_version="-", decisions_version="-")
    return {
        "documents": _documents(recipe).identity(),
        "clusters": _clusters(recipe).identity(),
        "decisions": _decisions(recipe).identity(),
        "shards": shards.identity(),
        "view": view.identity(),
    }


def _documents(recipe: Recipe) -> StageVersion:
    return documents.stage_version(recipe.cleaning, source="-", snapshot=_DAY, evidence_version="-")


def _clusters(recipe: Recipe) -> StageVersion:
    return duplicates.clusters_version(release="-", duplicates=recipe.duplicates, split=recipe.split, documents={})


def _decisions(recipe: Recipe) -> StageVersion:
    return decide.decisions_version(release="-", decisions=recipe.decisions, clusters="-", documents={})


def _meet(one: Component, other: Component) -> bool:
    pairs = ((getattr(one, name), getattr(other, name)) for name in _FIELDS)
    return all(not a or not b or set(a) & set(b) for a, b in pairs)


def _flat(recipe: Recipe) -> dict[str, Any]:
    plain = to_json(recipe)
    del plain["text"], plain["name"]
    del plain["view"]["name"]
    out: dict[str, Any] = {}
    _walk("", plain, out)
    return out


def _walk(place: str, value: Any, out: dict[str, Any]) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            _walk(f"{place}.{key}" if place else key, item, out)
    elif isinstance(value, list) and value and all(isinstance(item, Mapping) and "name" in item for item in value):
        for item in value:
            _walk(f"{place}[{item['name']}]", {key: inner for key, inner in item.items() if key != "name"} or {"there": True}, out)
        out[f"{place} (order)"] = [item["name"] for item in value]
    else:
        out[place] = value
