"""Reasons: every rule a document failed, as `category.rule` with its value and threshold; lists in tables, rows in between."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import numpy as np
import polars as pl
import pyarrow as pa

from pipeline.errors import ContractError, RecipeError
from pipeline.schemas import REASONS

# In the order in which the stages come to them. The local ledger of `documents` takes the first as primary.
LOCAL_CATEGORIES = ("empty", "licence", "language", "quality")
CATEGORIES = (*LOCAL_CATEGORIES, "duplicate")

ROWS = {"row": pl.Int64, "rule": pl.String, "value": pl.Float64, "threshold": pl.Float64}


def failed(rows: Sequence[int] | np.ndarray, rule: str, *, value: np.ndarray | None, threshold: float | None) -> pl.DataFrame:
    """Reason rows for one rule. `value` is per row of `rows`; NaN (not measured) becomes null."""
    n = len(rows)
    values = pl.Series("value", value if value is not None else [None] * n, dtype=pl.Float64).fill_nan(None)
    return pl.DataFrame(
        {
            "row": pl.Series(np.asarray(rows, dtype=np.int64), dtype=pl.Int64),
            "rule": pl.Series([rule] * n, dtype=pl.String),
            "value": values,
            "threshold": pl.Series([threshold] * n, dtype=pl.Float64),
        },
        schema=ROWS,
    )


def to_column(parts: Sequence[pl.DataFrame], n: int) -> pa.Array:
    """List column (REASONS) of `n` documents; inside a document reasons keep the order of `parts`."""
    frame = pl.concat([pl.DataFrame(schema=ROWS), *parts]).sort("row", maintain_order=True)
    offsets = np.zeros(n + 1, dtype=np.int32)
    np.cumsum(np.bincount(frame["row"].to_numpy(), minlength=n), out=offsets[1:])
    plain = frame.drop("row").to_arrow()
    fields = [plain[name].combine_chunks().cast(REASONS.value_type.field(name).type) for name in ("rule", "value", "threshold")]
    items = pa.StructArray.from_arrays(fields, fields=list(REASONS.value_type))
    return pa.ListArray.from_arrays(pa.array(offsets), items, type=REASONS)


def to_rows(column: pa.Array | pa.ChunkedArray) -> pl.DataFrame:
    """Inverse of `to_column`: one row per reason, in order."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    counts = np.asarray(column.value_lengths().fill_null(0), dtype=np.int64)
    items = column.flatten()
    return pl.DataFrame(
        {
            "row": np.repeat(np.arange(len(column), dtype=np.int64), counts),
            **{name: pl.Series(items.field(name), dtype=kind) for name, kind in ROWS.items() if name != "row"},
        },
        schema=ROWS,
    )


def category() -> pl.Expr:
    """Category of a rule name: what stands before the first full stop."""
    return pl.col("rule").str.split_exact(".", 1).struct.field("field_0")


def primary(rows: pl.DataFrame, n: int, *, priority: Sequence[str]) -> pl.Series:
    """Primary category of each of `n` documents: the first in `priority` among its reasons; null without reasons.

    Raises: RecipeError for a category that the priority does not name.
    """
    rank = pl.DataFrame(
        {"category": list(priority), "rank": np.arange(len(priority), dtype=np.int64)}, schema_overrides={"category": pl.String}
    )
    ranked = rows.select("row", category=category()).join(rank, on="category", how="left")
    unknown = ranked.filter(pl.col("rank").is_null())["category"].unique().sort().to_list()
    if unknown:
        raise RecipeError(f"decisions.priority: category {unknown[0]!r} has reasons but no place; name it among {list(priority)}")
    best = ranked.group_by("row").agg(pl.col("rank").min())
    out = np.full(n, -1, dtype=np.int64)
    out[best["row"].to_numpy()] = best["rank"].to_numpy()
    return pl.Series("primary_reason", out).replace_strict({-1: None, **dict(enumerate(priority))}, return_dtype=pl.String)


def check_priority(priority: Sequence[str]) -> None:
    """Raises RecipeError unless `priority` names every category exactly once and no other, with the nearest name."""
    for name in priority:
        if name not in CATEGORIES:
            raise RecipeError(f"decisions.priority: {name!r} is no category of reasons{nearest(name, CATEGORIES)}")
    missing = [name for name in CATEGORIES if name not in priority]
    if missing or len(set(priority)) != len(priority):
        raise RecipeError(f"decisions.priority: each category once, missing {missing}, found {list(priority)}")


def nearest(name: str, known: Sequence[str]) -> str:
    """`, did you mean …?` or the list of what is known."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f", did you mean {near[0]!r}?" if near else f"; known are {sorted(known)}"


def check_decisions(decisions: pa.ChunkedArray) -> None:
    """Raises ContractError unless every decision is keep or drop."""
    found = set(decisions.unique().to_pylist()) - {"keep", "drop"}
    if found:
        raise ContractError(f"column decision: expected keep or drop, found {len(found)} other values")
