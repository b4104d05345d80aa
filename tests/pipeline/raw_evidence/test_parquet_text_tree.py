import gzip
import io
import json
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from pipeline.errors import SourceError
from pipeline.raw_evidence.readers import parquet, python_environment, text, tree
from pipeline.raw_evidence.readers.records import IncompleteFile, Record
from pipeline.recipe import Source


def stored(table: pa.Table, **options) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


def source(reader="parquet", **values) -> Source:
    return Source("web", reader, "licence", **values)


def rows(data: bytes, **fields):
    return list(parquet.read(io.BytesIO(data), "a.parquet", source(fields=fields)))


def shape(items):
    return [(item.place, getattr(item, "reason", type(item).__name__.lower())) for item in items]


def test_parquet_rows():
    table = pa.table(
        {
            "id": pa.array([2**63 - 1, 2, 3, 4], pa.int64()),
            "text": ["가\u2028나", None, "  ", "nul \0"],
            "at": pa.array([datetime(2026, 1, 2, 3, 4, 5, 678901)] * 4, pa.timestamp("ns")),
            "price": [Decimal("1.50")] * 4,
            "score": [float("nan"), 1.0, 2.5, 3.0],
            "unused": [b"\xff"] * 4,
        }
    )
    fields = {"text": ("text",), "id": ("id",), "collected_at": ("at",), "meta": ("price", "score")}
    items = rows(stored(table), **fields)
    assert shape(items) == [(0, "record"), (1, "empty"), (2, "empty"), (3, "nul_character")]
    expected = '{"at":"2026-01-02T03:04:05.678901","id":9223372036854775807,"price":"1.50","score":null,"text":"가\u2028나"}'
    assert items[0].payload == expected.encode()
    assert items[0].collected_at == datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    assert items[0].meta == {"id": "9223372036854775807", "price": "1.50", "score": "null"}


def test_parquet_does_not_depend_on_row_groups_batches_or_encoding(monkeypatch):
    table = pa.table(
        {
            "id": list(range(5000)),
            "text": [f"text {i % 7}" for i in range(5000)],
            "m": [[{"role": "user", "content": str(i)}] for i in range(5000)],
        }
    )
    fields = {"text": ("text",), "id": ("id",), "meta": ("m",)}
    expected = rows(stored(table), **fields)
    assert [item.place for item in expected] == list(range(5000))
    assert json.loads(expected[7].meta["m"]) == [{"role": "user", "content": "7"}]
    wide = table.set_column(1, "text", table["text"].cast(pa.large_string()).dictionary_encode())
    binary = table.set_column(1, "text", table["text"].cast(pa.binary()))
    for data in (stored(table, row_group_size=33, compression="zstd"), stored(wide, use_dictionary=False), stored(binary)):
        assert rows(data, **fields) == expected
    monkeypatch.setattr(parquet, "MAX_BATCH_ROWS", 3)
    assert rows(stored(table.slice(0, 100)), **fields) == expected[:100]


def test_parquet_text_that_is_not_utf8_is_one_reject():
    raw = pa.array([b"good", b"bad \xff", b"good too"], pa.binary())
    data = stored(pa.table({"text": pa.Array.from_buffers(pa.string(), 3, raw.buffers())}))
    items = rows(data, text=("text",))
    assert shape(items) == [(0, "record"), (1, "not_utf8"), (2, "record")]
    assert items[1].head == b"bad \xff"


