"""Stage `documents` as a whole: ledgers, invariance, rejects, and the golden output of its code version."""

from __future__ import annotations

import itertools
import json
from datetime import date
from decimal import Decimal

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import ids
from pipeline.cleaned_docs import documents
from pipeline.cleaned_docs.documents import CODE_VERSION, EVIDENCE_COLUMNS, clean, stage_version
from pipeline.cleaned_docs.extract import METADATA_TYPE
from pipeline.errors import RecipeError
from pipeline.recipe import Cleaning, Rule
from pipeline.schemas import DOCUMENT_REJECTS, DOCUMENTS

KOREAN = "오늘 국회는 예산안을 처리했다\n여야는 밤늦게까지 협의를 이어 갔다"
ENGLISH = "The committee met in the morning and put the question to its members.\r\nThey answered before the end of the week."
ROWS = [
    ("a/main.py#0", b"import os\n\ndef main():\n    print(os.name)\n", {"media_type": "text/x-python"}),
    ("b/en.txt#0", ENGLISH.encode()),
    ("b/ko.txt#0", KOREAN.encode("cp949"), {"charset": "euc-kr"}),
    ("b/nfd.txt#0", "Café crème is what they order in the morning, every one of them.".replace("é", "e\u0301").encode()),
    ("b/bom.txt#0", b"\xef\xbb\xbf" + ENGLISH.encode()),
    ("c/METADATA#0", b"Name: x\n\nA small package that reads files and counts the words in them.\n", {"media_type": METADATA_TYPE}),
    ("c/none/METADATA#0", b"Name: x\n", {"media_type": METADATA_TYPE}),
    ("d/spam.txt#0", b"click here click here click here click here"),
    ("d/blank.txt#0", b" \n\t\n"),
    ("d/empty.txt#0", b""),
    ("d/nul.txt#0", b"text with \x00 inside"),
    ("d/terminal.txt#0", b"\x01\x02\x03 controls"),
    ("d/bytes.bin#0", b"\xff\xfe\xfd"),
    ("e/math.txt#0", rb"Let $x^2 + y^2 = z^2$ where \frac{x}{z} is a rational number and $z \neq 0$."),
    ("e/gpl.txt#0", b"A sentence under another licence stands here for all to read.", {"licence": "GPL-3.0-only"}),
    ("e/es.txt#0", "Había una vez un niño que vivía en una casa pequeña junto al mar con su abuela.".encode()),
]
# Content digests of the output of ROWS by code version: they change only together with the version.
GOLDEN = {
    "1": (
        "221d8c33d1c939726659d3d987103770b6365b1ea10b5baa355d7ef27e5e75fd",
        "050186b71721219307cc511aeee57436e5942261a25c15b05eb1cce3527fb4f7",
    )
}


def by_key(cleaned):
    return {row["record_key"]: row for row in cleaned.documents.to_pylist()}


@pytest.fixture(scope="module")
def strict(cleaning):
    return Cleaning(cleaning.language, cleaning.rules, allowed_licences=("MIT",))


@pytest.fixture(scope="module")
def cleaned(run, strict):
    return run(ROWS, cleaning=strict)


def test_ledgers_count_every_payload_and_document(cleaned):
    assert cleaned.ledgers["payloads"].parts == {"parsed": 11, "empty": 2, "rejected": {"binary": 2, "undecodable": 1}}
    made = cleaned.ledgers["documents"]
    assert (made.total, made.parts["kept"]) == (11, 7)
    assert made.parts["dropped"] == {"empty": 1, "licence": 1, "language": 1, "quality": 1}
    assert made.extra["rules"] == {
        "empty.text": 1, "licence.not_allowed": 1, "language.not_accepted": 1, "quality.min_words": 1,
        "quality.min_word_letter_ratio": 0, "quality.max_top_bigram_fraction_en": 2, "quality.max_top_bigram_fraction_ko": 0,
        "quality.min_code_lines": 0,
    }  # fmt: skip


def test_document_carries_what_was_decided_and_measured(cleaned):
    rows = by_key(cleaned)
    code, korean, spam = rows["a/main.py#0"], rows["b/ko.txt#0"], rows["d/spam.txt#0"]
    assert (code["kind"], code["language"], code["domain"], code["decision"], code["reasons"]) == ("code", "zxx", "python", "keep", [])
    assert (korean["text"], korean["charset_declared"], korean["charset_used"], korean["language"]) == (KOREAN, "euc-kr", "cp949", "ko")
    assert korean["text_sha256"] == ids.sha256_hex(KOREAN.encode())
    assert (korean["n_chars"], korean["n_bytes"]) == (len(KOREAN), len(KOREAN.encode()))
    assert korean["doc_id"] == ids.doc_id(korean["evidence_id"], 0)
    assert spam["decision"] == "drop"
    (reason,) = spam["reasons"]
    assert (reason["rule"], reason["threshold"]) == ("quality.max_top_bigram_fraction_en", 0.2)
    assert reason["value"] == dict(spam["attributes"])["top_bigram_fraction"] == 1.0
    assert rows["e/math.txt#0"]["kind"] == "math"
    assert rows["c/METADATA#0"]["text"] == "A small package that reads files and counts the words in them.\n"


