"""Records become evidence rows or rejects; nothing is lost between the two, and nothing is edited."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, BinaryIO

import orjson
import packaging
import pyarrow as pa
import zstandard

from pipeline import ids
from pipeline.errors import ContractError, SourceError
from pipeline.ledger import Ledger
from pipeline.raw_evidence import rights
from pipeline.raw_evidence.identifiers import FIELD, RECORD, URI, DeletionKey
from pipeline.raw_evidence.inventory import Container, summary
from pipeline.raw_evidence.readers import jsonl, parquet, python_environment, text, tree
from pipeline.raw_evidence.readers.records import INCOMPLETE, Broken, Empty, IncompleteFile, Reader, Record
from pipeline.recipe import Source
from pipeline.schemas import EVIDENCE, EVIDENCE_REJECTS, TableSpec
from pipeline.stages import StageVersion

STATE = "raw_evidence"
STAGE = "evidence"
# Raised when rows change for the same bytes and source file; the golden fixture fails when that happens without it.
CODE_VERSION = "1"

READERS: dict[str, Reader] = {
    "jsonl": jsonl.read,
    "parquet": parquet.read,
    "text": text.read,
    "tree": tree.read,
    "python_environment": python_environment.read,
}
INLINE_BYTES = 2**20  # larger payloads are blobs: 100 MB values in a row cost the default Parquet writers 9 GB
BATCH_BYTES = 64 * 2**20
BATCH_ROWS = 65536
NAMED_FILES = 20  # an error names this many files, and counts the rest


@dataclass(frozen=True)
class Captured:
    """One source snapshot as received.

    Attributes:
        evidence, rejects: tables of the EVIDENCE and EVIDENCE_REJECTS contracts, ordered by container path, then place.
        ledgers: payloads: in = parsed + empty + rejected by reason; bytes, blobs and containers beside it.
        incomplete: (path, reason, offset) of the files that broke off and were tolerated.
    """

    evidence: pa.Table
    rejects: pa.Table
    ledgers: tuple[Ledger, ...]
    incomplete: tuple[tuple[str, str, int], ...]


def stage_version(source: Source, snapshot: date, containers: Iterable[Container]) -> StageVersion:
    """Version of a source snapshot: the source file, the inventory, the reader and the packages it reads with."""
    held = list(containers)
    part: dict[str, Any] = {"source": source.identity(), **summary(held)}
    packages = {}
    if source.reader in ("jsonl", "parquet"):
        packages["orjson"] = orjson.__version__
    if source.reader == "parquet":
        packages["pyarrow"] = pa.__version__
    elif any(container.path.endswith(".zst") for container in held):
        packages["zstandard"] = zstandard.__version__
    if source.licence_field or source.reader == "python_environment":
        packages["packaging"] = packaging.__version__
    partition = {"source": source.name, "snapshot": snapshot.isoformat()}
    return StageVersion(STAGE, STATE, partition, CODE_VERSION, part, {}, {}, packages)


def capture(
    source: Source,
    snapshot: date,
    opened: Iterable[tuple[Container, Callable[[], BinaryIO]]],
    *,
    version: str,
    deletion_key: DeletionKey | None,
    put_blob: Callable[[bytes], str],
) -> Captured:
    """Read every container of a source snapshot into evidence and rejects.

    Args:
        opened: container and a function that opens it; each is opened once, in the order of paths, and closed.
        version: of `stage_version`, written on every row.
        put_blob: keeps a payload above 1 MiB and returns its sha256.
    Raises: SourceError, naming what was found, when there is no deletion key or no container, when more files break off than
        `max_incomplete_files`, and when no payload could be read.
    Invariant: the order of `opened` changes nothing. in = parsed + empty + rejected.
    """
    if deletion_key is None:
        raise SourceError(f"source {source.name}: no deletion key is configured; nothing is taken in that nobody could ask to delete")
    containers = sorted(opened, key=lambda pair: pair[0].path)
    if not containers:
        raise SourceError(f"source {source.name} {snapshot}: empty, 0 containers; check location, include and exclude")
    summary(container for container, _ in containers)  # refuses a path that stands twice
    intake = _Intake(source, snapshot, version, deletion_key, put_blob)
    reader = READERS[source.reader]
    incomplete: list[tuple[str, str, int]] = []
    named: list[str] = []
    for container, open_container in containers:
        try:
            with open_container() as stream:
                for item in reader(stream, container.path, source):
                    intake.take(container, item)
        except IncompleteFile as stop:
            # what was read before stays; the break itself is one reject, and the file does not count as whole
            incomplete.append((container.path, stop.reason, stop.offset))
            named.append(f"{container.path} ({stop})")
            intake.take(container, Broken(stop.offset, INCOMPLETE, str(stop), b"", container.sha256, container.size_bytes))
    if len(incomplete) > source.max_incomplete_files:
        more = f" and {len(named) - NAMED_FILES} more" if len(named) > NAMED_FILES else ""
        raise SourceError(
            f"source {source.name} {snapshot}: {len(incomplete)} of {len(containers)} files are incomplete, "
            f"max_incomplete_files is {source.max_incomplete_files}: {'; '.join(named[:NAMED_FILES])}{more}. Fetch them again, exclude "
            "them, or raise max_incomplete_files"
        )
    return intake.close(len(containers), tuple(incomplete))


class _Intake:
    """Rows under construction; Arrow batches are cut by bytes, so that no value offset passes 32 bits."""

    def __init__(
        self,
        source: Source,
        snapshot: date,
        version: str,
        deletion_key: DeletionKey,
        put_blob: Callable[[bytes], str],
    ) -> None:
        licence = rights.spdx(source.licence)
        if licence is None:
            raise SourceError(f"source {source.name}: licence {source.licence!r} is neither an SPDX expression nor `unknown`")
        if not source.consent_basis.strip():
            raise SourceError(f"source {source.name}: consent_basis is empty; say why this may be held")
        self._source, self._snapshot, self._version = source, snapshot, version
        self._key, self._put_blob, self._licence = deletion_key, put_blob, licence
        self._midnight = datetime(snapshot.year, snapshot.month, snapshot.day, tzinfo=UTC)
        self._spdx: dict[str, str | None] = {}  # records repeat few licences
        self._evidence, self._rejects = _Rows(EVIDENCE), _Rows(EVIDENCE_REJECTS)
        self._counts: Counter[str] = Counter(parsed=0, empty=0, payload_bytes=0, blobs=0, without_deletion_key=0)
        self._reasons: Counter[str] = Counter()

    def take(self, container: Container, item: Record | Empty | Broken) -> None:
        if type(item) is Record:
            self._record(container, item)
        elif type(item) is Broken:
            self._reasons[item.reason] += 1
            record_key = f"{container.path}#{item.place}"
            self._rejects.add(
                (
                    ids.reject_id(STATE, self._source.name, self._snapshot, record_key, item.reason),
                    self._version, self._source.name, self._snapshot, record_key, None,
                    item.reason, item.detail, item.sha256, item.size_bytes, item.head,
                ),
                len(item.head),
            )  # fmt: skip
        else:
            self._counts["empty"] += 1

    def _record(self, container: Container, item: Record) -> None:
        source, payload = self._source, item.payload
        record_key = f"{container.path}#{item.place}"
        sha256 = hashlib.sha256(payload).hexdigest()
        blob = None
        if len(payload) > INLINE_BYTES:
            blob = self._put_blob(payload)
            if blob != sha256:
                raise ContractError(f"blob of {record_key}: expected sha256 {sha256}, the store answered {blob}")
            self._counts["blobs"] += 1
        keys = []
        if item.uri:
            keys.append(self._key.of(URI, item.uri))
        if item.record:
            keys.append(self._key.of(RECORD, f"{source.name}:{item.record}"))
        keys.extend([self._key.of(FIELD + name, value) for name, value in item.keys])
        licence = container.licence or self._licence
        if item.licence:
            stated = item.licence
            if stated not in self._spdx:
                self._spdx[stated] = rights.spdx(stated)
            # what a record states about itself goes before its container, and that before the source
            licence = self._spdx[stated] or rights.UNKNOWN
            if licence != stated:
                item.meta["licence_stated"] = stated
        self._counts["parsed"] += 1
        self._counts["payload_bytes"] += len(payload)
        self._counts["without_deletion_key"] += not keys
        self._evidence.add(
            (
                ids.evidence_id(source.name, self._snapshot, record_key, sha256),
                self._version, source.name, self._snapshot, record_key, item.uri,
                payload if blob is None else None, blob, item.media_type, item.charset or source.charset or None,
                sha256, len(payload), item.collected_at or self._midnight, container.revision, container.fetched_at,
                licence, source.consent_basis, None, keys, container.sha256, item.place, "no", source.purpose,
                sorted(item.meta.items()),
            ),
            len(payload) if blob is None else 0,
        )  # fmt: skip

    def close(self, n_containers: int, incomplete: tuple[tuple[str, str, int], ...]) -> Captured:
        counts, reasons = self._counts, dict(sorted(self._reasons.items()))
        total = counts["parsed"] + counts["empty"] + sum(reasons.values())
        name = f"source {self._source.name} {self._snapshot}"
        if not counts["parsed"]:
            raise SourceError(
                f"{name}: nothing could be read: {n_containers} containers, {total} payloads, {counts['empty']} empty, "
                f"rejected {reasons}; check reader, fields and charset of the source file"
            )
        evidence, rejects = self._evidence.table(), self._rejects.table()
        for spec, table in ((EVIDENCE, evidence), (EVIDENCE_REJECTS, rejects)):
            spec.check_keys(table)
        if len(evidence) != counts["parsed"] or len(rejects) != sum(reasons.values()):
            raise ContractError(f"{name}: {len(evidence)} rows and {len(rejects)} rejects, counted {counts['parsed']} and {reasons}")
        ledger = Ledger(
            "payloads",
            "in",
            total,
            {"parsed": counts["parsed"], "empty": counts["empty"], "rejected": reasons},
            {
                "containers": n_containers,
                "incomplete_files": len(incomplete),
                "payload_bytes": counts["payload_bytes"],
                "blobs": counts["blobs"],
                "without_deletion_key": counts["without_deletion_key"],
            },
        )
        return Captured(evidence, rejects, (ledger.close(),), incomplete)


class _Rows:
    """Rows as tuples in schema order, turned into one Arrow batch whenever they hold enough."""

    def __init__(self, spec: TableSpec) -> None:
        self._schema = spec.schema
        self._rows: list[tuple[Any, ...]] = []
        self._size_bytes = 0
        self._batches: list[pa.RecordBatch] = []

    def add(self, row: tuple[Any, ...], size_bytes: int) -> None:
        self._rows.append(row)
        self._size_bytes += size_bytes
        if self._size_bytes >= BATCH_BYTES or len(self._rows) >= BATCH_ROWS:
            self._cut()

    def _cut(self) -> None:
        columns = zip(*self._rows, strict=True)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, self._schema, strict=True)]
        self._batches.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._rows, self._size_bytes = [], 0

    def table(self) -> pa.Table:
        if self._rows:
            self._cut()
        return pa.Table.from_batches(self._batches, self._schema)
