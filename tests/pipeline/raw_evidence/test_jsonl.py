import gzip
import io
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import SourceError
from pipeline.raw_evidence.readers import jsonl
from pipeline.raw_evidence.readers.records import Broken, Empty, IncompleteFile, Record
from pipeline.recipe import Source

CASES = Path(__file__).parents[2] / "cases"


def source(**values) -> Source:
    values.setdefault("fields", {"text": ("text",)})
    return Source("web", "jsonl", "licence", **values)


def read(data: bytes, path="a.jsonl", **values):
    return list(jsonl.read(io.BytesIO(data), path, source(**values)))


def shape(items):
    return [(item.place, getattr(item, "reason", type(item).__name__.lower())) for item in items]


def test_case_c08_bad_unicode():
    data = (CASES / "C08" / "bad_unicode.jsonl").read_bytes()
    items = read(data, fields={"text": ("text",), "id": ("id",)})
    starts = [0, *[i + 1 for i, byte in enumerate(data) if byte == 10]]
    assert shape(items) == list(
        zip(starts, ["lone_surrogate", "record", "nul_character", "lone_surrogate", "record", "unparsable"], strict=False)
    )
    assert json.loads(items[1].payload)["text"] == "pair \U0001f378 ok"
    assert [item.record for item in items if isinstance(item, Record)] == ["u2", "u5"]
    lines = data.split(b"\n")
    for i in (0, 2, 3, 5):
        assert items[i].head == lines[i]  # the original bytes are kept
        assert items[i].detail.startswith(f"line {i + 1}: ")
    assert not any("unterminated" in item.detail or "inside" in item.detail for item in items if isinstance(item, Broken))


def test_only_lf_ends_a_record_and_the_payload_is_exact():
    first = '{"text": "a\u2028b\u2029c\x85d", "x": 1}'.encode()
    second = b'\t{"text" :"two\\r"}\r'
    items = read(first + b"\n" + second + b"\n \r\n\n" + b'{"text":"last"}')
    assert shape(items) == [
        (0, "record"), (len(first) + 1, "record"), (len(first) + len(second) + 2, "empty"),
        (len(first) + len(second) + 5, "empty"), (len(first) + len(second) + 6, "record"),
    ]  # fmt: skip
    assert [item.payload for item in items if isinstance(item, Record)] == [first, second, b'{"text":"last"}']


def test_byte_order_mark_is_recorded_and_left_out():
    first, second = read(b'\xef\xbb\xbf{"text":"a"}\n\xef\xbb\xbf{"text":"b"}')
    assert (first.place, first.payload, first.charset, first.meta) == (3, b'{"text":"a"}', "utf-8", {"bom": "utf-8"})
    assert second.reason == "unparsable"  # a mark is one at the start of a file only


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text":"a"', "unparsable"),
        (b'{"text":"a"} trailing', "unparsable"),
        (b'{"text":NaN}', "unparsable"),
        (b'{"text":"a","n":1e999}', "unparsable"),
        (b'{"text":"a\x01"}', "unparsable"),
        (b"[" * 100000, "unparsable"),
        (b'{"text":"a","deep":' + b"[" * 101 + b"]" * 101 + b"}", "unparsable"),
        (b'{"text":"\\ud800' + b"[" * 101 + b'"}', "lone_surrogate"),
        (b'{"text":"\xff"}', "not_utf8"),
        (b'{"text":"\xed\xa0\x80"}', "not_utf8"),
        (b'{"text":"a","other":"\\udc00"}', "lone_surrogate"),
        (b'{"text":"a\\u0000"}', "nul_character"),
        (b'{"text":"a","id":"\\u0000"}', "nul_character"),
        (b"[]", "not_an_object"),
        (b'"text"', "not_an_object"),
        (b"null", "not_an_object"),
        (b"{}", "missing_field"),
        (b'{"Text":"a"}', "missing_field"),
        (b'{"text":1}', "wrong_type"),
        (b'{"text":["a"]}', "wrong_type"),
        (b'{"text":"a","id":[1]}', "wrong_type"),
        (b'{"text":"a","url":1}', "wrong_type"),
        (b'{"text":"a","who":{"name":"b"}}', "wrong_type"),
        (b'{"text":"a","at":"yesterday"}', "bad_time"),
        (b'{"text":"a","at":true}', "bad_time"),
        (b'{"text":"a","at":1e300}', "bad_time"),
        (b'{"text":"a","text":"b"}', "duplicate_key"),
        (b'{"te\\u0078t":"a","text":"b"}', "duplicate_key"),
        (b'{"text":"a","id":1,"id":2}', "duplicate_key"),
        (b'{"text":"a","other":{"text":"b"},"x":1,"x":2}', "record"),
        (b'{"text":"a \\"text\\": b"}', "record"),
        (b'{"text":"a' + b"[{" * 200 + b'"}', "record"),
        (b'{"text":"a","deep":' + b"[" * 99 + b"]" * 99 + b"}", "record"),
        (b'{"text":null}', "empty"),
        (b'{"text":"\\u3000 \\n"}', "empty"),
    ],
)
def test_reasons(line, reason):
    fields = {"text": ("text",), "id": ("id",), "url": ("url",), "collected_at": ("at",)}
    before, found, after = read(b'{"text":"x"}\n' + line + b'\n{"text":"y"}', fields=fields, deletion_key_fields=("who",))
    assert isinstance(before, Record)
    assert isinstance(after, Record)
    assert shape([found]) == [(13, reason)]


