"""A look at a source before it is taken in: its first records, what would become of them, and which fields they have."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import SourceError
from pipeline.raw_evidence import rights
from pipeline.raw_evidence.capture import READERS
from pipeline.raw_evidence.readers.fields import Plan
from pipeline.raw_evidence.readers.records import Broken, IncompleteFile, Record
from pipeline.raw_evidence.readers.streams import SUFFIXES, chunks, lines, plain_chunks
from pipeline.recipe import Source

LIMIT = 100
RATIO_BYTES = 2**18  # compressed bytes a ratio is measured on
REJECTS_SHOWN = 20
STRUCTURED = ("jsonl", "parquet")

Open = Callable[[], BinaryIO]


@dataclass(frozen=True)
class Sized:
    """A container before it is read: path, bytes as stored, and how to open it."""

    path: str
    size_bytes: int
    open: Open


@dataclass
class Field:
    """A field records have: in how many of those looked at, of which types, and what the source file reads it as."""

    n_records: int = 0
    types: Counter[str] = field(default_factory=Counter)
    roles: tuple[str, ...] = ()


@dataclass
class Preview:
    """What the first records of a source would become.

    Attributes:
        counts: parsed, empty, rejected; rejects: place, reason, detail, the first 20; reasons: all of them.
        fields: of JSONL and Parquet, by name. unread: containers that could not be read to the end of what was looked at.
        n_containers, size_bytes: of the whole source; estimated_records, and whether that is exact.
        problems: what would stop the intake. doubts: what would not.
    """

    n_containers: int
    size_bytes: int
    counts: Counter[str] = field(default_factory=lambda: Counter(parsed=0, empty=0, rejected=0))
    reasons: Counter[str] = field(default_factory=Counter)
    rejects: list[dict[str, Any]] = field(default_factory=list)
    fields: dict[str, Field] = field(default_factory=dict)
    unread: list[dict[str, Any]] = field(default_factory=list)
    payload_bytes: int = 0
    without_deletion_key: int = 0
    licences: Counter[str] = field(default_factory=Counter)
    n_read: int = 0
    estimated_records: int | None = None
    exact: bool = False
    problems: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, with `ok`: nothing would stop the intake. Names, places and counts only."""
        plain = {name: dict(value) if isinstance(value, Counter) else value for name, value in vars(self).items()}
        fields = {
            name: {"n_records": one.n_records, "types": dict(one.types), "mapped": list(one.roles)} for name, one in self.fields.items()
        }
        return {
            "ok": not self.problems,
            **plain,
            "fields": fields,
            "unmapped": [name for name, one in self.fields.items() if not one.roles],
        }


def preview(source: Source, containers: Iterable[Sized], *, limit: int = LIMIT) -> Preview:
    """Read the first `limit` records with the source's own reader; nothing is kept and no value of a record is shown."""
    held = sorted(containers, key=lambda one: one.path)
    found = Preview(len(held), sum(one.size_bytes for one in held))
    _rights(source, found)
    if not held:
        found.problems.append("no container is selected; check location, include and exclude")
        return found
    if source.reader in STRUCTURED:
        _fields(source, held, found, limit)
    try:
        sample = _read(source, held, found, limit)
    except SourceError as error:
        found.problems.append(str(error))
        return found
    _estimate(source, held, found, sample)
    _judge(source, found)
    return found


def census(reader: str, containers: Iterable[Sized], *, limit: int = LIMIT) -> dict[str, Field]:
    """Fields of the first records of JSONL or Parquet, whatever a source file says about them; names and types only."""
    fields: dict[str, Field] = {}
    left = limit
    for one in containers:
        if left <= 0:
            break
        with one.open() as stream, suppress(IncompleteFile, pa.ArrowException, OSError, ValueError):
            for row in _rows(reader, stream, one.path, left):
                left -= 1
                for name, value in row.items():
                    there = fields.setdefault(name, Field())
                    there.n_records += 1
                    there.types[_type(value)] += 1
    return fields


def _rights(source: Source, found: Preview) -> None:
    if rights.spdx(source.licence) is None:
        found.problems.append(f"licence {source.licence!r} is neither an SPDX expression nor `unknown`")
    if not source.consent_basis.strip():
        found.problems.append("consent_basis is empty; say why this may be held")


def _fields(source: Source, held: list[Sized], found: Preview, limit: int) -> None:
    found.fields = census(source.reader, held, limit=limit)
    roles: dict[str, list[str]] = {}
    for role, names in source.fields.items():
        for name in names:
            roles.setdefault(name, []).append(role)
    for name in source.deletion_key_fields:
        roles.setdefault(name, []).append("deletion key")
    if source.licence_field:
        roles.setdefault(source.licence_field, []).append("licence")
    for name, of in roles.items():
        there = found.fields.setdefault(name, Field())
        there.roles = tuple(of)
        if not there.n_records:
            found.doubts.append(f"field {name!r} ({', '.join(of)}) is in none of the records looked at")


