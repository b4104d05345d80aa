"""Lake: publish, read and verify versions; insert rows of control tables."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from os import PathLike
from typing import Any, TypeVar

import polars as pl
import pyarrow as pa

from pipeline.errors import LakeError
from pipeline.ledger import Ledger
from pipeline.schemas import RUN_VIEWS, SNAPSHOTS, TABLES, TableSpec
from pipeline.stages import StageVersion
from resources.faults import guarded
from resources.lake.checks import known, prepare, same_content, where
from resources.lake.delta import Conflict, DeltaTables, expression
from resources.lake.home import held, open_home, table_lock, version_lock
from resources.lake.rows import Prepared, compare, digest, ordered, polars_schema, select
from resources.lake.snapshot import Snapshot, TableRecord, from_row, partition_text, to_row
from resources.places import place_of

log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_ATTEMPTS = 30  # each lost race is another writer's progress; more writers than this at once are not expected
BACKOFF_SECONDS = 0.05
CONTROL = "control"  # the state of tables whose rows belong to no version


class Lake:
    """The Delta tables, and the folders of files beside them, below one root: a folder or `s3://bucket/prefix`. Cheap to make, picklable.

    Opens `lake.json`, or creates it in an empty folder. Raises LakeError for a newer format, with the command to run.
    """

    def __init__(self, root: str | PathLike[str]) -> None:
        self.root = place_of(root).root
        open_home(self.root)
        self._tables = DeltaTables(self.root)

    def __reduce__(self) -> tuple[type[Lake], tuple[str]]:
        return Lake, (self.root,)  # never with credentials: they are read from the environment there

    @property
    def files_root(self) -> str:
        """Where everything the loader reads lies."""
        return f"{self.root.rstrip('/')}/files"

    @property
    def blobs_root(self) -> str:
        """Where large payloads lie."""
        return f"{self.root.rstrip('/')}/blobs"

    def size_bytes(self) -> int:
        """Bytes of all files below the root, files and blobs too. In an object store, one question per 1,000 files."""
        with guarded("measuring", f"lake {self.root}", self.root):
            return sum(size for _, size in place_of(self.root).files())

    # -- snapshots ------------------------------------------------------------------------------------------------------

    def snapshot(self, version: str) -> Snapshot | None:
        """The completed record of a version; None while it has none, and then no reader sees its rows."""
        found = self._snapshot_rows({"version": version})
        if len(found) > 1:
            raise LakeError(f"version {version} has {len(found)} snapshot rows, expected one; another program wrote to {SNAPSHOTS.path}")
        return found[0] if found else None

    def snapshots(self, stage: str | None = None, partition: Mapping[str, str] | None = None) -> list[Snapshot]:
        """All completed records, or those of a stage and of exactly this partition; ordered by (created_at, version)."""
        values = {} if stage is None else {"stage": stage}
        if partition is not None:
            values["partition"] = partition_text(partition)
        found = self._snapshot_rows(values)
        return sorted(found, key=lambda snapshot: (snapshot.created_at, snapshot.version))

    def _snapshot_rows(self, values: Mapping[str, str]) -> list[Snapshot]:
        return [from_row(row) for row in self._load(SNAPSHOTS, {**values, "status": "complete"}).to_pylist()]

    # -- writing versions -----------------------------------------------------------------------------------------------

    def publish(
        self,
        stage: StageVersion,
        tables: Sequence[tuple[TableSpec, pa.Table]],
        ledgers: Sequence[Ledger],
        *,
        run_id: str,
        now: datetime,
        record: Mapping[str, Any] | None = None,
    ) -> Snapshot:
        """Write the tables of a version, then its snapshot row; killed at any point and called again, it ends as one copy.

        A version that is complete already is compared with what would be written and returned as it stands.

        Args: rows carry the version and the partition's values; ledgers close; `now` and `record` enter no id.
        Raises: LedgerError; ContractError, when rows break their schema or key or belong to another version or partition;
            LakeError, when the version is complete with other content, the disk is full, or the storage fails.
        """
        if now.tzinfo is None:
            raise ValueError("now: expected a time with a time zone, found a naive one")
        for ledger in ledgers:
            ledger.close()
        ready = prepare(stage, tables)
        note = {"runview.version": stage.version, "runview.run_id": run_id}
        with held(self.root, version_lock(stage.version)):
            open_home(self.root)  # it may have been migrated since this process opened it
            there = self.snapshot(stage.version)
            if there is None:
                made = {path: self._replace(stage, one, note) for path, one in ready.items()}
                row = to_row(stage, tables=made, ledgers=ledgers, run_id=run_id, now=now, record=record or {})
                self._merge(SNAPSHOTS, row, note=note)
                there = self._require(stage.version)
        same_content(there, ready)
        return there

    def _replace(self, stage: StageVersion, one: Prepared, note: Mapping[str, str]) -> TableRecord:
        def attempt() -> int:
            there = self.snapshot(stage.version)
            if there is not None:  # completed by a writer on another machine: its rows stay
                same_content(there, {one.spec.path: one}, some=True)
                return there.tables[one.spec.path].delta_version
            return self._tables.replace(one.spec, one.rows, where=where(one.spec, stage.partition, stage.version), note=note)

        delta_version = self._retry(one.spec, attempt)
        return TableRecord(len(one.rows), delta_version, one.content_sha256, tuple(one.rows.column_names))

    # -- reading versions -----------------------------------------------------------------------------------------------

    def read(self, spec: TableSpec, version: str, *, columns: Sequence[str] | None = None, filter: pl.Expr | None = None) -> pa.Table:
        """Rows of a complete version, in the spec's types; the order of rows is not promised.

        Args: `columns`, a selection in the given order; `filter`, a polars expression over the spec's columns.
        Raises: LakeError, when the version is not complete, has no such table, or rows are missing.
        """
        snapshot, made = self._complete(spec, version)
        names = known(spec, columns)
        if filter is not None:
            with guarded("reading", f"table {spec.path}", self.root):
                frame = self.scan(spec, version).filter(filter).select(names).collect()
                return select(spec, names, [part.to_arrow() for part in frame.iter_slices(2**16)])
        found = self._load(spec, where(spec, snapshot.partition, version), names)
        if len(found) != made.n_rows:
            raise LakeError(
                f"table {spec.path}, version {version}: expected {made.n_rows} rows, found {len(found)}; run `verify` on this version"
            )
        return found

    def scan(self, spec: TableSpec, version: str) -> pl.LazyFrame:
        """A LazyFrame of the rows of a complete version, with the spec's columns. Raises LakeError as `read`."""
        snapshot, _ = self._complete(spec, version)
        frame = self._tables.lazy(spec)
        if frame is None:
            raise LakeError(f"table {spec.path} does not exist although version {version} is complete; restore it from a copy")
        with guarded("reading", f"table {spec.path}", self.root):
            there = set(frame.collect_schema().names())
            types = polars_schema(spec)
            frame = frame.filter(*(pl.col(name) == value for name, value in where(spec, snapshot.partition, version).items()))
            return frame.select(pl.col(name) if name in there else pl.lit(None, kind).alias(name) for name, kind in types.items())

    def batches(
        self, spec: TableSpec, version: str, *, columns: Sequence[str] | None = None, batch_rows: int = 4096
    ) -> Iterator[pa.RecordBatch]:
        """Rows of a complete version ordered by the spec's key, in batches of `batch_rows` (the last may be shorter).

        Memory: a few batches and row groups, not the table. Raises LakeError as `read`.
        """
        if batch_rows < 1:
            raise ValueError(f"batch_rows: expected at least 1, found {batch_rows}")
        snapshot, made = self._complete(spec, version)
        place = where(spec, snapshot.partition, version)
        with guarded("reading", f"table {spec.path}", self.root):
            source = self._tables.dataset(spec, place)
            if source is None:
                raise LakeError(f"table {spec.path} does not exist although version {version} is complete; restore it from a copy")
            n_rows = 0
            for batch in ordered(spec, source, expression(place), names=known(spec, columns), batch_rows=batch_rows):
                n_rows += len(batch)
                yield batch
        if n_rows != made.n_rows:
            raise LakeError(f"table {spec.path}, version {version}: expected {made.n_rows} rows, found {n_rows}; run `verify` on it")

    def verify(self, version: str) -> None:
        """Recompute every content digest of a complete version from what is stored. Raises LakeError naming table and digests."""
        snapshot = self._require(version)
        for path, made in snapshot.tables.items():
            spec = TABLES.get(path)
            if spec is None:
                raise LakeError(f"version {version} has table {path}, which this release does not know")
            rows = self._load(spec, where(spec, snapshot.partition, version), list(made.columns))
            found = digest(rows, spec.key)
            if len(rows) != made.n_rows or found != made.content_sha256:
                raise LakeError(
                    f"table {path}, version {version}: expected {made.n_rows} rows with content {made.content_sha256}, "
                    f"found {len(rows)} rows with content {found}; restore the table from a copy"
                )

    def _require(self, version: str) -> Snapshot:
        snapshot = self.snapshot(version)
        if snapshot is None:
            raise LakeError(f"version {version} is not complete: it has no snapshot row; run the stage that makes it")
        return snapshot

    def _complete(self, spec: TableSpec, version: str) -> tuple[Snapshot, TableRecord]:
        snapshot = self._require(version)
        if spec.path not in snapshot.tables:
            raise LakeError(f"version {version} of stage {snapshot.stage} has no table {spec.path}, only {sorted(snapshot.tables)}")
        return snapshot, snapshot.tables[spec.path]

    # -- control tables -------------------------------------------------------------------------------------------------

    def table(self, spec: TableSpec, *, columns: Sequence[str] | None = None, where: Mapping[str, str] | None = None) -> pa.Table:
        """The current state of a control table, by default all of it; no rows, with its schema, when it does not exist.

        Args: `columns`, a selection in the given order; `where`, columns that must have these values.
        """
        return self._load(spec, where or {}, columns)

    def insert(self, spec: TableSpec, rows: pa.Table, *, update: bool = False) -> int:
        """Add the rows whose key is not there yet; twice is once. Returns how many were added or replaced.

        A row that is there with other content is an error, or is replaced with `update`. Times and run ids say who wrote a row
        first and are not compared.

        Raises: ContractError for null or repeated keys; LakeError naming the keys whose content differs.
        """
        ready = spec.conform(rows)
        spec.check_keys(ready)
        if not len(ready):
            self._tables.ensure(spec)
            return 0
        return self._merge(spec, ready, update=update, refuse=True)

    def _merge(
        self, spec: TableSpec, ready: pa.Table, *, update: bool = False, refuse: bool = False, note: Mapping[str, str] | None = None
    ) -> int:
        def attempt() -> int:
            new, changed = compare(spec, ready, self._load(spec, {}, keys=ready))
            if changed and not update and refuse:
                raise LakeError(
                    f"table {spec.path}: {len(changed)} rows are there with other content, first keys {changed[:5]}; "
                    "what is published is never overwritten: give new content a new key"
                )
            replaced = changed if update else []
            if new or replaced:
                self._tables.merge(spec, ready, update=bool(replaced), note=note or {})
            return new + len(replaced)

        with held(self.root, table_lock(spec.path)):
            open_home(self.root)
            return self._retry(spec, attempt)

    # -- shared ---------------------------------------------------------------------------------------------------------

    def _load(
        self, spec: TableSpec, values: Mapping[str, str], columns: Sequence[str] | None = None, *, keys: pa.Table | None = None
    ) -> pa.Table:
        """Rows whose columns have these values, and whose first key column lies within that of `keys`."""
        names = known(spec, columns)
        if spec.state == CONTROL or spec is RUN_VIEWS:
            return self._find(spec, values, names, keys)
        source = self._tables.dataset(spec, values)
        if source is None:
            return select(spec, names, [])
        with guarded("reading", f"table {spec.path}", self.root):
            there = [name for name in names if name in source.schema.names]
            return select(spec, names, [source.to_table(columns=there, filter=expression(values))])

    def _find(self, spec: TableSpec, values: Mapping[str, str], names: Sequence[str], keys: pa.Table | None) -> pa.Table:
        """Rows of a table that is written by merging: polars decodes the wide columns of the rows it finds and of no others, and takes
        the string views that deltalake merges to for strings, which Arrow's filters refuse. One of 219,000 snapshots: 0.06 s."""
        frame = self._tables.lazy(spec)
        if frame is None:
            return select(spec, names, [])
        with guarded("reading", f"table {spec.path}", self.root):
            there = set(frame.collect_schema().names())
            wanted = [pl.col(name) == value for name, value in values.items()]
            if keys is not None:
                first = pl.Series(keys[spec.key[0]])
                wanted.append(pl.col(spec.key[0]).is_between(pl.lit(first.min()), pl.lit(first.max())))
            found = frame.filter(*wanted).select(name for name in names if name in there).collect()
            return select(spec, names, [found.to_arrow()])

    def _retry(self, spec: TableSpec, attempt: Callable[[], T]) -> T:
        for n in range(1, MAX_ATTEMPTS + 1):
            try:
                return attempt()
            except Conflict:
                log.info("lost a race for table %s, attempt %d of %d", spec.path, n, MAX_ATTEMPTS)
                time.sleep(BACKOFF_SECONDS * min(n, 20))
        raise LakeError(f"table {spec.path}: {MAX_ATTEMPTS} attempts lost against other writers; run again when they are done")
