"""How the decisions about documents differ between two releases, or two versions of one."""

from __future__ import annotations

from typing import Any

import polars as pl

COLUMNS = ("doc_id", "decision", "primary_reason")
"""What `changes` reads of each side."""
KEPT = "kept"


def changes(before: pl.DataFrame, after: pl.DataFrame) -> dict[str, Any]:
    """Documents that are new, gone, and that changed side, and why.

    Args: `COLUMNS` of each side, one row per document.
    Returns: n_before, n_after, new, gone (documents by where they stand: `kept` or their primary reason), same, and `changed`: rows
        {before, after, n_docs} for documents whose standing differs, most first; `to_kept` and `to_dropped` count those that changed side.
    """
    standing = pl.when(pl.col("decision") == "keep").then(pl.lit(KEPT)).otherwise(pl.col("primary_reason"))
    old, new = (frame.select("doc_id", standing=standing) for frame in (before, after))
    both = old.join(new, on="doc_id", how="inner", suffix="_after").rename({"standing": "before", "standing_after": "after"})
    differs = both.filter(pl.col("before") != pl.col("after"))
    counted = differs.group_by("before", "after").len("n_docs").sort(["n_docs", "before", "after"], descending=[True, False, False])
    return {
        "n_before": old.height,
        "n_after": new.height,
        "new": _by_standing(new.join(old, on="doc_id", how="anti")),
        "gone": _by_standing(old.join(new, on="doc_id", how="anti")),
        "same": both.height - differs.height,
        "to_kept": differs.filter(pl.col("after") == KEPT).height,
        "to_dropped": differs.filter(pl.col("before") == KEPT).height,
        "changed": [{**row, "n_docs": int(row["n_docs"])} for row in counted.to_dicts()],
    }


def _by_standing(frame: pl.DataFrame) -> dict[str, int]:
    counted = frame.group_by("standing").len().sort(["len", "standing"], descending=[True, False])
    return {standing: int(n) for standing, n in counted.iter_rows()}
