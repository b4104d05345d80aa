"""Stage `decisions`: keep or drop of every document of a release, with all reasons and one primary category."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.cleaned_docs import reasons
from pipeline.errors import ContractError
from pipeline.ledger import Ledger
from pipeline.recipe import Decisions, to_json
from pipeline.schemas import DECISIONS
from pipeline.stages import StageVersion

CODE_VERSION = "1"
COLUMNS = ("doc_id", "version", "source", "decision", "reasons")
"""What `decisions` reads of the documents."""


def decisions_version(*, release: str, decisions: Decisions, clusters: str, documents: Mapping[str, str]) -> StageVersion:
    """Version of `decisions` of a release. `clusters`: its version; `documents`: member (source/date) -> version.

    Raises: RecipeError when the priority does not name every category of reasons once.
    """
    reasons.check_priority(decisions.priority)
    return StageVersion(
        stage="decisions",
        state="cleaned_docs",
        partition={"release": release},
        code_version=CODE_VERSION,
        recipe_part=to_json(decisions),
        parents={"clusters": clusters, **{f"documents/{member}": version for member, version in documents.items()}},
    )


def decisions(documents: pa.Table, clusters: pa.Table, *, release: str, decisions: Decisions, version: str) -> tuple[pa.Table, Ledger]:
    """DECISIONS of a release, ordered by doc_id, and the closed ledger of its documents.

    Local reasons come first. A document is a duplicate when another one survives for its text and that one is kept by its own
    rules: similarity to a document that is dropped decides nothing. Reason `duplicate.exact`, value and threshold the
    similarity.
    Args: documents, `COLUMNS` of all members; clusters, CLUSTERS of the release, one row per document.
    Raises: ContractError when the two tables do not hold the same documents; RecipeError for an incomplete priority.
    """
    reasons.check_priority(decisions.priority)
    reasons.check_decisions(documents["decision"])
    documents = documents.select(list(COLUMNS)).sort_by("doc_id")
    n = len(documents)
    local = reasons.to_rows(documents["reasons"])
    frame = pl.DataFrame(documents.select(["doc_id", "version", "source", "decision"])).with_row_index("row")
    group = pl.DataFrame(clusters.select(["doc_id", "cluster_id", "survivor_id", "similarity", "method", "split"]))
    survivor = frame.select(survivor_id=pl.col("doc_id"), survivor_kept=pl.col("decision") == "keep")
    joined = frame.join(group, on="doc_id", how="left").join(survivor, on="survivor_id", how="left").sort("row")
    missing = joined.filter(pl.col("survivor_kept").is_null())
    if missing.height or group.height != n or joined.height != n:
        raise ContractError(
            f"release {release}: {n} documents, {group.height} rows of clusters, {missing.height} documents without a cluster or "
            f"survivor, first {missing['doc_id'].head(5).to_list()}; make clusters again from the same members"
        )
    without = frame.filter((pl.col("decision") == "drop") != pl.col("row").is_in(local["row"].unique().implode()))
    if without.height:
        raise ContractError(f"release {release}: decision and reasons disagree in {without.height} documents, first {without['doc_id'][0]}")
    twins = joined.filter((pl.col("doc_id") != pl.col("survivor_id")) & pl.col("survivor_kept")).select(
        row=pl.col("row").cast(pl.Int64), rule="duplicate." + pl.col("method"), value=pl.col("similarity"), threshold=pl.col("similarity")
    )
    every = pl.concat([local, twins])
    primary = reasons.primary(every, n, priority=decisions.priority)
    table = DECISIONS.conform(
        pa.table(
            {
                "doc_id": documents["doc_id"],
                "version": pa.array([version] * n, pa.string()),
                "release": pa.array([release] * n, pa.string()),
                "source": documents["source"],
                "documents_version": documents["version"],
                "decision": pc.if_else(primary.is_null().to_arrow(), "keep", "drop"),
                "primary_reason": primary.to_arrow(),
                "reasons": reasons.to_column([every], n),
                "cluster_id": joined["cluster_id"].to_arrow(),
                "split": joined["split"].to_arrow(),
            }
        )
    )
    counts = dict(primary.drop_nulls().value_counts().iter_rows())
    rules = dict(every["rule"].value_counts().sort("rule").iter_rows())
    dropped = {name: counts.get(name, 0) for name in decisions.priority}
    return table, Ledger("documents", "made", n, {"kept": primary.null_count(), "dropped": dropped}, {"rules": rules}).close()