def test_parquet_that_cannot_be_read_is_named():
    data = stored(
        pa.table({"text": ["a" * 50, "b" * 50] * 2000, "id": range(4000)}), row_group_size=500, compression="none", use_dictionary=False
    )
    with pytest.raises(IncompleteFile, match=r"missing_column at 0: expected columns \['body'\]"):
        rows(data, text=("body",))
    for broken in (b"", b"PAR1", b"text, not parquet", data[:-1], data[: len(data) // 2], data[: len(data) // 2] + data[-1000:]):
        with pytest.raises(IncompleteFile, match="corrupt_file"):
            rows(broken, text=("text",))
    # a page in the middle is overwritten: what lies before it has been delivered
    found = []
    hole = data[: len(data) // 2] + b"\xff" * 3000 + data[len(data) // 2 + 3000 :]
    with pytest.raises(IncompleteFile) as stop:
        found.extend(parquet.read(io.BytesIO(hole), "a.parquet", source(fields={"text": ("text",)})))
    assert stop.value.offset == len(found) >= 500
    assert "aaaa" not in str(stop.value)


def test_lines_of_text():
    data = b"\xef\xbb\xbfone\r\n\n \t\n\xb0\xa1\xc2\x85two\xe2\x80\xa8\nnul\0\nlast"
    items = list(text.read(io.BytesIO(data), "a.txt", source("text", split_lines=True)))
    assert shape(items) == [(3, "record"), (8, "empty"), (9, "empty"), (12, "record"), (23, "nul_character"), (28, "record")]
    assert [item.payload for item in items if isinstance(item, Record)] == [b"one\r", b"\xb0\xa1\xc2\x85two\xe2\x80\xa8", b"last"]
    packed = zstandard.ZstdCompressor().compress(data)
    assert list(text.read(io.BytesIO(packed), "a.txt.zst", source("text", split_lines=True))) == items
    with pytest.raises(SourceError, match="its line end is not the byte LF"):
        list(text.read(io.BytesIO(data), "a.txt", source("text", split_lines=True, charset="UTF-16LE")))


def one(data: bytes, path="a.txt", **values):
    (item,) = tree.read(io.BytesIO(data), path, source("tree", **values))
    return item


def test_whole_files():
    item = one(gzip.compress(b"# Title\n\ntext\n"), "docs/a.md.gz")
    assert (item.place, item.payload, item.media_type, item.charset) == (0, b"# Title\n\ntext\n", "text/markdown", None)
    assert one(b"x = 1\n", "a.PY").media_type == "text/x-python"
    assert one(b"x", "Makefile").media_type == "text/plain"
    assert one("한글".encode("euc-kr"), charset="euc-kr").charset == "euc-kr"
    assert shape([one(b""), one(b" \n"), one(b"\xef\xbb\xbf\n")]) == [(0, "empty")] * 3
    assert one("한글".encode("utf-16")).charset == "utf-16"
    assert one("한글".encode("utf-32")).meta == {"bom": "utf-32"}
    assert one(b"a\0b").reason == one(b"\x89PNG\x0d\x0a\x1a\x0a\xff").reason == "binary"
    assert one("한글 \x1b[0m".encode("euc-kr")).payload == "한글 \x1b[0m".encode("euc-kr")
    assert one(b"x" * 5000, max_payload_bytes=4999).reason == "too_large"
    with pytest.raises(IncompleteFile, match="undeclared_compression"):
        list(text.read(io.BytesIO(gzip.compress(b"a")), "a.txt", source("text")))


def test_files_of_packages():
    code = ("pkg/a.py", "pkg/_c.pyx", "pkg/include/h.hpp", "pkg/web/x.js")
    prose = (
        "pkg-1.dist-info/METADATA",
        "pkg-1.dist-info/licenses/LICENSE",
        "pkg/COPYING.txt",
        "pkg/README.md",
        "pkg/doc/x.rst",
        "pkg-1.dist-info/AUTHORS",
    )
    none = (
        "pkg-1.dist-info/RECORD", "pkg-1.dist-info/INSTALLER", "pkg-1.dist-info/direct_url.json", "pkg-1.dist-info/entry_points.txt",
        "pkg-1.dist-info/top_level.txt", "pkg/__pycache__/a.cpython-311.pyc", "pkg/x.so", "../../bin/tool.py", "../../share/README.md",
        "/usr/share/README.md", "pkg/METADATA",
    )  # fmt: skip
    for path in (*code, *prose, *none):
        assert python_environment.is_selected(path, "code") == (path in code), path
        assert python_environment.is_selected(path, "prose") == (path in prose), path
    (item,) = python_environment.read(io.BytesIO(b"Name: x\n\ntext"), "x-1.dist-info/METADATA", source("python_environment"))
    assert (item.payload, item.media_type) == (b"Name: x\n\ntext", "text/x-python-metadata")
