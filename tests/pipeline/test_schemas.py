"""Schemas: only types Delta gives back unchanged, keys checked, nothing readable in statistics."""

import polars as pl
import pyarrow as pa
import pytest

from pipeline.errors import ContractError
from pipeline.schemas import DOCUMENTS, TABLES, TIMESTAMP

READABLE = {"text", "payload", "uri", "deletion_keys", "meta", "record_key", "detail", "document", "signature"}


def _allowed(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind):
        return _allowed(kind.value_type)
    if pa.types.is_map(kind):
        return _allowed(kind.key_type) and _allowed(kind.item_type)
    if pa.types.is_struct(kind):
        return all(_allowed(field.type) for field in kind)
    return kind in (pa.int32(), pa.int64(), pa.float64(), pa.bool_(), pa.string(), pa.binary(), pa.date32(), TIMESTAMP)


@pytest.mark.parametrize("spec", TABLES.values(), ids=TABLES.keys())
def test_columns(spec) -> None:  # type: ignore[no-untyped-def]
    assert all(_allowed(column.type) for column in spec.columns)
    assert set(spec.key) <= {c.name for c in spec.columns}
    assert not any(c.nullable for c in spec.columns if c.name in (*spec.key, *spec.partition_by))
    assert all(column.doc for column in spec.columns)
    assert not READABLE & set(spec.stats_columns)


def test_conform_names_missing_unknown_and_null_columns() -> None:
    with pytest.raises(ContractError, match=r"unknown columns \['colour'\]"):
        DOCUMENTS.conform(pa.table({"colour": ["red"]}))
    spec = TABLES["control/releases"]
    row = {"name": "a", "release_id": "r", "members": "[]", "recipe": "d", "run_id": "x"}
    frame = pl.DataFrame([row | {"sealed_at": None}], schema_overrides={"sealed_at": pl.Datetime("us", "UTC")})
    with pytest.raises(ContractError, match="sealed_at has 1 nulls"):
        spec.conform(frame)


def test_conform_gives_plain_types_back_from_polars() -> None:
    spec = TABLES["tokenized_shards/catalogs"]
    numbers = {c.name: 1 for c in spec.columns if c.type == pa.int64()}
    strings = {c.name: "x" for c in spec.columns if c.type == pa.string()}
    frame = pl.DataFrame([{**numbers, **strings, "licences": [{"key": "MIT", "value": 2}]}])
    table = spec.conform(frame)
    assert table.schema == spec.schema
    assert table["licences"].to_pylist() == [[("MIT", 2)]]


def test_duplicate_keys_are_named() -> None:
    spec = TABLES["control/approvals"]
    table = pa.table({"approval_id": ["a", "b", "a"]})
    with pytest.raises(ContractError, match=r"1 keys stand more than once, first \[\('a', 2\)\]"):
        spec.check_keys(table)