def _read(source: Source, held: list[Sized], found: Preview, limit: int) -> list[tuple[Sized, int, int, bool]]:
    """Items of each container that was looked at: (container, items, decompressed bytes they end at, read to its end)."""
    if source.reader in STRUCTURED:
        Plan.of(source)  # raises for a mapping that cannot be
    reader, sample = READERS[source.reader], []
    for one in held:
        n, end, whole = 0, 0, False
        try:
            with one.open() as stream:
                whole = True
                for item in reader(stream, one.path, source):
                    n += 1
                    end = max(end, _take(source, one, item, found))
                    if found.n_read >= limit:
                        whole = False
                        break
        except IncompleteFile as stop:
            found.unread.append({"container": one.path, "reason": stop.reason, "offset": stop.offset, "detail": stop.detail})
        sample.append((one, n, end, whole))
        if found.n_read >= limit:
            break
    return sample


def _take(source: Source, one: Sized, item: Any, found: Preview) -> int:
    """Count an item; returns where it ends."""
    found.n_read += 1
    if type(item) is Record:
        found.counts["parsed"] += 1
        found.payload_bytes += len(item.payload)
        found.without_deletion_key += not (item.uri or item.record or item.keys)
        if source.licence_field:
            found.licences[(rights.spdx(item.licence) if item.licence else None) or rights.UNKNOWN] += 1
        return int(item.place) + len(item.payload) + 1
    if type(item) is Broken:
        found.counts["rejected"] += 1
        found.reasons[item.reason] += 1
        if len(found.rejects) < REJECTS_SHOWN:
            found.rejects.append({"place": f"{one.path}#{item.place}", "reason": item.reason, "detail": item.detail})
        return int(item.place) + item.size_bytes + 1
    found.counts["empty"] += 1
    return int(item.place) + 1


def _estimate(source: Source, held: list[Sized], found: Preview, sample: list[tuple[Sized, int, int, bool]]) -> None:
    """Records of the whole source: exact when all was read or counted, else by bytes."""
    if len(sample) == len(held) and all(whole for *_, whole in sample):
        found.estimated_records, found.exact = found.n_read, True
    elif source.reader in ("tree", "python_environment") or (source.reader == "text" and not source.split_lines):
        found.estimated_records, found.exact = len(held), True
    else:
        n, size = 0.0, 0.0
        for one, items, end, whole in sample:
            if source.reader == "parquet":
                n, size = n + _parquet_rows(one, items), size + one.size_bytes
            else:
                n += items
                size += one.size_bytes if whole else end / _ratio(one)
        found.estimated_records = round(n * found.size_bytes / size) if size else None
        found.exact = source.reader == "parquet" and len(sample) == len(held)


def _judge(source: Source, found: Preview) -> None:
    if len(found.unread) > source.max_incomplete_files:
        found.problems.append(
            f"{len(found.unread)} of the files looked at are incomplete, max_incomplete_files is {source.max_incomplete_files}"
        )
    if not found.counts["parsed"]:
        found.problems.append(f"none of the {found.n_read} records looked at could be read; check reader, fields and charset")
    elif found.counts["rejected"] * 10 > found.n_read:
        found.doubts.append(f"{found.counts['rejected']} of {found.n_read} records would be rejected: more than one in ten")
    if source.deletion_key_fields and found.without_deletion_key:
        n = found.without_deletion_key
        found.doubts.append(f"{n} of {found.counts['parsed']} records have no deletion key, though the source names fields for it")


def _rows(reader: str, stream: BinaryIO, path: str, limit: int) -> Iterator[dict[str, Any]]:
    if reader == "parquet":
        file = pq.ParquetFile(pa.PythonFile(stream, mode="r"), pre_buffer=False)
        batch = next(file.iter_batches(batch_size=limit, use_threads=False), None)
        if batch is not None:
            yield from batch.to_pylist()
        return
    n = 0
    for _, line in lines(plain_chunks(stream, path), max_bytes=2**26):
        if n >= limit:
            return
        if isinstance(line, Broken) or not line.strip():
            continue
        n += 1
        with suppress(orjson.JSONDecodeError):
            row = orjson.loads(line.removeprefix(b"\xef\xbb\xbf"))
            if isinstance(row, dict):
                yield row


def _type(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, str):
        return "text" if value.strip() else "blank text"
    names = {int: "number", float: "number", list: "list", dict: "object"}
    return names.get(type(value), type(value).__name__)


def _ratio(one: Sized) -> float:
    """Decompressed bytes per stored byte, measured on the beginning."""
    if not one.path.endswith(tuple(SUFFIXES)):
        return 1.0
    with one.open() as stream:
        head = stream.read(RATIO_BYTES)
    given = 0
    with suppress(IncompleteFile):
        for chunk in chunks(io.BytesIO(head), one.path):
            given += len(chunk)
    return max(given, 1) / max(len(head), 1)


def _parquet_rows(one: Sized, seen: int) -> int:
    try:
        with one.open() as stream:
            return int(pq.ParquetFile(pa.PythonFile(stream, mode="r"), pre_buffer=False).metadata.num_rows)
    except (pa.ArrowException, OSError, ValueError):
        return seen
