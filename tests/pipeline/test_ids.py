"""Identities: canonical, fast path equal to the slow one, content digests independent of order and layout."""

import hashlib
from datetime import date

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import ids
from pipeline.schemas import NUMBER_MAP, REASONS

TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]))
INTEGER = st.integers(min_value=-(2**53) + 1, max_value=2**53 - 1)


@given(st.lists(st.one_of(TEXT, INTEGER), max_size=5))
def test_row_digest_equals_the_canonical_digest(fields: list[str | int]) -> None:
    assert ids.row_digest("thing", *fields) == ids.digest("thing", *fields)


def test_golden_ids() -> None:
    evidence = ids.evidence_id("web", date(2026, 11, 1), "a/b.jsonl#0", "00" * 32)
    assert evidence == hashlib.sha256(b'["evidence","web","2026-11-01","a/b.jsonl#0","' + b"00" * 32 + b'"]').hexdigest()
    assert ids.doc_id(evidence, 3) == hashlib.sha256(f'["doc","{evidence}",3]'.encode()).hexdigest()


def test_text_digests_are_of_the_utf8_bytes_whatever_the_slice() -> None:
    texts = pa.array(["x", "한국어", "", "naïve"])
    expected = [hashlib.sha256(t.encode()).hexdigest() for t in ["한국어", "", "naïve"]]
    assert ids.text_sha256(texts.slice(1)) == expected
    assert ids.text_sha256(texts.cast(pa.large_string()).slice(1)) == expected


def _table() -> pa.Table:
    return pa.table(
        {
            "id": ["c", "a", "b"],
            "n": pa.array([1, None, 3], pa.int64()),
            "score": pa.array([0.5, -0.0, None], pa.float64()),
            "flag": [True, None, False],
            "payload": pa.array([b"\x00", None, b""], pa.binary()),
            "day": pa.array([date(2026, 1, 1), None, date(2026, 1, 2)]),
            "attributes": pa.array([[("k", 1.0)], [], None], NUMBER_MAP),
            "reasons": pa.array([[{"rule": "r", "value": 1.0, "threshold": None}], [], None], REASONS),
        }
    )


def test_content_digest_ignores_row_order_batching_and_offset_width() -> None:
    table = _table()
    expected = ids.content_digest(table, ["id"])
    assert ids.content_digest(table.take([2, 0, 1]), ["id"]) == expected
    assert ids.content_digest(pa.concat_tables([table.slice(1), table.slice(0, 1)]), ["id"]) == expected
    wide = table.set_column(0, "id", table["id"].cast(pa.large_string()))
    assert ids.content_digest(wide, ["id"]) == expected


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("n", pa.array([1, 0, 3], pa.int64())),
        ("payload", pa.array([b"\x00", b"", b""], pa.binary())),
        ("flag", pa.array([True, False, False])),
        ("attributes", pa.array([[("k", 1.0)], [], []], NUMBER_MAP)),
        ("attributes", pa.array([[("k", 1.5)], [], None], NUMBER_MAP)),
        ("reasons", pa.array([[{"rule": "r", "value": 1.0, "threshold": 0.0}], [], None], REASONS)),
    ],
)
def test_content_digest_sees_every_value_and_every_null(column: str, value: pa.Array) -> None:
    table = _table()
    changed = table.set_column(table.column_names.index(column), table.schema.field(column), pa.chunked_array([value]))
    assert ids.content_digest(changed, ["id"]) != ids.content_digest(table, ["id"])


def test_content_digest_tells_shifted_strings_apart() -> None:
    left = pa.table({"id": [1, 2], "t": ["ab", "c"]})
    right = pa.table({"id": [1, 2], "t": ["a", "bc"]})
    assert ids.content_digest(left, ["id"]) != ids.content_digest(right, ["id"])


def test_canonical_json_refuses_what_json_cannot_hold() -> None:
    for value in (float("nan"), 2**53 + 1, np.float32(1.0)):
        with pytest.raises(Exception, match=r".+"):
            ids.canonical_json(value)
