"""Rows for any table of the schema, made from a seed; the same arguments give the same rows."""

from __future__ import annotations

import hashlib
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa

from pipeline.ledger import Ledger
from pipeline.schemas import STRINGS, TableSpec
from pipeline.stages import StageVersion

NOW = datetime(2026, 11, 2, 3, 4, 5, tzinfo=UTC)


def stage(name: str = "documents", state: str = "cleaned_docs", *, source: str = "web", code: str = "1") -> StageVersion:
    """A stage version; another `code` is another version."""
    return StageVersion(name, state, {"source": source, "snapshot": "2026-11-01"}, code)


def ledger(n_made: int, n_kept: int | None = None) -> Ledger:
    """A documents ledger that closes when nothing else is said."""
    return Ledger("documents", "made", n_made, {"kept": n_made if n_kept is None else n_kept})


def rows(spec: TableSpec, n: int, version: str, *, source: str = "web", marker: str = "", start: int = 0) -> pa.Table:
    """`n` rows of a table; `marker` stands in every column that must not reach logs or errors."""
    out: dict[str, list[Any]] = {}
    for column in spec.columns:
        out[column.name] = [_value(column.name, column.type, i, "" if column.stats else marker) for i in range(start, start + n)]
    for name, value in (("version", version), ("source", source), ("release", "demo")):
        if name in out and spec.path != "control/snapshots":
            out[name] = [value] * n
    return spec.conform(pa.table(out, schema=pa.schema([pa.field(c.name, c.type) for c in spec.columns])))


def _value(name: str, kind: pa.DataType, i: int, marker: str) -> Any:
    if name.endswith(("_id", "sha256")):
        return hashlib.sha256(f"{name}{i}".encode()).hexdigest()
    word = f"{marker}{name}-{i:06d}"
    if pa.types.is_string(kind):
        return word
    if pa.types.is_binary(kind):
        return word.encode()
    if pa.types.is_boolean(kind):
        return i % 2 == 0
    if pa.types.is_date(kind):
        return date(2026, 11, 1)
    if pa.types.is_timestamp(kind):
        return NOW
    if pa.types.is_integer(kind):
        return i
    if pa.types.is_floating(kind):
        return i / 4
    if pa.types.is_map(kind):
        value = {pa.int64(): i, pa.float64(): i / 8}.get(kind.item_type, word)
        return [(f"key{i % 3}", value)]
    if kind == STRINGS:
        return [word, f"{word}-b"]
    return [{"rule": "min_words", "value": float(i), "threshold": None}]
