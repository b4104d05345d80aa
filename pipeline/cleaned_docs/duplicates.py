"""Stage `clusters`: documents with the same text over a whole release, the survivor of each text, and its split."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
import pyarrow as pa

from pipeline.cleaned_docs.reasons import check_decisions, nearest
from pipeline.cleaned_docs.split import splits
from pipeline.errors import ContractError, RecipeError
from pipeline.recipe import Duplicates, Split, to_json
from pipeline.schemas import CLUSTERS
from pipeline.stages import StageVersion

CODE_VERSION = "1"
COLUMNS = ("doc_id", "text_sha256", "n_chars", "licence", "collected_at", "decision")
"""What `clusters` reads of the documents."""

# name -> (column or expression, descending)
PRIORITIES: dict[str, tuple[pl.Expr, bool]] = {
    "longest": (pl.col("n_chars"), True),
    "licensed": (pl.col("licence") != "unknown", True),
    "earliest": (pl.col("collected_at"), False),
    "doc_id": (pl.col("doc_id"), False),
}


def clusters_version(*, release: str, duplicates: Duplicates, split: Split, documents: Mapping[str, str]) -> StageVersion:
    """Version of `clusters` of a release. `documents`: member (source/date) -> version of its documents."""
    check_duplicates(duplicates)
    return StageVersion(
        stage="clusters",
        state="cleaned_docs",
        partition={"release": release},
        code_version=CODE_VERSION,
        recipe_part={"duplicates": to_json(duplicates), "split": to_json(split)},
        parents={f"documents/{member}": version for member, version in documents.items()},
    )


def check_duplicates(duplicates: Duplicates) -> None:
    """Raises RecipeError for an unknown priority, or one that leaves ties."""
    for name in duplicates.priority:
        if name not in PRIORITIES:
            raise RecipeError(f"duplicates.priority: {name!r} is not known{nearest(name, tuple(PRIORITIES))}")
    if not duplicates.priority or duplicates.priority[-1] != "doc_id":
        raise RecipeError(f"duplicates.priority must end with 'doc_id', which leaves no ties, found {list(duplicates.priority)}")


def clusters(documents: pa.Table, *, release: str, duplicates: Duplicates, split: Split, version: str) -> pa.Table:
    """Cluster, survivor and split of every document of a release (CLUSTERS), ordered by doc_id.

    A document that its own rules drop never survives over a kept one. A document alone with its text is a cluster of one.
    Without `duplicates.exact` every document is.
    Args: documents, `COLUMNS` of all members of the release.
    Invariant: the order and batching of the input change nothing.
    """
    check_duplicates(duplicates)
    check_decisions(documents["decision"])
    frame = pl.DataFrame(documents.select(list(COLUMNS)))
    if frame["doc_id"].n_unique() != frame.height:
        twice = frame.filter(pl.col("doc_id").is_duplicated())["doc_id"].unique().sort().head(5).to_list()
        raise ContractError(f"release {release}: documents stand in more than one member, first {twice}; name each snapshot once")
    text = pl.col("text_sha256") if duplicates.exact else pl.col("doc_id")
    order = [(pl.col("decision") != "keep", False), *(PRIORITIES[name] for name in duplicates.priority)]
    ordered = frame.select("doc_id", text.alias("text"), *(key.alias(f"key{i}") for i, (key, _) in enumerate(order))).sort(
        [f"key{i}" for i in range(len(order))], descending=[down for _, down in order]
    )
    groups = ordered.group_by("text", maintain_order=True).agg(
        cluster_id=pl.col("doc_id").min(), cluster_size=pl.len().cast(pl.Int64), survivor_id=pl.col("doc_id").first()
    )
    groups = groups.with_columns(splits(groups["cluster_id"], split))
    made = ordered.select("doc_id", "text").join(groups, on="text", how="left").sort("doc_id")
    return CLUSTERS.conform(
        made.select(
            "doc_id",
            pl.lit(version).alias("version"),
            pl.lit(release).alias("release"),
            "cluster_id",
            "cluster_size",
            "survivor_id",
            pl.lit(1.0).alias("similarity"),
            pl.when(pl.col("doc_id") == pl.col("survivor_id")).then(pl.lit("self")).otherwise(pl.lit("exact")).alias("method"),
            "split",
        )
    )
