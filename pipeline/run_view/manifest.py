"""The manifest of a run view: one canonical JSON that decides and justifies the sequences of a run.

The loader parses it strictly; it is parsed here once before it is handed out, so nothing is offered that cannot be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.errors import LedgerError, ViewError
from pipeline.ids import canonical_json
from pipeline.ledger import Ledger
from pipeline.recipe import Component, Packing, Recipe, View, to_json
from pipeline.run_view.mixture import ComponentPacks, PlannedStage, plan_stages
from pipeline.stages import StageVersion
from runview.errors import RunviewError
from runview.manifest import geometry_digest, parse
from runview.order import ORDER_VERSION, StageGeometry

CODE_VERSION = "1"
FORMAT = 1


@dataclass(frozen=True)
class ComponentFiles:
    """One component and split as the release's shards describe it: a `catalogs` row, its `shards` rows and its stats.

    Attributes: shard_docs, shard_tokens, shard_packs, counts of each shard in build order; stats uint32 [n_packs, 4];
        ledger, its tokens, closed, or None where the stage left none (then it is not finished).
    """

    name: str
    split: str
    catalog_id: str
    stats_id: str
    n_docs: int | None
    n_tokens: int | None
    n_packs: int | None
    n_loss_tokens: int | None
    licences: Mapping[str, int]
    shard_docs: Sequence[int]
    shard_tokens: Sequence[int]
    shard_packs: Sequence[int]
    stats: np.ndarray[Any, Any]
    ledger: Ledger | None


def component_files(
    catalogs: pa.Table, shards: pa.Table, *, stats: Mapping[str, np.ndarray[Any, Any]], ledgers: Mapping[str, Ledger]
) -> list[ComponentFiles]:
    """The components of a release from its `catalogs` and `shards` rows.

    Args: stats, stats_id -> uint32 [n_packs, 4]; ledgers, `tokens/<component>/<split>` -> ledger.
    """
    by_part: dict[tuple[str, str], list[dict[str, Any]]] = {}
    names = ["component", "split", "ordinal", "n_docs", "n_tokens", "n_packs"]
    for row in sorted(shards.select(names).to_pylist(), key=lambda r: r["ordinal"]):
        by_part.setdefault((row["component"], row["split"]), []).append(row)
    orphans = sorted(set(by_part) - {(row["component"], row["split"]) for row in catalogs.to_pylist()})
    if orphans:
        raise ViewError(f"shards without a catalog: {orphans}; the shards stage did not finish, run it again")
    result = []
    for row in catalogs.sort_by([("component", "ascending"), ("split", "ascending")]).to_pylist():
        part = (row["component"], row["split"])
        if row["stats_id"] not in stats:
            raise ViewError(f"component {part[0]!r}, split {part[1]}: stats {row['stats_id']} expected, not given")
        mine = by_part.get(part, [])
        result.append(
            ComponentFiles(
                name=part[0],
                split=part[1],
                catalog_id=row["catalog_id"],
                stats_id=row["stats_id"],
                n_docs=row["n_docs"],
                n_tokens=row["n_tokens"],
                n_packs=row["n_packs"],
                n_loss_tokens=row["n_loss_tokens"],
                licences=dict(row["licences"]),
                shard_docs=[r["n_docs"] for r in mine],
                shard_tokens=[r["n_tokens"] for r in mine],
                shard_packs=[r["n_packs"] for r in mine],
                stats=stats[row["stats_id"]],
                ledger=ledgers.get(f"tokens/{part[0]}/{part[1]}"),
            )
        )
    return result


def check_components(files: Sequence[ComponentFiles]) -> None:
    """Refuse a partial component: every ledger is there and closed, every count is there and is the sum of its shards.

    Raises: ViewError naming every component that is unfinished, or whose counts differ (`found != stated`), or that has a
        shard without documents, tokens or packs. There is no default for a missing count.
    """
    problems = [problem for part in files for problem in _problems(part)]
    if problems:
        raise ViewError(f"{len(problems)} problems in the components of this view: {'; '.join(problems)}. Run the shards stage again")


def packs_of(component: Component, files: ComponentFiles) -> ComponentPacks:
    """What the mixture needs of a component: window from the recipe, packs and labels from its files."""
    return ComponentPacks(component.name, component.window, tuple(files.shard_packs), files.stats[:, 1].astype(np.int64) // 1000)


def plan_view(recipe: Recipe, files: Sequence[ComponentFiles]) -> tuple[list[PlannedStage], list[ComponentPacks]]:
    """Stages and components of the recipe's view, in the recipe's order, after `check_components`.

    Raises: ViewError for a component of the recipe without train files; MixtureError as `plan_stages`.
    """
    check_components(files)
    train = {part.name: part for part in files if part.split == "train"}
    missing, extra = [c.name for c in recipe.components if c.name not in train], sorted(set(train) - {c.name for c in recipe.components})
    if missing or extra:
        raise ViewError(f"components without train shards: {missing}; shards of components the recipe does not know: {extra}")
    packs = [packs_of(component, train[component.name]) for component in recipe.components]
    caps = {c.name: c.max_epochs for c in recipe.components}
    return plan_stages(recipe.view.stages, components=packs, caps=caps, seed=recipe.view.seed), packs


def component_table(files: Sequence[ComponentFiles], *, seq_len: int) -> pa.Table:
    """For people: per component and split documents, tokens, lost tokens, packs, loss tokens and fill (0 to 1)."""
    check_components(files)
    rows = []
    for part in sorted(files, key=lambda f: (f.name, f.split)):
        packed = int(part.stats[:, 0].sum(dtype=np.int64))
        counts = {"n_docs": part.n_docs, "n_tokens": part.n_tokens, "n_packs": part.n_packs, "n_loss_tokens": part.n_loss_tokens}
        lost = sum(part.shard_tokens) - packed
        rows.append(
            {"component": part.name, "split": part.split, **counts, "n_lost_tokens": lost, "fill": packed / (len(part.stats) * seq_len)}
        )
    return pa.Table.from_pylist(rows)


def build_manifest(
    recipe: Recipe,
    *,
    release: Mapping[str, str],
    stage_versions: Mapping[str, Any],
    tokenizer: Mapping[str, str | int | None],
    files: Sequence[ComponentFiles],
    quarantine: Mapping[str, Any] | None = None,
    duplicates: Mapping[str, Any] | None = None,
    ledgers: Mapping[str, Any] | None = None,
    continues: Sequence[Mapping[str, Any]] = (),
) -> bytes:
    """The bytes of `views/<view_id>.json`; view_id is their sha256.

    Args: release, {"name", "release_id"}; stage_versions, stage -> version or {partition: version}; tokenizer, as
        `Tokenizer.manifest_entry` gives it; files, of both splits; quarantine, duplicates and ledgers, plain JSON of what
        justifies the view; continues, [{"view_id", "relation", "up_to_position"}].
    Raises: ViewError or MixtureError, when a component is partial or the stages cannot be built; nothing is returned that
        the loader would refuse.
    Invariant: a pure function of its arguments; the order of `files` changes nothing.
    """
    planned, packs = plan_view(recipe, files)
    view: View = recipe.view
    by_part = {(part.name, part.split): part for part in files}
    windows = {c.name: c.window for c in recipe.components}
    schedule = [{"from_position": 0, "global_batch": view.global_batch}]
    stages = [StageGeometry(stage.spec.name, stage.length, stage.weights) for stage in planned]
    manifest = {
        "format": FORMAT,
        "name": view.name,
        "recipe": {"recipe_id": recipe.recipe_id, "text": recipe.text},
        "release": dict(release),
        "stage_versions": dict(stage_versions),
        "tokenizer": dict(tokenizer),
        "components": [
            {**_entry(by_part[name, "train"]), "window": windows[name], "licences": dict(by_part[name, "train"].licences)}
            for name in windows
        ],
        "stages": [stage.manifest_entry() for stage in planned],
        "seq_len": recipe.packing.seq_len,
        "packing": _packing(recipe.packing),
        "attention": view.attention,
        "label_policy": view.label_policy,
        "loss_normalisation": view.loss_normalisation,
        "tail_batch": view.tail_batch,
        "seed": view.seed,
        "order": ORDER_VERSION,
        "batch_schedule": schedule,
        "split": "train",
        "validation": [_entry(by_part[name, "validation"]) for name in windows if (name, "validation") in by_part],
        "quarantine": _free(quarantine),
        "duplicates": _free(duplicates),
        "ledgers": _free(ledgers),
        "continues": [dict(item) for item in continues],
        "geometry": geometry_digest(
            seed=view.seed,
            order=ORDER_VERSION,
            seq_len=recipe.packing.seq_len,
            batch_schedule=[(change["from_position"], change["global_batch"]) for change in schedule],
            stages=stages,
            components=[component.geometry for component in packs],
        ),
    }
    data = canonical_json(manifest)
    try:
        parse(data).order_of({component.name: component.shard_packs for component in packs})
    except RunviewError as error:
        raise ViewError(f"view {view.name!r}: the loader would refuse this manifest: {error}") from error
    return data


def candidate_version(
    recipe: Recipe, *, release: str, tokenizer: str, shards_version: str, decisions_version: str, more: Mapping[str, Any] | None = None
) -> StageVersion:
    """Identity of a run view as candidate: the recipe's view, windows and caps over exact shards.

    Args: tokenizer, its name in the shards' partition; more, further values that enter the manifest (quarantine, duplicates,
        continues), as plain JSON.
    """
    return StageVersion(
        stage="view",
        state="run_view",
        partition={"view": recipe.view.name},
        code_version=CODE_VERSION,
        recipe_part={
            "recipe_id": recipe.recipe_id,
            "text_sha256": recipe.text_sha256,
            "view": to_json(recipe.view),
            "components": [{"name": c.name, "window": c.window, "max_epochs": to_json(c.max_epochs)} for c in recipe.components],
            "release": release,
            "tokenizer": tokenizer,
            "more": dict(more or {}),
        },
        parents={"shards": shards_version, "decisions": decisions_version},
    )


def build_record(
    *,
    view_id: str,
    created_at: str,
    run_ids: Sequence[str],
    git_commit: str | None,
    git_dirty: bool | None,
    packages: Mapping[str, str],
    delta_versions: Mapping[str, int],
    approvals: Sequence[Mapping[str, str]] = (),
) -> dict[str, Any]:
    """Plain JSON of `views/<view_id>.record.json`: what is true about the making of a view and enters no id.

    Args: created_at, ISO 8601 with its zone; git_commit and git_dirty, None where there is no repository; approvals,
        [{"document": base64 of the signed bytes, "signature": armoured}].
    """
    return {
        "view_id": view_id,
        "created_at": created_at,
        "run_ids": list(run_ids),
        "git": {"commit": git_commit, "dirty": git_dirty},
        "packages": dict(sorted(packages.items())),
        "delta_versions": dict(sorted(delta_versions.items())),
        "approvals": [dict(approval) for approval in approvals],
    }


def _problems(part: ComponentFiles) -> list[str]:
    what = part.name if part.split == "train" else f"{part.name} ({part.split})"
    if part.ledger is None:
        return [f"{what}: unfinished, no ledger of its tokens"]
    found = []
    try:
        part.ledger.close()
    except LedgerError as error:
        found.append(f"{what}: {error}")
    totals = {
        "documents": (part.n_docs, sum(part.shard_docs)),
        "tokens": (part.n_tokens, sum(part.shard_tokens)),
        "packs": (part.n_packs, sum(part.shard_packs)),
        "loss tokens": (part.n_loss_tokens, int(part.stats[:, 1].sum(dtype=np.int64)) // 1000),
        "ledger tokens": (part.ledger.total, sum(part.shard_tokens)),
        "packs in the stats": (part.n_packs, len(part.stats)),
        "documents by licence": (part.n_docs, sum(part.licences.values())),
    }
    for unit, (stated, counted) in totals.items():
        if stated is None:
            found.append(f"{what}: number of {unit} is missing, {counted} counted")
        elif stated != counted:
            found.append(f"{what}: {counted} != {stated} {unit}")
    for ordinal, counts in enumerate(zip(part.shard_docs, part.shard_tokens, part.shard_packs, strict=True)):
        if not all(counts):
            found.append(f"{what}: shard {ordinal} has {counts[0]} documents, {counts[1]} tokens, {counts[2]} packs, none may be 0")
    if not part.shard_tokens:
        found.append(f"{what}: no shards")
    return found


def _entry(part: ComponentFiles) -> dict[str, Any]:
    counts = {"n_docs": part.n_docs, "n_tokens": part.n_tokens, "n_packs": part.n_packs, "n_loss_tokens": part.n_loss_tokens}
    return {"name": part.name, "catalog": part.catalog_id, "stats": part.stats_id, **counts}


def _packing(packing: Packing) -> dict[str, Any]:
    plain: dict[str, Any] = to_json(packing)
    return {key: value for key, value in plain.items() if key != "seq_len"}


def _free(value: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if value is None else dict(value)
