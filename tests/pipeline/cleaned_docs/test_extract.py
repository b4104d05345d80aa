"""Payloads to raw documents: fields, conversations, descriptions, and what is empty or a reject."""

from __future__ import annotations

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cleaned_docs.extract import METADATA_TYPE, description, extract
from pipeline.recipe import Source


def one(payload, *, reader="jsonl", media_type="application/json", **fields):
    source = Source(name="s", reader=reader, consent_basis="given", fields=fields)
    text = payload if isinstance(payload, str) else orjson.dumps(payload).decode()
    found = extract(pa.array([text], pa.large_string()), pa.array([media_type]), source=source)
    return found.texts[0].as_py(), found.reasons[0], found.details[0]


def test_fields_are_joined_by_a_blank_line_in_the_declared_order():
    assert one({"body": "B\n", "title": "T"}, text=("title", "body"))[0] == "T\n\nB\n"


def test_null_field_adds_nothing_and_a_missing_one_is_a_reject():
    assert one({"title": "T", "body": None}, text=("title", "body"))[0] == "T"
    text, reason, detail = one({"title": "T"}, text=("title", "body"))
    assert (text, reason) == (None, "missing_field")
    assert "body" in detail


@pytest.mark.parametrize("value", [None, ""])
def test_record_without_text_is_empty(value):
    assert one({"text": value}, text=("text",))[:2] == (None, "empty")


def test_number_is_no_text():
    text, reason, detail = one({"text": 4}, text=("text",))
    assert (text, reason) == (None, "wrong_type")
    assert "4" not in detail


def test_broken_json_and_other_json_are_rejects():
    assert one('{"text": ', text=("text",))[1] == "unparsable"
    assert one("[1]", text=("text",))[1] == "not_an_object"
    assert one('{"text": "\\ud800"}', text=("text",))[1] == "unparsable"


CONTENTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)


@given(st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), CONTENTS), min_size=1, max_size=5))
def test_conversation_conserves_every_content(turns):
    text, reason, _ = one({"messages": [{"role": role, "content": content} for role, content in turns]}, messages=("messages",))
    if not any(content for _, content in turns):
        assert reason == "empty"
        return
    rest = text
    for i, (role, content) in enumerate(turns):
        head = f"### {role}\n{content}" + ("\n\n" if i + 1 < len(turns) else "")
        assert rest.startswith(head)
        rest = rest[len(head) :]
    assert rest == ""


def test_parts_of_text_are_joined_without_anything_between():
    content = [{"type": "text", "value": "a"}, {"type": "text", "text": "b"}, "c"]
    assert one({"messages": [{"role": "user", "content": content}]}, messages=("messages",))[0] == "### user\nabc"


@pytest.mark.parametrize(
    "message",
    [
        {"content": "x"},
        {"role": "user\n", "content": "x"},
        {"role": "user", "content": 3},
        {"role": "user", "content": [{"type": "image_url", "image_url": "u"}]},
        {"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]},
    ],
)
def test_turn_that_plain_text_would_lose_is_a_reject(message):
    assert one({"messages": [message]}, messages=("messages",))[:2] == (None, "unsupported_turn")


HEAD = "Metadata-Version: 2.1\nName: x\nAuthor-email: someone@example.org\n"


def test_description_is_the_body_without_the_headers():
    assert description(HEAD + "\n# Title\n\nText: more\n") == "# Title\n\nText: more\n"
    assert description((HEAD + "\nA\nB\n").replace("\n", "\r\n")) == "A\r\nB\r\n"


def test_description_header_is_unfolded():
    assert description(HEAD + "Description: First\n        second\n       |\n       |  third\nLicense: MIT\n") == "First\nsecond\n\n  third"


def test_distribution_without_description_is_empty():
    assert one(HEAD, reader="python_environment", media_type=METADATA_TYPE)[:2] == (None, "empty")


def test_plain_text_is_taken_as_it_is():
    assert one("# A\r\n\tb ", reader="tree", media_type="text/markdown")[0] == "# A\r\n\tb "
    assert one("", reader="tree", media_type="text/markdown")[:2] == (None, "empty")
