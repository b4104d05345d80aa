"""Every identity of the product is made here, and nowhere else.

Unless it is of raw bytes, an id is the lower-case hex sha256 of the canonical JSON (RFC 8785) of `[thing, field, ...]`.
Row order, absolute paths, Python `hash()` and polars `hash()` never enter an id.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import rfc8785


def canonical_json(value: Any) -> bytes:
    """RFC 8785 bytes of a JSON value.

    Raises: rfc8785.CanonicalizationError for a value JSON cannot hold (NaN, integers beyond 2^53, lone surrogates).
    """
    return rfc8785.dumps(value)


def sha256_hex(data: bytes | memoryview) -> str:
    """Lower-case hex sha256 of raw bytes."""
    return hashlib.sha256(data).hexdigest()


def digest(thing: str, *fields: Any) -> str:
    """The id of a thing: sha256 hex of the canonical JSON `[thing, field, ...]`."""
    return sha256_hex(canonical_json([thing, *fields]))


# For arrays of strings and integers the standard encoder writes the same bytes as RFC 8785 (a property test says so) and is
# thirty times faster than the pure-Python canonicaliser; ids of rows are made with it.
_encode_row = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def row_digest(thing: str, *fields: str | int) -> str:
    """`digest` for strings and integers only, fast enough for one call per row."""
    return hashlib.sha256(_encode_row([thing, *fields]).encode("utf-8")).hexdigest()


def evidence_id(source: str, snapshot: date, record_key: str, payload_sha256: str) -> str:
    """Identity of one payload as received. `record_key`: container path in the inventory, and the place in it."""
    return row_digest("evidence", source, snapshot.isoformat(), record_key, payload_sha256)


def doc_id(evidence: str, ordinal: int) -> str:
    """Identity of the `ordinal`-th document of a payload. Stable across cleaning versions."""
    return row_digest("doc", evidence, ordinal)


def reject_id(state: str, source: str, snapshot: date, record_key: str, reason: str) -> str:
    """Identity of a record that could not become evidence or a document."""
    return row_digest("reject", state, source, snapshot.isoformat(), record_key, reason)


def text_sha256(texts: pa.Array) -> list[str]:
    """sha256 hex of the UTF-8 bytes of each string. Shape: one per row. Raises ValueError on nulls."""
    return [sha256_hex(view) for view in _value_views(texts)]


def _value_views(values: pa.Array) -> Iterable[memoryview]:
    if values.null_count:
        raise ValueError(f"expected no nulls, found {values.null_count}")
    wide = values.cast(pa.large_binary() if pa.types.is_large_binary(values.type) else _wide(values.type))
    offsets = np.frombuffer(wide.buffers()[1], dtype=np.int64, count=len(wide) + 1, offset=wide.offset * 8)
    data = memoryview(wide.buffers()[2] or b"")
    return (data[start:stop] for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True))


def _wide(kind: pa.DataType) -> pa.DataType:
    return pa.large_string() if pa.types.is_string(kind) or pa.types.is_large_string(kind) else pa.large_binary()


def content_digest(table: pa.Table, key: Sequence[str]) -> str:
    """Digest of a table's content, whatever the order and batching of its rows.

    Rows are sorted by `key`; then, column by column in schema order, one sha256 runs over the validity bytes, int64 lengths
    and value bytes, nested types child by child. Nothing is done per row.

    Args: table with non-null unique `key` columns. Returns: sha256 hex.
    """
    ordered = table.sort_by([(name, "ascending") for name in key]) if len(table) else table
    outer = hashlib.sha256()
    for field, column in zip(ordered.schema, ordered.columns, strict=True):
        inner = hashlib.sha256()
        merged = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        _feed(inner, merged)
        outer.update(canonical_json([field.name, str(_logical(field.type)), inner.hexdigest()]))
    return outer.hexdigest()


def _logical(kind: pa.DataType) -> pa.DataType:
    """The type without its offset width, so that large and small layouts of the same values agree."""
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("item", _logical(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_logical(kind.key_type), _logical(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _logical(f.type)) for f in kind])
    return kind


def _feed(hasher: Any, values: pa.Array) -> None:
    valid = np.asarray(values.is_valid(), dtype=np.uint8)
    hasher.update(len(values).to_bytes(8, "little"))
    hasher.update(valid)
    kind = values.type
    if pa.types.is_struct(kind):
        # flatten() pushes the parent's nulls into the children, so hidden values under a null cannot differ
        for child in values.flatten():
            _feed(hasher, child)
    elif pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        plain = values.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))) if pa.types.is_map(kind) else values
        lengths = plain.value_lengths().fill_null(0)
        hasher.update(np.asarray(lengths, dtype=np.int64))
        _feed(hasher, plain.flatten())
    elif pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        wide = values.fill_null("" if _wide(kind) == pa.large_string() else b"").cast(_wide(kind))
        offsets = np.frombuffer(wide.buffers()[1], dtype=np.int64, count=len(wide) + 1, offset=wide.offset * 8)
        hasher.update(np.diff(offsets))
        hasher.update(memoryview(wide.buffers()[2] or b"")[int(offsets[0]) : int(offsets[-1])])
    elif pa.types.is_boolean(kind):
        hasher.update(np.asarray(values.fill_null(False), dtype=np.uint8))
    else:
        width = kind.bit_width // 8
        signed = {1: pa.int8(), 2: pa.int16(), 4: pa.int32(), 8: pa.int64()}
        if pa.types.is_floating(kind):
            plain_values = values.fill_null(0.0).to_numpy(zero_copy_only=False)
        else:
            plain_values = values.view(signed[width]).fill_null(0).to_numpy(zero_copy_only=False)
        hasher.update(np.ascontiguousarray(plain_values))
