"""Decoded payloads to raw documents, by what the source's reader delivers.

- `jsonl`, `parquet`: one JSON object. The text fields the source declares, then its messages,
  joined by blank lines.
- `text/x-python-metadata`: the description of a distribution; the other headers are no document.
- everything else: the text as it is.

A conversation becomes plain text: for each message one header line `### <role>`, then the content exactly as it came, with a
blank line between messages. The header is for reading; a content may hold such a line itself, so the text is not parsed back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.recipe import Source

METADATA_TYPE = "text/x-python-metadata"
EMPTY = "empty"
_HEADER_END = re.compile(r"\r?\n\r?\n|\A\r?\n")
_FOLD = re.compile(r"\r?\n(?:       \||        |\t|[ ]{1,7}(?!\|))")


@dataclass(frozen=True)
class Extracted:
    """`texts` (large_string, null without a document); per row `reasons`: nothing, `empty`, or why the payload is a reject."""

    texts: pa.Array
    reasons: list[str]
    details: list[str]


@dataclass(frozen=True)
class _Found:
    text: str | None
    reason: str = ""
    detail: str = ""


def extract(texts: pa.Array, media_types: pa.Array, *, source: Source) -> Extracted:
    """The document of each decoded payload.

    Args: texts, large_string, null where the payload was rejected before; media_types, one per row.
    """
    if source.reader in ("jsonl", "parquet"):
        found = [_Found(None) if text is None else _from_json(text, source) for text in texts.to_pylist()]
        return _column(found)
    metadata = pc.equal(media_types, METADATA_TYPE).fill_null(False)
    if pc.any(metadata).as_py():
        pairs = zip(texts.to_pylist(), metadata.to_pylist(), strict=True)
        return _column([_Found(None) if text is None else _checked(description(text) if meta else text) for text, meta in pairs])
    empty = pc.equal(pc.binary_length(texts), 0).fill_null(False)
    none = pc.if_else(empty, pa.scalar(None, pa.large_string()), texts)
    return Extracted(none, pc.if_else(empty, EMPTY, "").to_pylist(), [""] * len(texts))


def _column(found: list[_Found]) -> Extracted:
    texts = pa.array([f.text for f in found], type=pa.large_string())
    return Extracted(texts, [f.reason for f in found], [f.detail for f in found])


def _checked(text: str) -> _Found:
    return _Found(text) if text else _Found(None, EMPTY)


def description(text: str) -> str:
    """Description of a distribution: the body after the headers, else the unfolded `Description` header, else nothing.

    Source: core metadata specification; folded lines begin with seven spaces and `|`, or with white space.
    """
    end = _HEADER_END.search(text)
    headers, body = (text[: end.start()], text[end.end() :]) if end else (text, "")
    if body.strip():
        return body
    found = re.search(r"^Description:[ \t]*((?:.*)(?:\r?\n[ \t].*)*)", headers, re.MULTILINE | re.IGNORECASE)
    return _FOLD.sub("\n", found.group(1)) if found else ""


def _from_json(text: str, source: Source) -> _Found:
    try:
        record = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return _Found(None, "unparsable", f"expected one JSON object, parser stopped at character {error.pos} of {len(text)}")
    if not isinstance(record, dict):
        return _Found(None, "not_an_object", f"expected a JSON object, found {_type(record)}")
    parts = []
    for name in source.fields.get("text", ()):
        if name not in record:
            return _Found(None, "missing_field", f"expected the field {name!r}, found {len(record)} others")
        value = record[name]
        if value is not None and not isinstance(value, str):
            return _Found(None, "wrong_type", f"field {name!r}: expected text, found {_type(value)}")
        parts.append(value or "")
    for name in source.fields.get("messages", ()):
        if name not in record:
            return _Found(None, "missing_field", f"expected the field {name!r}, found {len(record)} others")
        talk = _conversation(record[name], name)
        if talk.reason and talk.reason != EMPTY:
            return talk
        parts.append(talk.text or "")
    return _checked("\n\n".join(part for part in parts if part))


def _conversation(messages: object, name: str) -> _Found:
    if messages is None or messages == []:
        return _Found(None, EMPTY)
    if not isinstance(messages, list):
        return _Found(None, "wrong_type", f"field {name!r}: expected a list of messages, found {_type(messages)}")
    turns, some = [], False
    for i, message in enumerate(messages):
        where = f"message {i} of {len(messages)}"
        if not isinstance(message, dict) or not isinstance(message.get("role"), str) or not message["role"].strip():
            return _Found(None, "unsupported_turn", f"{where}: expected an object with a role")
        role = message["role"]
        if "\n" in role or "\r" in role:
            return _Found(None, "unsupported_turn", f"{where}: expected a role of one line")
        if message.get("tool_calls") or message.get("function_call"):
            return _Found(None, "unsupported_turn", f"{where}: holds tool calls, which plain text would lose")
        content = _content(message.get("content"))
        if content is None:
            return _Found(None, "unsupported_turn", f"{where}: expected text or parts of text as content")
        some = some or bool(content)
        turns.append(f"### {role}\n{content}")
    return _Found("\n\n".join(turns)) if some else _Found(None, EMPTY)


def _content(content: object) -> str | None:
    """Text of a message: a string, or a list of parts of type `text` (under `text` or `value`), joined without anything between."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    parts = []
    for part in content:
        if isinstance(part, str):
            parts.append(part)
            continue
        inner = part.get("text", part.get("value")) if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(inner, str):
            return None
        parts.append(inner)
    return "".join(parts)


def _type(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
