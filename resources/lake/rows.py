"""What the lake does with rows in memory: digests, comparison, and reading in the order of the key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.ids import content_digest
from pipeline.schemas import TableSpec

if TYPE_CHECKING:  # it imports pandas, 0.3 s, and nothing needs it until rows are read
    import pyarrow.dataset as ds

SLAB_BYTES = 2**30  # above this, narrow string offsets (2 GiB) could overflow while rows are gathered


@dataclass(frozen=True)
class Prepared:
    """Rows of one table, conformed and checked, with the digest of their content."""

    spec: TableSpec
    rows: pa.Table
    content_sha256: str


def digest(rows: pa.Table, key: Sequence[str]) -> str:
    """`content_digest`, also for tables whose strings pass 2 GiB (the digest does not depend on the offset width)."""
    return content_digest(widened(rows) if rows.nbytes > SLAB_BYTES else rows, key)


def widened(rows: pa.Table) -> pa.Table:
    """The same rows with 64-bit offsets in plain string and binary columns."""
    wide = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    return rows.cast(pa.schema([field.with_type(wide.get(field.type, field.type)) for field in rows.schema]))


def without_new_columns(prepared: Prepared, columns: Sequence[str]) -> Prepared:
    """The rows reduced to `columns`, when all others hold only nulls: columns the schema gained since."""
    extra = [name for name in prepared.rows.column_names if name not in columns]
    if not extra or any(prepared.rows[name].null_count != len(prepared.rows) for name in extra):
        return prepared
    rows = prepared.rows.select([name for name in prepared.rows.column_names if name in columns])
    return Prepared(prepared.spec, rows, digest(rows, prepared.spec.key))


def select(spec: TableSpec, names: Sequence[str], parts: Sequence[pa.Table]) -> pa.Table:
    """The parts as one table with these columns of the spec, missing nullable ones filled with nulls."""
    part = TableSpec(spec.state, spec.name, spec.row, (), (), tuple(c for name in names for c in spec.columns if c.name == name))
    if not parts:
        return part.schema.empty_table()
    return pa.concat_tables([part.conform(table) for table in parts])


def polars_schema(spec: TableSpec) -> dict[str, pl.DataType]:
    """Column names and polars types of a spec."""
    frame = pl.from_arrow(spec.schema.empty_table())
    assert isinstance(frame, pl.DataFrame)
    return dict(frame.schema)


def compare(spec: TableSpec, rows: pa.Table, there: pa.Table) -> tuple[int, list[tuple[Any, ...]]]:
    """How many keys of `rows` are not `there`, and the keys of those that are with other content, in order.

    Times and run ids are not compared: they say who wrote a row first.
    """
    new, old = pl.from_arrow(rows), pl.from_arrow(there)
    assert isinstance(new, pl.DataFrame)
    assert isinstance(old, pl.DataFrame)
    key = list(spec.key)
    judged = [c.name for c in spec.columns if c.name not in key and c.name != "run_id" and not pa.types.is_timestamp(c.type)]
    both = new.join(old, on=key, how="inner", suffix=":there")
    differs = pl.any_horizontal([pl.lit(False), *(pl.col(name).ne_missing(pl.col(f"{name}:there")) for name in judged)])
    changed = both.filter(differs).select(key).sort(key).rows()
    return new.height - both.height, changed


def ordered(
    spec: TableSpec, source: ds.Dataset, where: pc.Expression, *, names: Sequence[str], batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Rows in the order of the spec's key, whatever the order and number of files, without holding the table.

    The keys are read first. Then slabs of neighbouring keys are read, each at least a row group long, so that a row group is
    decoded about twice when the files are laid out by key; statistics of the first key column skip the others.
    """
    first = spec.key[0]
    keys = source.to_table(columns=[first], filter=where)[first].combine_chunks()
    if not len(keys):
        return
    ranked = keys.take(pc.sort_indices(keys))
    group_rows = max((group.num_rows for fragment in source.get_fragments() for group in fragment.row_groups), default=1)
    slab_rows = max(batch_rows, group_rows)
    there = [name for name in dict.fromkeys([*names, *spec.key]) if name in source.schema.names]
    rest = select(spec, names, [])
    for low, high in _slabs(ranked, slab_rows):
        inside = where & (pc.field(first) >= low) & (pc.field(first) <= high)
        slab = source.to_table(columns=there, filter=inside)
        slab = slab.take(pc.sort_indices(slab, [(name, "ascending") for name in spec.key]))
        rest = pa.concat_tables([rest, select(spec, names, [slab.select([name for name in names if name in there])])])
        n_whole = len(rest) - len(rest) % batch_rows
        yield from _cut(rest.slice(0, n_whole), batch_rows)
        rest = rest.slice(n_whole)
    yield from _cut(rest, batch_rows)


def _slabs(ranked: pa.Array, slab_rows: int) -> Iterator[tuple[pa.Scalar, pa.Scalar]]:
    """Closed ranges of the sorted first key that hold about `slab_rows` rows each and share no value."""
    starts = np.arange(0, len(ranked), slab_rows)
    bounds = pc.unique(ranked.take(pa.array(starts)))
    begin = 0
    for n in range(len(bounds)):
        stop = len(ranked)
        if n + 1 < len(bounds):
            stop = int(pc.index(ranked, bounds[n + 1]).as_py())
        yield ranked[begin], ranked[stop - 1]
        begin = stop


def _cut(table: pa.Table, batch_rows: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(table), batch_rows):
        piece = table.slice(start, batch_rows).combine_chunks()
        yield pa.RecordBatch.from_arrays([column.chunk(0) for column in piece.columns], schema=piece.schema)