def test_reasons_name_category_rule_value_and_threshold(cleaned):
    rows = by_key(cleaned)
    assert rows["e/gpl.txt#0"]["reasons"] == [{"rule": "licence.not_allowed", "value": None, "threshold": None}]
    (reason,) = rows["e/es.txt#0"]["reasons"]
    assert (reason["rule"], reason["value"], reason["threshold"]) == ("language.not_accepted", rows["e/es.txt#0"]["language_score"], 0.5)
    blank = rows["d/blank.txt#0"]
    assert [reason["rule"] for reason in blank["reasons"]] == ["empty.text", "quality.min_words", "quality.max_top_bigram_fraction_en"]
    assert "mean_word_length" not in dict(blank["attributes"])


def test_normalisation_is_recorded(cleaned):
    rows = by_key(cleaned)
    assert dict(rows["b/en.txt#0"]["attributes"])["n_crlf"] == 1
    assert rows["b/bom.txt#0"]["text_sha256"] == rows["b/en.txt#0"]["text_sha256"]
    assert dict(rows["b/nfd.txt#0"]["attributes"])["nfc_changed"] == 1
    assert "é" in rows["b/nfd.txt#0"]["text"]


def test_rejects_keep_reason_place_and_bytes_but_say_no_text(cleaned):
    rows = {row["record_key"]: row for row in cleaned.rejects.to_pylist()}
    assert {key: row["reason"] for key, row in rows.items()} == {
        "d/nul.txt#0": "binary",
        "d/terminal.txt#0": "binary",
        "d/bytes.bin#0": "undecodable",
    }
    row = rows["d/nul.txt#0"]
    assert row["payload"] == b"text with \x00 inside"
    assert (row["size_bytes"], row["payload_sha256"]) == (18, ids.sha256_hex(row["payload"]))
    assert row["detail"] == "expected text, found 1 NUL and 1 control of 18 characters"
    assert row["reject_id"] == ids.reject_id("cleaned_docs", "fixture", date(2026, 1, 1), "d/nul.txt#0", "binary")


def test_golden_output_of_this_code_version(cleaned):
    found = ids.content_digest(cleaned.documents, DOCUMENTS.key), ids.content_digest(cleaned.rejects, DOCUMENT_REJECTS.key)
    assert found == GOLDEN[CODE_VERSION], "output changed: declare a new CODE_VERSION and add its digests"


def test_tables_have_their_schemas_and_keys(cleaned):
    assert cleaned.documents.schema.equals(DOCUMENTS.schema)
    assert cleaned.rejects.schema.equals(DOCUMENT_REJECTS.schema)
    DOCUMENTS.check_keys(cleaned.documents)
    DOCUMENT_REJECTS.check_keys(cleaned.rejects)


@settings(max_examples=15, deadline=None)
@given(order=st.permutations(range(len(ROWS))), cuts=st.lists(st.integers(0, len(ROWS)), max_size=4))
def test_order_and_batching_change_nothing(order, cuts, evidence, source, strict, cleaned):
    batch = evidence([ROWS[i] for i in order], source())
    ends = [0, *sorted(cuts), len(ROWS)]
    parts = [batch.slice(a, b - a) for a, b in itertools.pairwise(ends)]
    again = clean(parts, source=source(), cleaning=strict, version="v" * 64, read_blob=lambda digest: b"")
    assert ids.content_digest(again.documents, DOCUMENTS.key) == ids.content_digest(cleaned.documents, DOCUMENTS.key)
    assert ids.content_digest(again.rejects, DOCUMENT_REJECTS.key) == ids.content_digest(cleaned.rejects, DOCUMENT_REJECTS.key)
    assert {name: ledger.to_json() for name, ledger in again.ledgers.items()} == {n: x.to_json() for n, x in cleaned.ledgers.items()}


def test_large_batches_are_worked_on_in_pieces(evidence, source, cleaning, cleaned, strict, monkeypatch):
    monkeypatch.setattr(documents, "PIECE_BYTES", 64)
    batch = evidence(ROWS, source())
    assert [len(piece) for piece in documents._pieces([batch])] != [len(batch)]
    again = clean([batch], source=source(), cleaning=strict, version="v" * 64, read_blob=lambda digest: b"")
    assert again.documents.combine_chunks().equals(cleaned.documents.combine_chunks())


def test_payloads_in_blobs_are_read(evidence, source, cleaning):
    blobs = {"1" * 64: ENGLISH.encode()}
    batch = evidence([("x.txt#0", KOREAN.encode()), ("y.txt#0", ENGLISH.encode(), {"payload": None, "blob_sha256": "1" * 64})], source())
    inline = evidence([("x.txt#0", KOREAN.encode()), ("y.txt#0", ENGLISH.encode())], source())
    found = [clean([b], source=source(), cleaning=cleaning, version="v", read_blob=blobs.__getitem__).documents for b in (batch, inline)]
    assert found[0].equals(found[1])


