"""Which fields of a JSON object or Parquet row are read, and what a row says about itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from datetime import date as calendar_date
from typing import Any

from pipeline.errors import SourceError
from pipeline.raw_evidence.readers.records import scalar_text
from pipeline.recipe import Source

RESERVED_META = ("id", "bom", "licence_stated")  # keys that readers and capture write themselves


@dataclass(slots=True)
class Fault:
    """Why a row is a reject: one word of `RECORD_REASONS`, and what was expected; never a value."""

    reason: str
    detail: str


@dataclass(slots=True)
class Facts:
    """What a row with text says about itself; see `Record`."""

    record: str | None = None
    uri: str | None = None
    collected_at: datetime | None = None
    licence: str | None = None
    keys: list[tuple[str, str]] = field(default_factory=list)
    meta: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """Names of the fields that are read, from the source file.

    Attributes:
        text: fields joined by a blank line when the document is made; every one has to be there, null counts as no text.
        scalars: fields whose values become text: id, meta, deletion keys.
    """

    text: tuple[str, ...]
    messages: str
    record: str
    uri: str
    collected_at: str
    licence: str
    meta: tuple[str, ...]
    keys: tuple[str, ...]
    scalars: tuple[str, ...]
    columns: tuple[str, ...]

    @classmethod
    def of(cls, source: Source) -> Plan:
        """Raises SourceError when a field that holds one value is given several, or a meta name is reserved."""

        def one(name: str) -> str:
            names = source.fields.get(name, ())
            if len(names) > 1:
                raise SourceError(f"source {source.name}: fields.{name} takes one field, found {len(names)}")
            return names[0] if names else ""

        text, meta = source.fields.get("text", ()), source.fields.get("meta", ())
        record, messages, uri, at = one("id"), one("messages"), one("url"), one("collected_at")
        for name in meta:
            if name in RESERVED_META and not name == record == "id":
                raise SourceError(f"source {source.name}: fields.meta may not hold {name!r}, a name that intake writes itself")
        keys, licence = source.deletion_key_fields, source.licence_field
        scalars = tuple(dict.fromkeys(n for n in (record, licence, *meta, *keys) if n))
        columns = tuple(dict.fromkeys(n for n in (*text, messages, uri, at, *scalars) if n))
        return cls(text, messages, record, uri, at, licence, meta, keys, scalars, columns)

    def read(self, row: Mapping[str, Any]) -> Facts | Fault | None:
        """Facts of a row, a fault, or None when it holds no text (null, blank, or no messages)."""
        found = 0
        for name in self.text:
            value = row.get(name, row)  # the row itself stands for "not there": no field can hold it
            if type(value) is str:
                if "\0" in value:
                    return Fault("nul_character", f"field {name!r} holds U+0000")
                found += bool(value) and not value.isspace()
            elif value is row:
                return Fault("missing_field", f"expected field {name!r}, found {len(row)} other fields")
            elif value is not None:
                return Fault("wrong_type", f"field {name!r} must be text, found {type(value).__name__}")
        if self.messages:
            turns = row.get(self.messages, row)
            if turns is row:
                return Fault("missing_field", f"expected field {self.messages!r}, found {len(row)} other fields")
            if turns is not None:
                if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
                    return Fault("wrong_type", f"field {self.messages!r} must be a list of objects")
                if _holds_nul(turns):
                    return Fault("nul_character", f"field {self.messages!r} holds U+0000")
                found += bool(turns)
        if not found:
            return None
        return self._facts(row)

    def _facts(self, row: Mapping[str, Any]) -> Facts | Fault:
        facts = Facts()
        if self.uri:
            uri = row.get(self.uri)
            if uri is not None and type(uri) is not str:
                return Fault("wrong_type", f"field {self.uri!r} must be text, found {type(uri).__name__}")
            facts.uri = uri or None
        if self.collected_at:
            at = _time(row.get(self.collected_at))
            if isinstance(at, str):
                return Fault("bad_time", f"field {self.collected_at!r} must be an ISO 8601 time or seconds since 1970, found {at}")
            facts.collected_at = at
        if self.licence:
            licence = row.get(self.licence)
            if licence is not None and type(licence) is not str:
                return Fault("wrong_type", f"field {self.licence!r} must be text, found {type(licence).__name__}")
            facts.licence = licence or None
        for name in self.meta:
            text = scalar_text(row.get(name))
            if text is not None:
                facts.meta[name] = text
        if self.record:
            value = row.get(self.record)
            if isinstance(value, list | dict):
                return Fault("wrong_type", f"field {self.record!r} must be text or a number, found {type(value).__name__}")
            facts.record = scalar_text(value) or None
            if facts.record is not None:
                facts.meta["id"] = facts.record
        for name in self.keys:
            value = row.get(name)
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, list | dict):
                    return Fault("wrong_type", f"deletion key field {name!r} must hold text, numbers or a list of them")
                text = scalar_text(item)
                if text:
                    facts.keys.append((name, text))
        if any("\0" in text for text in (facts.uri or "", facts.licence or "", *facts.meta.values(), *(k[1] for k in facts.keys))):
            return Fault("nul_character", "a field that is read for id, url, licence, meta or deletion keys holds U+0000")
        return facts


def _holds_nul(value: Any) -> bool:
    if type(value) is str:
        return "\0" in value
    if isinstance(value, dict):
        return any(_holds_nul(item) for item in value.values())
    return isinstance(value, list) and any(_holds_nul(item) for item in value)


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _time(value: Any) -> datetime | str | None:
    """UTC time; None when none is declared; the name of what was found when it is no time. Times without a zone are UTC."""
    if value is None or value == "":
        return None
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            return EPOCH + timedelta(seconds=value)
        elif isinstance(value, calendar_date) and not isinstance(value, datetime):
            value = datetime(value.year, value.month, value.day)
        if isinstance(value, datetime):
            return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    return type(value).__name__
