"""What a reader hands over: records, places without content, broken records, and the break of a whole file.

Every reader has one shape: `read(stream, path, source)` yields `Record | Empty | Broken` in the order of the file and raises
`IncompleteFile` where the file itself breaks off; what was yielded before stays true.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, BinaryIO

import orjson

from pipeline.errors import SourceError
from pipeline.recipe import Source

# Rejects keep this much of a record: enough to recognise a format error, small against the 1 MiB a row may hold.
HEAD_BYTES = 4096

RECORD_REASONS = (
    "unparsable",  # not JSON
    "not_utf8",
    "lone_surrogate",  # half a surrogate pair, which no UTF-8 text can hold
    "nul_character",  # U+0000 in a field we read, or in a line of text
    "duplicate_key",  # a name we read stands twice, so two parsers would read two documents
    "not_an_object",
    "missing_field",
    "wrong_type",
    "bad_time",  # declared time that cannot be read; the snapshot date never replaces it silently
    "too_large",  # above the source's max_payload_bytes
    "binary",  # a file that holds no text
)
FILE_REASONS = (
    "truncated_member",  # a compressed stream that stops in the middle
    "corrupt_member",
    "not_compressed",  # the suffix says .gz or .zst, the first bytes do not
    "undeclared_compression",  # the first bytes are of a compressed file, the suffix does not say so
    "trailing_bytes",  # bytes after the last member that are neither a member nor padding
    "corrupt_file",
    "missing_column",
)
INCOMPLETE = "incomplete_file"  # reason of the one reject that stands for a tolerated break
REASONS = (*RECORD_REASONS, INCOMPLETE)


class IncompleteFile(SourceError):
    """A file that cannot be read to its end.

    Attributes:
        reason: one word of `FILE_REASONS`.
        offset: byte offset in the file as stored; for Parquet the row number.
        detail: what was found there; never text of the file.
    """

    def __init__(self, reason: str, offset: int, detail: str) -> None:
        super().__init__(f"{reason} at {offset}: {detail}")
        self.reason, self.offset, self.detail = reason, offset, detail


@dataclass(slots=True)
class Record:
    """One payload as received, with what it says about itself.

    Attributes:
        place: byte offset in the decompressed stream, row number, or 0 for a single file.
        payload: the bytes exactly; for Parquet the canonical JSON of the declared columns.
        charset: declared by the record or the file (a byte order mark), not guessed.
        keys: (field name, value) of every declared deletion key the record has.
        meta: declared further fields, as text.
    """

    place: int
    payload: bytes
    media_type: str
    charset: str | None = None
    record: str | None = None
    uri: str | None = None
    collected_at: datetime | None = None
    licence: str | None = None
    keys: list[tuple[str, str]] = field(default_factory=list)
    meta: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Empty:
    """A place that holds no text: a blank line, an empty file, a null."""

    place: int


@dataclass(slots=True)
class Broken:
    """A record that cannot become evidence. `sha256` and `size_bytes` are of the whole record, `head` is its beginning."""

    place: int
    reason: str
    detail: str
    head: bytes
    sha256: str
    size_bytes: int

    @classmethod
    def of(cls, place: int, reason: str, detail: str, data: bytes) -> Broken:
        """From a record that is in memory."""
        return cls(place, reason, detail, data[:HEAD_BYTES], hashlib.sha256(data).hexdigest(), len(data))


Item = Record | Empty | Broken
Reader = Callable[[BinaryIO, str, Source], Iterator[Item]]


def json_default(value: Any) -> Any:
    """What JSON has no form for: decimals in plain digits, nested bytes as hex, durations and the rest as their text."""
    if isinstance(value, bytes):
        return value.hex()
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def plain_json(value: Any) -> bytes:
    """Canonical JSON of received values: no spaces, sorted keys, shortest floats, integers exact to 64 bits.

    RFC 8785 for strings, booleans, nulls, integers to 2^53 and lists and objects of them; beyond, it keeps what RFC 8785 refuses
    or rewrites (64-bit ids, `1.0`). A float that JSON cannot hold becomes null. A tenth of the time of the RFC 8785 writer,
    which is pure Python.
    """
    return orjson.dumps(value, default=json_default, option=orjson.OPT_SORT_KEYS)


def scalar_text(value: Any) -> str | None:
    """A field's value as text for `meta`: strings as they are, numbers and times in their usual form, nested values as JSON text."""
    if value is None or type(value) is str:
        return value
    if type(value) is int:
        return str(value)
    if isinstance(value, Mapping | list | bool | float):
        return plain_json(value).decode()
    return value.isoformat() if hasattr(value, "isoformat") else str(json_default(value))
