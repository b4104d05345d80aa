"""Delta tables by TableSpec: the only file that imports deltalake, and the only one that knows how its files are laid out.

Everything deltalake raises is turned into LakeError without its text (it prints rows); a lost race becomes `Conflict`.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
from deltalake import ColumnProperties, CommitProperties, DeltaTable, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from pipeline.errors import LakeError
from pipeline.schemas import TableSpec
from resources.faults import guarded
from resources.object_options import object_options
from resources.places import is_local, place_of

if TYPE_CHECKING:  # it imports pandas, 0.3 s, and nothing needs it until rows are read
    import pyarrow.dataset as ds

RETENTION = "interval 36500 days"  # removed files and log entries go by purge alone, never by age
ROW_GROUP_BYTES = 64 * 2**20  # 100 MB payloads in default row groups cost 9 GB and made files no reader opened
PAGE_BYTES = 2**20  # Parquet's own recommendation; a page is only closed between write batches
FILE_BYTES = 128 * 2**20
MAX_GROUP_ROWS = 2**17
LONG_COLUMNS = ("text", "payload", "document")  # no two values alike: a dictionary only costs memory
MAX_CONTROL_FILES = 100  # one per insert: at 600, an insert takes 0.5 s and reading all rows 1 s
CONTROL_FILE_BYTES = 32 * 2**20  # what joining may rewrite again and again; a year of 300 sources makes 100 MB of snapshots
REQUEST_SECONDS, RETRIES = 120, 10  # of one request to an object store
_LOG_ENTRY = re.compile(r"\d{20}\.(json|checkpoint.*)")

log = logging.getLogger(__name__)


class Conflict(Exception):
    """Another writer committed first: look again at what is published, then retry."""


class DeltaTables:
    """The Delta tables below one root: a folder, or a URL of an object store, whose options come from the environment."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._known: dict[str, DeltaTable] = {}
        self._object_options = None if is_local(root) else object_options(root)
        self.options = {**self._object_options.storage_options, "timeout": f"{REQUEST_SECONDS}s"} if self._object_options else {}

    def uri(self, spec: TableSpec) -> str:
        """Place of a table."""
        return f"{self.root.rstrip('/')}/{spec.path}"

    def open(self, spec: TableSpec) -> DeltaTable | None:
        """The table's current state; None only when it truly does not exist. Raises LakeError when it cannot be told.

        In an object store a table that was opened before is brought up to date, at one question or two: opening anew reads its whole log.
        """
        if is_local(self.root):
            return self._open(spec)
        table = self._known.pop(spec.path, None)
        if table is None:
            table = self._open(spec)
        else:
            with self._guard("opening", spec):
                table.update_incremental()
        if table is not None:
            self._known[spec.path] = table
        return table

    def _open(self, spec: TableSpec) -> DeltaTable | None:
        with self._guard("opening", spec):
            try:
                return DeltaTable(self.uri(spec), storage_options=self.options or None)
            except TableNotFoundError:
                if not self._has_files(spec):
                    return None
            try:  # another writer may have created it between the two looks
                return DeltaTable(self.uri(spec), storage_options=self.options or None)
            except TableNotFoundError:
                raise LakeError(
                    f"table {spec.path} has files and no log that can be read; nothing was created: restore its log from a copy"
                ) from None

    def ensure(self, spec: TableSpec) -> DeltaTable:
        """The table, created when it truly does not exist."""
        found = self.open(spec)
        if found is None:
            with self._guard("creating", spec):
                DeltaTable.create(
                    self.uri(spec),
                    spec.schema,
                    mode="ignore",
                    partition_by=list(spec.partition_by),
                    configuration=_configuration(spec),
                    storage_options=self.options or None,
                )
            found = self.open(spec)
            if found is None:
                raise LakeError(f"table {spec.path} was created and is not there; check the storage and run again")
        return found

    def replace(self, spec: TableSpec, rows: pa.Table, *, where: Mapping[str, str], note: Mapping[str, str]) -> int:
        """Make `rows` the only rows `where` the named columns have these values, in one commit. Returns the Delta version.

        No rows: what is there goes, the table exists. Raises Conflict.
        """
        table = self.ensure(spec)
        with self._guard("writing", spec):
            if len(rows):
                order = pc.sort_indices(rows, [(name, "ascending") for name in spec.key]).to_numpy()
                write_deltalake(
                    table,
                    _sorted(rows, order),
                    mode="overwrite",
                    predicate=sql(where),
                    schema_mode=_schema_mode(table, spec),
                    writer_properties=_layout(spec, _row_bytes(rows)[order]),
                    target_file_size=FILE_BYTES,
                    commit_properties=CommitProperties(custom_metadata=dict(note)),
                )
            else:
                table.delete(sql(where), commit_properties=CommitProperties(custom_metadata=dict(note)))
            return table.version()

    def merge(self, spec: TableSpec, rows: pa.Table, *, update: bool, note: Mapping[str, str]) -> int:
        """Insert rows whose key is not there yet; with `update` also replace those that are. Raises Conflict."""
        table = self.ensure(spec)
        with self._guard("writing", spec):
            merger = table.merge(
                rows,
                " AND ".join(f"target.`{name}` = source.`{name}`" for name in spec.key),
                source_alias="source",
                target_alias="target",
                # The keys to insert choose the files to look into. A new key among 219,000 snapshots: 0.14 s of CPU against 0.18, a gate
                # 0.02 against 0.8; with keys that no file statistic rules out about 0.3.
                streamed_exec=False,
                merge_schema=_schema_mode(table, spec) is not None,
                writer_properties=_layout(spec, _row_bytes(rows)),
                commit_properties=CommitProperties(custom_metadata=dict(note)),
            )
            if update:
                merger = merger.when_matched_update_all()
            merger.when_not_matched_insert_all().execute()
            version = table.version()
        self._join_files(spec, table)
        return version

    def _join_files(self, spec: TableSpec, table: DeltaTable) -> None:
        """Rewrite the many small files of a control table as few; its rows stay as they are."""
        if len(table.file_uris()) <= MAX_CONTROL_FILES:
            return
        try:
            with self._guard("joining files of", spec):
                table.optimize.compact(target_size=CONTROL_FILE_BYTES, writer_properties=_layout(spec, np.zeros(2**14, dtype=np.int64)))
        except Conflict:
            log.info("table %s: another writer was first, its small files are joined after a later insert", spec.path)

    def dataset(self, spec: TableSpec, where: Mapping[str, str]) -> ds.Dataset | None:
        """Files that may hold rows `where` columns have these values; None when the table does not exist."""
        table = self.open(spec)
        if table is None:
            return None
        with self._guard("reading", spec):
            # Arrow's own file systems: deltalake's hands Python buffers to Arrow's threads, and one that is released while the
            # interpreter ends aborts the process (rc 134 in one `runviewctl run` of three)
            files = pa.fs.SubTreeFileSystem(self.uri(spec).removeprefix("s3://"), self._files)
            return table.to_pyarrow_dataset(filesystem=files, file_pruning_predicate=sql(where) if where else None)

    def lazy(self, spec: TableSpec) -> pl.LazyFrame | None:
        """The whole table as a polars LazyFrame; None when it does not exist."""
        table = self.open(spec)
        if table is None:
            return None
        with self._guard("reading", spec):
            if is_local(self.root) and "%" in table.table_uri:
                # polars takes the escapes of blanks and of letters beyond ASCII in local paths for the files' names
                files = pa.fs.SubTreeFileSystem(os.path.abspath(self.uri(spec)), pa.fs.LocalFileSystem())
                return pl.scan_delta(self.uri(spec), use_pyarrow=True, pyarrow_options={"filesystem": files})
            return pl.scan_delta(self.uri(spec), storage_options=self.options or None)

    @cached_property
    def _files(self) -> pa.fs.FileSystem:
        if self._object_options is None:
            return pa.fs.LocalFileSystem()
        retry = pa.fs.AwsStandardS3RetryStrategy(max_attempts=RETRIES)
        return pa.fs.S3FileSystem(**self._object_options.arrow, retry_strategy=retry, request_timeout=REQUEST_SECONDS, connect_timeout=5)

    @contextmanager
    def _guard(self, action: str, spec: TableSpec) -> Iterator[None]:
        with guarded(action, f"table {spec.path}", self.root, passing=(Conflict,)):
            try:
                yield
            except CommitFailedError:
                raise Conflict(spec.path) from None

    def _has_files(self, spec: TableSpec) -> bool:
        """More than a killed creation leaves, which is a log folder without an entry."""
        names = (name.removeprefix(f"{spec.path}/") for name, _ in place_of(self.root).files(spec.path))
        return any(not name.startswith("_delta_log/") or _LOG_ENTRY.fullmatch(name.removeprefix("_delta_log/")) for name in names)


