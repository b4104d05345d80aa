"""A dry run: counts, places, fields and an estimate, and never a value of a record."""

import gzip
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.raw_evidence.preview import Preview, Sized, census, preview
from pipeline.recipe import Source, parse_source

SECRET = "the harbour master sleeps"


def source(reader: str, more: str = "") -> Source:
    text = f'name = "s"\nreader = "{reader}"\nlocation = "x"\nconsent_basis = "test"\nlicence = "MIT"\n{more}'
    return parse_source(text, where="s.toml")


def held(**files: bytes) -> list[Sized]:
    return [Sized(name.replace("__", "."), len(data), lambda data=data: io.BytesIO(data)) for name, data in files.items()]  # type: ignore[misc]


def lines(*rows: object) -> bytes:
    return b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows)


def no_text(found: Preview) -> None:
    assert SECRET not in json.dumps(found.to_json())


def test_records_fields_and_rejects_of_jsonl() -> None:
    data = lines({"id": 1, "text": SECRET, "tags": ["x"]}, b"", {"id": 2, "text": SECRET}, b'{"text": ', {"id": 3, "body": SECRET})
    found = preview(source("jsonl", 'fields = { id = "id", text = "text", url = "link" }'), held(a__jsonl=data))
    assert dict(found.counts) == {"parsed": 2, "empty": 1, "rejected": 2}
    assert [(row["place"].split("#")[0], row["reason"]) for row in found.rejects] == [
        ("a.jsonl", "unparsable"),
        ("a.jsonl", "missing_field"),
    ]
    assert {name: (one.n_records, one.roles) for name, one in found.fields.items()} == {
        "id": (3, ("id",)),
        "text": (2, ("text",)),
        "tags": (1, ()),
        "body": (1, ()),
        "link": (0, ("url",)),
    }
    assert (found.estimated_records, found.exact, found.problems) == (5, True, [])
    assert any("'link' (url) is in none" in doubt for doubt in found.doubts)
    assert any("2 of 5 records would be rejected" in doubt for doubt in found.doubts)
    no_text(found)


@pytest.mark.parametrize("suffix", ["", "__gz"])
def test_the_estimate_of_many_records_is_close_also_when_compressed(suffix: str) -> None:
    data = lines(*({"text": f"{SECRET} {n * 7919}"} for n in range(40_000)))
    stored = gzip.compress(data) if suffix else data
    found = preview(source("jsonl", 'fields = { text = "text" }'), held(**{f"a__jsonl{suffix}": stored, f"b__jsonl{suffix}": stored}))
    assert (found.n_read, found.exact) == (100, False)
    assert found.estimated_records == pytest.approx(80_000, rel=0.1)


def test_parquet_names_columns_that_are_not_read_and_counts_rows_from_the_footer() -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": [SECRET] * 1000, "lang": ["en"] * 1000}), sink)
    found = preview(source("parquet", 'fields = { text = "text" }'), held(a__parquet=sink.getvalue()))
    assert (found.estimated_records, found.exact, found.counts["parsed"]) == (1000, True, 100)
    assert [name for name, one in found.fields.items() if not one.roles] == ["lang"]
    no_text(found)
    missing = preview(source("parquet", 'fields = { text = "body" }'), held(a__parquet=sink.getvalue()))
    assert missing.unread[0]["reason"] == "missing_column"
    assert any("incomplete" in problem for problem in missing.problems)


def test_a_tree_has_a_record_per_file() -> None:
    files = {f"f{n}__md": f"{SECRET} {n}".encode() for n in range(150)}
    found = preview(source("tree"), held(**files))
    assert (found.n_containers, found.n_read, found.estimated_records, found.exact) == (150, 100, 150, True)
    assert found.fields == {}


@pytest.mark.parametrize(
    ("more", "data", "problem"),
    [
        ("", b'{"other": 1}\n', "could be read"),
        ('licence_field = "l"', b"", "none of the 0 records"),
    ],
)
def test_a_source_nothing_of_which_can_be_read_is_a_problem(more: str, data: bytes, problem: str) -> None:
    found = preview(source("jsonl", f'fields = {{ text = "text" }}\n{more}'), held(a__jsonl=data))
    assert any(problem in line for line in found.problems)


def test_a_broken_archive_a_wrong_licence_and_an_empty_basis_are_problems() -> None:
    data = gzip.compress(lines({"text": SECRET}) * 50)[:-20]
    found = preview(source("jsonl", 'fields = { text = "text" }'), held(a__jsonl__gz=data))
    assert found.unread[0]["reason"] in ("truncated_member", "corrupt_member")
    assert found.problems
    odd = parse_source('name = "s"\nreader = "tree"\nlocation = "x"\nconsent_basis = " "\nlicence = "my own"\n', where="s.toml")
    found = preview(odd, held(a__md=b"hello"))
    assert ["licence" in found.problems[0], "consent_basis" in found.problems[1]] == [True, True]
    assert "no container" in preview(source("tree"), []).problems[0]


def test_census_looks_at_any_mapping() -> None:
    fields = census("jsonl", held(a__jsonl=lines({"a": "x", "b": 1}, {"a": " ", "c": [{}]}, [1])))
    assert {name: dict(one.types) for name, one in fields.items()} == {
        "a": {"text": 1, "blank text": 1},
        "b": {"number": 1},
        "c": {"list": 1},
    }