def test_only_named_columns_are_read(evidence, source, cleaning, cleaned, strict):
    batch = evidence(ROWS, source()).select(EVIDENCE_COLUMNS)
    found = clean([batch], source=source(), cleaning=strict, version="v" * 64, read_blob=lambda digest: b"")
    assert found.documents.equals(cleaned.documents)


def test_records_and_conversations(run, source):
    rows = [(f"r.jsonl#{i}", orjson.dumps({"t": text})) for i, text in enumerate([ENGLISH, "", None, 3, "a\u0000b"])]
    cleaned = run(rows, source=source(reader="jsonl", fields={"text": ("t",)}))
    assert cleaned.ledgers["payloads"].parts == {"parsed": 1, "empty": 2, "rejected": {"binary": 1, "wrong_type": 1}}
    talk = orjson.dumps(
        {"m": [{"role": "user", "content": "안녕하세요, 잘 지내시죠?"}, {"role": "assistant", "content": "네, 고맙습니다."}]}
    )
    (row,) = run([("c.jsonl#0", talk)], source=source(reader="jsonl", fields={"messages": ("m",)})).documents.to_pylist()
    assert (row["kind"], row["language"]) == ("chat", "ko")
    assert row["text"] == "### user\n안녕하세요, 잘 지내시죠?\n\n### assistant\n네, 고맙습니다."


@pytest.mark.parametrize("rows", [[], [("a#0", b"")], [("a#0", b"\xff\x00")]])
def test_nothing_to_clean_is_counted_and_no_error(run, rows):
    cleaned = run(rows)
    assert len(cleaned.documents) == 0
    assert cleaned.ledgers["payloads"].total == len(rows)
    assert cleaned.documents.schema.equals(DOCUMENTS.schema)


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)


@settings(max_examples=40, deadline=None)
@given(
    payloads=st.lists(st.binary(max_size=40) | st.text(st.characters(exclude_categories=("Cs",)), max_size=40).map(str.encode), max_size=8)
)
def test_ledgers_close_on_any_bytes_and_twice_is_once(payloads, run):
    rows = [(f"f{i}#0", payload) for i, payload in enumerate(payloads)]
    first, second = run(rows), run(rows)
    assert first.documents.equals(second.documents)
    parts = first.ledgers["payloads"].parts
    assert parts["parsed"] == len(first.documents)
    assert sum(parts["rejected"].values()) == len(first.rejects)
    assert parts["empty"] == len(rows) - len(first.documents) - len(first.rejects)
    kept = first.documents["decision"].to_pylist().count("keep")
    assert first.ledgers["documents"].parts["kept"] == kept
    # the text of a document is its own normal form: cleaning it again gives it back
    texts = [(f"f{i}#0", text.encode()) for i, text in enumerate(first.documents["text"].to_pylist())]
    again = run([row for row in texts if not row[1].startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"))])
    assert len(again.rejects) == 0
    known = {text for _, text in texts}
    assert {text.encode() for text in again.documents["text"].to_pylist()} <= known


def test_version_holds_everything_that_can_change_a_row(cleaning):
    base = {"source": "s", "snapshot": date(2026, 1, 1), "evidence_version": "e"}
    version = stage_version(cleaning, **base)
    assert version.partition == {"source": "s", "snapshot": "2026-01-01"}
    assert version.parents == {"evidence": "e"}
    assert set(version.packages) == {"unicodedata", "charset-normalizer", "orjson", "polars", "py3langid"}
    assert len(version.models["py3langid"]) == 64
    assert json.loads(version.identity_json())["recipe_part"]["rules"][0]["bound"] == "4"
    other = Cleaning(cleaning.language, (Rule("min_words", "n_words", Decimal(6), ("prose",)), *cleaning.rules[1:]))
    changed = [
        stage_version(other, **base),
        stage_version(cleaning, **{**base, "evidence_version": "f"}),
        stage_version(cleaning, **{**base, "source": "t"}),
        stage_version(cleaning, **{**base, "snapshot": date(2026, 1, 2)}),
    ]
    assert len({version.version, *(one.version for one in changed)}) == 5


def test_rule_on_an_unknown_metric_stops_before_any_work(run, cleaning):
    wrong = Cleaning(cleaning.language, (Rule("max_symbols", "symbols_ratio", Decimal(1), ("prose",)),))
    with pytest.raises(RecipeError, match="symbol_ratio"):
        run([], cleaning=wrong)
    with pytest.raises(RecipeError, match="symbol_ratio"):
        stage_version(wrong, source="s", snapshot=date(2026, 1, 1), evidence_version="e")


def test_attributes_are_sorted_numbers(cleaned):
    for attributes in cleaned.documents["attributes"].to_pylist():
        names = [name for name, _ in attributes]
        assert names == sorted(names)
        assert not any(np.isnan(value) for _, value in attributes)
    assert pa.types.is_map(cleaned.documents.schema.field("attributes").type)
