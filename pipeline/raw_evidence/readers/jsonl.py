"""JSON Lines: one object per line, only LF ends a record, the payload is the line's bytes exactly.

A name that we read may stand only once: parsers differ in which of two they take, so the text that is cleaned, the id that is
looked up and the value whose deletion is asked for could come from different readings of one record. Other names may repeat:
nothing is read from them, and the payload keeps them. In chat records no object inside may repeat a name.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, BinaryIO

import orjson

from pipeline.raw_evidence.readers.fields import Fault, Plan
from pipeline.raw_evidence.readers.records import Broken, Empty, Item, Record
from pipeline.raw_evidence.readers.streams import lines, plain_chunks
from pipeline.recipe import Source

MEDIA_TYPE = "application/json"
_SURROGATE = re.compile("[\ud800-\udfff]")
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
# Parsers and writers give up at depths from 254 to thousands, some depending on how deep the caller stands; documents are flat.
MAX_DEPTH = 100
_NO_BRACKET = bytes(set(range(256)) - set(b"[]{}"))


def read(stream: BinaryIO, path: str, source: Source) -> Iterator[Item]:
    """Records of a JSONL file (plain, .gz, .zst). Offsets are bytes of the decompressed stream; blank lines are `Empty`."""
    plan = Plan.of(source)
    names = [orjson.dumps(name) for name in plan.columns]
    escaped = _escaped(plan.columns)
    charset: str | None = None
    for number, (offset, line) in enumerate(lines(plain_chunks(stream, path), max_bytes=source.max_payload_bytes), start=1):
        bom = False
        if isinstance(line, Broken):
            line.detail = f"line {number}: {line.detail}"
            yield line
            continue
        if number == 1 and line.startswith(codecs.BOM_UTF8):
            # the mark belongs to the file, not to its first record
            bom, offset, line, charset = True, offset + 3, line[3:], "utf-8"
        if not line or line.isspace():
            yield Empty(offset)
            continue
        if line.count(b"[") + line.count(b"{") > MAX_DEPTH and _depth(line) > MAX_DEPTH:
            yield Broken.of(offset, "unparsable", f"line {number}: nested deeper than {MAX_DEPTH}", line)
            continue
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            reason, what = _diagnose(line, error)
            yield Broken.of(offset, reason, f"line {number}: {what}", line)
            continue
        if type(row) is not dict:
            yield Broken.of(offset, "not_an_object", f"line {number}: expected a JSON object, found {type(row).__name__}", line)
            continue
        if plan.messages or escaped.search(line) or any(line.count(name) > 1 for name in names):
            twice = _twice(line, plan)
            if twice:
                yield Broken.of(offset, "duplicate_key", f"line {number}: {twice}", line)
                continue
        if any(type(row.get(name)) is float for name in plan.scalars):
            # ids and meta keep the digits that were received; integers beyond 64 bits come here too
            exact = json.loads(line, parse_float=str)
            row.update({name: exact[name] for name in plan.scalars if type(row.get(name)) is float})
        facts = plan.read(row)
        if facts is None:
            yield Empty(offset)
        elif isinstance(facts, Fault):
            yield Broken.of(offset, facts.reason, f"line {number}: {facts.detail}", line)
        else:
            if bom:
                facts.meta["bom"] = "utf-8"
            yield Record(
                offset, line, MEDIA_TYPE, charset, facts.record, facts.uri, facts.collected_at, facts.licence, facts.keys, facts.meta
            )


def _depth(line: bytes) -> int:
    """How deep brackets stand in brackets, those in strings left out."""
    brackets = _STRING.sub(b"", line).translate(None, delete=_NO_BRACKET)
    return max(accumulate(1 if bracket in b"[{" else -1 for bracket in brackets), default=0)


def _escaped(names: tuple[str, ...]) -> re.Pattern[bytes]:
    """Escapes that could spell a character of one of the names: the one way in which a name stands in a line without its bytes."""
    units = {unit for name in names for unit in _utf16(name)}
    codes = "|".join(sorted(f"{unit:04x}" for unit in units))
    slash = "|/" if ord("/") in units else ""
    return re.compile(rf"\\(?:u(?:{codes}){slash})".encode(), re.IGNORECASE)


def _utf16(name: str) -> list[int]:
    raw = name.encode("utf-16-be")
    return [int.from_bytes(raw[i : i + 2]) for i in range(0, len(raw), 2)]


def _diagnose(line: bytes, error: orjson.JSONDecodeError) -> tuple[str, str]:
    """Reason and place of what the strict parser refused. Positions only: parser messages are not ours to print."""
    try:
        text = line.decode()
    except UnicodeDecodeError as wrong:
        return "not_utf8", f"byte {wrong.start} of {len(line)} is not UTF-8"
    try:
        if _has_surrogate(json.loads(text)):
            return "lone_surrogate", f"half a surrogate pair at character {error.pos} or later"
    except ValueError:
        pass
    return "unparsable", f"not JSON at character {error.pos} of {len(text)}"


def _has_surrogate(value: Any) -> bool:
    if isinstance(value, str):
        return _SURROGATE.search(value) is not None
    if isinstance(value, dict):
        return any(_has_surrogate(key) or _has_surrogate(item) for key, item in value.items())
    return isinstance(value, list) and any(_has_surrogate(item) for item in value)


def _twice(line: bytes, plan: Plan) -> str:
    """What stands twice: a name that is read, or any name inside an object of a chat record. Empty when nothing does."""
    inner, outer = 0, [""]

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal inner, outer
        outer = [name for name, _ in items]  # the outermost object comes last
        made = dict(items)
        if len(made) != len(items):
            inner += 1
        return made

    json.loads(line, object_pairs_hook=pairs)
    names = [name for name in plan.columns if outer.count(name) > 1]
    if names:
        return f"field {names[0]!r} stands {outer.count(names[0])} times"
    inner -= len(set(outer)) != len(outer)
    return f"{inner} objects inside the record repeat a name" if plan.messages and inner else ""