def sql(where: Mapping[str, str]) -> str:
    """`a = 'x' AND b = 'y'`."""
    return " AND ".join(f"{name} = '{value.replace(chr(39), chr(39) * 2)}'" for name, value in where.items())


def expression(where: Mapping[str, str]) -> pc.Expression:
    """The same as an Arrow filter."""
    out = pc.scalar(True)
    for name, value in where.items():
        out = out & (pc.field(name) == value)
    return out


def _configuration(spec: TableSpec) -> dict[str, str | None]:
    return {
        "delta.dataSkippingStatsColumns": ",".join(name for name in spec.stats_columns if name not in spec.partition_by),
        "delta.enableChangeDataFeed": "false",
        "delta.enableDeletionVectors": "false",
        "delta.deletedFileRetentionDuration": RETENTION,
        "delta.logRetentionDuration": RETENTION,
    }


def _schema_mode(table: DeltaTable, spec: TableSpec) -> Literal["merge"] | None:
    there = {field.name for field in table.schema().fields}
    return None if there.issuperset(column.name for column in spec.columns) else "merge"


def _layout(spec: TableSpec, sizes: npt.NDArray[np.int64]) -> WriterProperties:
    """ZSTD-3; statistics for the declared columns alone; row groups of at most 64 MiB and the largest row on top."""
    plain = ColumnProperties(dictionary_enabled=False, statistics_enabled="NONE")
    counted = ColumnProperties(statistics_enabled="CHUNK")
    columns = dict.fromkeys(spec.stats_columns, counted)
    columns |= {name: plain for name in LONG_COLUMNS if any(column.name == name for column in spec.columns)}
    largest = int(sizes.max(initial=1))
    return WriterProperties(
        compression="ZSTD",
        compression_level=3,
        max_row_group_size=_window(sizes, ROW_GROUP_BYTES + largest, MAX_GROUP_ROWS),
        write_batch_size=_window(sizes, PAGE_BYTES + largest, 1024),
        data_page_size_limit=PAGE_BYTES,
        default_column_properties=ColumnProperties(statistics_enabled="NONE"),
        column_properties=columns,
    )


