"""How two run views differ: their mixtures, and which documents are in which component and split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from runview.manifest import Manifest

COLUMNS = ("doc_id", "component", "split")
"""What `membership` reads of each side: where the shards of a view hold a document."""
FIELDS = ("seq_len", "attention", "label_policy", "loss_normalisation", "tail_batch", "seed", "order", "split", "geometry", "recipe_id")


def membership(before: pl.DataFrame, after: pl.DataFrame) -> dict[str, Any]:
    """Documents added, removed, and moved between components or splits, by place (`component/split`).

    Returns: n_before, n_after, stayed; added, removed: place -> documents; moved: rows {before, after, n_docs}, most first.
    """
    place = pl.concat_str("component", pl.lit("/"), "split")
    old, new = (frame.select("doc_id", place=place) for frame in (before, after))
    both = old.join(new, on="doc_id", how="inner", suffix="_after").rename({"place": "before", "place_after": "after"})
    moved = both.filter(pl.col("before") != pl.col("after"))
    counted = moved.group_by("before", "after").len("n_docs").sort(["n_docs", "before", "after"], descending=[True, False, False])
    return {
        "n_before": old.height,
        "n_after": new.height,
        "stayed": both.height - moved.height,
        "added": _by_place(new.join(old, on="doc_id", how="anti")),
        "removed": _by_place(old.join(new, on="doc_id", how="anti")),
        "moved": [{**row, "n_docs": int(row["n_docs"])} for row in counted.to_dicts()],
    }


def mixture(before: Manifest, after: Manifest) -> list[dict[str, Any]]:
    """Per stage and component of either view: declared and achieved share, packs, and tokens of the component, before and after.

    None where a view has no such stage or component. Stages are matched by name, in the order of `after`, then those only `before` has.
    """
    rows = []
    old, new = _shares(before), _shares(after)
    for stage, component in dict.fromkeys((*new, *old)):
        a, b = old.get((stage, component)), new.get((stage, component))
        row: dict[str, Any] = {"stage": stage, "component": component}
        for name in ("declared_share", "achieved_share", "packs", "n_docs", "n_tokens"):
            row[name] = {"before": a[name] if a else None, "after": b[name] if b else None}
        row["same"] = a == b
        rows.append(row)
    return rows


def settings(before: Manifest, after: Manifest) -> dict[str, dict[str, Any]]:
    """Fields of the manifests that differ and are no counts: name -> {before, after}."""
    pairs = {name: (getattr(before, name), getattr(after, name)) for name in FIELDS}
    pairs["tokenizer"] = (before.tokenizer.tokenizer_id, after.tokenizer.tokenizer_id)
    pairs["release_id"] = (before.release_id, after.release_id)
    pairs["positions"] = (before.length, after.length)
    pairs["batch_schedule"] = tuple([(c.from_position, c.global_batch) for c in view.batch_schedule] for view in (before, after))  # type: ignore[assignment]
    return {name: {"before": a, "after": b} for name, (a, b) in pairs.items() if a != b}


def _shares(view: Manifest) -> dict[tuple[str, str], dict[str, Any]]:
    components = {component.name: component for component in view.components}
    out = {}
    for stage in view.stages:
        declared: Mapping[str, str] = stage.shares or {}
        for name in components:
            if name in stage.achieved_shares or name in declared:
                out[stage.name, name] = {
                    "declared_share": declared.get(name),
                    "achieved_share": stage.achieved_shares.get(name),
                    "packs": stage.counts.get(name, 0),
                    "n_docs": components[name].n_docs,
                    "n_tokens": components[name].n_tokens,
                }
    return out


def _by_place(frame: pl.DataFrame) -> dict[str, int]:
    return {place: int(n) for place, n in frame.group_by("place").len().sort(["len", "place"], descending=[True, False]).iter_rows()}
