"""Parquet: one record per row; the payload is the canonical JSON of the row's declared columns.

Row groups are read one after another in batches of about 32 MiB. Dates and times are written in ISO 8601, decimals as strings,
a float that JSON cannot hold (NaN, which some writers use for a missing value) as null.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.raw_evidence.readers.fields import Fault, Plan
from pipeline.raw_evidence.readers.records import Broken, Empty, IncompleteFile, Item, Record, plain_json
from pipeline.recipe import Source

MEDIA_TYPE = "application/json"
BATCH_BYTES = 32 * 2**20
MAX_BATCH_ROWS = 4096


def read(stream: BinaryIO, path: str, source: Source) -> Iterator[Item]:
    """Records of a Parquet file; the place is the row number. Null text is `Empty`.

    Raises: IncompleteFile `missing_column` before the first row, `corrupt_file` at the row where reading ends.
    """
    plan = Plan.of(source)
    row = 0
    try:
        file = pq.ParquetFile(pa.PythonFile(stream, mode="r"), pre_buffer=False, buffer_size=2**20)
        have = file.schema_arrow.names
        missing = [name for name in plan.columns if name not in have]
        if missing:
            raise IncompleteFile("missing_column", 0, f"expected columns {missing}, found {len(have)} columns without them")
        repeated = [name for name in plan.columns if have.count(name) > 1]
        if repeated:
            raise IncompleteFile("corrupt_file", 0, f"columns {repeated} stand more than once")
        for batch in _batches(file, plan):
            columns = [_values(batch.column(batch.schema.get_field_index(name))) for name in plan.columns]
            for values in zip(*columns, strict=True):
                yield _item(row, values, plan, source.max_payload_bytes)
                row += 1
        if row != file.metadata.num_rows:
            raise IncompleteFile("corrupt_file", row, f"the footer counts {file.metadata.num_rows} rows, read were {row}")
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        # the library's message can hold values of the file; its type cannot
        raise IncompleteFile("corrupt_file", row, f"row {row} and what follows cannot be read ({type(error).__name__})") from None


def _batches(file: pq.ParquetFile, plan: Plan) -> Iterator[pa.RecordBatch]:
    for group in range(file.metadata.num_row_groups):
        stored = file.metadata.row_group(group)
        size = sum(
            stored.column(i).total_uncompressed_size
            for i in range(stored.num_columns)
            if stored.column(i).path_in_schema.split(".")[0] in plan.columns
        )
        rows = max(1, min(MAX_BATCH_ROWS, BATCH_BYTES * max(1, stored.num_rows) // max(1, size)))
        yield from file.iter_batches(batch_size=rows, row_groups=[group], columns=list(plan.columns), use_threads=False)


def _values(column: pa.Array) -> list[Any]:
    """Python values; a value that is not UTF-8, which Parquet does not check, stands as its UnicodeDecodeError."""
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        column = column.cast(pa.timestamp("us", tz=column.type.tz), safe=False)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return [_decoded(value) for value in column.to_pylist()]
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        return [_one_value(column[i]) for i in range(len(column))]
    return values


def _decoded(value: bytes | None) -> str | UnicodeDecodeError | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError as error:
        return error


def _one_value(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError as error:
        return error


def _item(number: int, values: tuple[Any, ...], plan: Plan, max_bytes: int) -> Item:
    row = dict(zip(plan.columns, values, strict=True))
    wrong = [name for name, value in row.items() if isinstance(value, UnicodeDecodeError)]
    if wrong:
        received = b"\n".join(bytes(row[name].object) for name in wrong)
        return Broken.of(number, "not_utf8", f"row {number}: column {wrong[0]!r} is not UTF-8", received)
    payload = plain_json(row)
    if len(payload) > max_bytes:
        return Broken.of(number, "too_large", f"row {number}: {len(payload)} bytes, expected at most {max_bytes}", payload)
    facts = plan.read(row)
    if facts is None:
        return Empty(number)
    if isinstance(facts, Fault):
        return Broken.of(number, facts.reason, f"row {number}: {facts.detail}", payload)
    return Record(number, payload, MEDIA_TYPE, "utf-8", facts.record, facts.uri, facts.collected_at, facts.licence, facts.keys, facts.meta)