def _sorted(rows: pa.Table, order: npt.NDArray[np.uint64]) -> pa.Table:
    """The rows in this order and in one piece (several are written interleaved), the long columns as Arrow views.

    deltalake joins batches to 8,192 rows: that overflows the offsets of plain string columns past 2 GiB, and copies wide ones
    (2.6 GiB of payloads: 5 s as views, 20 s with 64-bit offsets). polars gathers views without touching the bytes.
    """
    columns = []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if field.name in LONG_COLUMNS:
            series = pl.from_arrow(column)
            assert isinstance(series, pl.Series)
            columns.append(series.gather(order).to_arrow(compat_level=pl.CompatLevel.newest()))
        else:
            columns.append(pa.chunked_array([column.combine_chunks().take(pa.array(order))]))
    fields = [field.with_type(column.type) for field, column in zip(rows.schema, columns, strict=True)]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _row_bytes(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Bytes of the strings and binaries of each row. Shape: [n_rows]."""
    sizes = np.zeros(len(rows), dtype=np.int64)
    for column in rows.columns:
        kind = column.type
        if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
            sizes += pc.binary_length(column).fill_null(0).to_numpy().astype(np.int64)
    return sizes


def _window(sizes: npt.NDArray[np.int64], limit: int, most: int) -> int:
    """The largest number of neighbouring rows, at most `most`, that nowhere sum to more than `limit` bytes."""
    total = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])
    low, high = 1, max(1, min(most, len(sizes)))
    while low < high:
        middle = (low + high + 1) // 2
        if int((total[middle:] - total[:-middle]).max()) <= limit:
            low = middle
        else:
            high = middle - 1
    return low