def test_a_name_beyond_ascii_that_stands_twice_in_another_spelling():
    line = '{"본문": "a", "\\ubcf8\\ubb38": "b"}'.encode()
    assert shape(read(line, fields={"text": ("본문",)})) == [(0, "duplicate_key")]
    assert shape(read('{"본문": "\\uac00"}'.encode(), fields={"text": ("본문",)})) == [(0, "record")]


def test_messages():
    def one(turns: str):
        return shape(read(b'{"messages":' + turns.encode() + b"}", fields={"messages": ("messages",)}))[0][1]

    assert one('[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]') == "record"
    assert one("[]") == one("null") == "empty"
    assert one('["a"]') == one('{"role":"user"}') == "wrong_type"
    assert one('[{"role":"user","content":[{"text":"\\u0000"}]}]') == "nul_character"
    assert one('[{"role":"user","content":"a","content":"b"}]') == "duplicate_key"


def test_what_a_record_says_about_itself():
    line = json.dumps(
        {
            "title": "T", "text": None, "id": 12, "url": "https://example.org/1", "at": "2026-03-01T09:00:00+09:00", "lic": "mit",
            "mail": ["a@example.org", "b@example.org"], "who": None, "tags": {"b": 1, "a": ["가"]}, "score": 1.50, "ok": True, "none": None,
        },
        ensure_ascii=False,
    ).replace("1.5,", "1.50,")  # fmt: skip
    fields = {
        "text": ("title", "text"),
        "id": ("id",),
        "url": ("url",),
        "collected_at": ("at",),
        "meta": ("tags", "score", "ok", "none", "x"),
    }
    (item,) = read(line.encode(), fields=fields, licence_field="lic", deletion_key_fields=("mail", "who"))
    assert (item.record, item.uri, item.licence) == ("12", "https://example.org/1", "mit")
    assert item.collected_at == datetime(2026, 3, 1, tzinfo=UTC)
    assert item.keys == [("mail", "a@example.org"), ("mail", "b@example.org")]
    assert item.meta == {"id": "12", "tags": '{"a":["가"],"b":1}', "score": "1.50", "ok": "true"}


def test_digits_beyond_64_bits_stay():
    digits = "123456789012345678901234567890"
    (item,) = read(b'{"text":"a","id":%s,"n":-0.10}' % digits.encode(), fields={"text": ("text",), "id": ("id",), "meta": ("n",)})
    assert (item.record, item.meta["n"]) == (digits, "-0.10")


def test_too_large_is_streamed_and_its_neighbours_stay():
    big = b'{"text":"%s"}' % (b"x" * 3_000_000)
    items = read(b'{"text":"a"}\n' + big + b'\n{"text":"b"}\n', max_payload_bytes=1000)
    assert shape(items) == [(0, "record"), (13, "too_large"), (13 + len(big) + 1, "record")]
    assert items[1].size_bytes == len(big)
    assert items[1].detail == f"line 2: {len(big)} bytes, expected at most 1000"


def test_a_cut_file_gives_its_whole_records_first():
    data = gzip.compress(b'{"text":"a"}\n{"text":"b"}\n{"text":"' + bytes(range(32, 127)) * 3)
    found = []
    with pytest.raises(IncompleteFile, match="truncated_member"):
        found.extend(jsonl.read(io.BytesIO(data[:-12]), "a.jsonl.gz", source()))
    assert shape(found) == [(0, "record"), (13, "record")]


def test_a_field_with_one_value_refuses_two_names():
    with pytest.raises(SourceError, match=r"fields\.id takes one field, found 2"):
        read(b"{}", fields={"text": ("text",), "id": ("a", "b")})
    with pytest.raises(SourceError, match="a name that intake writes itself"):
        read(b"{}", fields={"text": ("text",), "meta": ("bom",)})


VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=12)
JSON = VALUES | st.lists(VALUES, max_size=2) | st.dictionaries(st.text(max_size=3), VALUES, max_size=2)


@given(st.lists(st.dictionaries(st.sampled_from(["text", "id", "a", "본문"]), JSON), max_size=5))
def test_every_line_is_counted_once(rows):
    payloads = [json.dumps(row, ensure_ascii=len(row) % 2 == 0).encode("utf-8", "surrogatepass") for row in rows]
    items = read(b"\n".join(payloads) + b"\n" * bool(rows), fields={"text": ("text",), "id": ("id",)})
    assert len(items) == len(rows)
    for item, payload, row in zip(items, payloads, rows, strict=True):
        if isinstance(item, Record):
            assert item.payload == payload
            assert row["text"].strip()
        elif isinstance(item, Empty):
            assert not (row["text"] or "").strip()
        else:
            assert item.head == payload[:4096]
