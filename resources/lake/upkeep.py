"""Housekeeping of the Delta tables: what is stored, which rows no snapshot knows, and taking rows and old files away.

Sizes come from the tables' logs; no folder is walked. Every act can be repeated, so what is killed is finished by the next run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import unquote

import polars as pl

from pipeline.schemas import RUN_VIEWS, TABLES, TableSpec
from resources.faults import guarded
from resources.lake.delta import sql
from resources.lake.store import Lake
from resources.places import place_of

STORED = {
    "table": pl.String,
    "state": pl.String,
    "partition": pl.String,
    "version": pl.String,
    "size_bytes": pl.Int64,
    "n_rows": pl.Int64,
    "modified_ms": pl.Int64,
}
KEYS_AT_ONCE = 50  # members of one predicate: hundreds make the planner slow


def versioned() -> list[TableSpec]:
    """Tables whose rows belong to versions that are published with a snapshot."""
    return [spec for spec in TABLES.values() if spec.state != "control" and spec.path != RUN_VIEWS.path]


@dataclass(frozen=True)
class Rows:
    """The rows of one version in one table: where they are, how many, in how many bytes of files, and when last written."""

    table: str
    version: str
    partition: str
    n_rows: int
    size_bytes: int
    modified_ms: int


class Upkeep:
    """Housekeeping of one lake."""

    def __init__(self, lake: Lake) -> None:
        self._lake, self._tables, self._place = lake, lake._tables, place_of(lake.root)

    def stored(self, specs: Iterable[TableSpec] | None = None) -> pl.DataFrame:
        """One row per live file of the tables, with the columns of `STORED`. `partition`: source or release, empty for others.

        `version` is null for a file that holds several versions, and for tables without one.
        """
        parts = [pl.DataFrame(schema=STORED)]
        for spec in TABLES.values() if specs is None else specs:
            table = self._tables.open(spec)
            if table is None:
                continue
            with self._tables._guard("listing files of", spec):
                actions = pl.DataFrame(table.get_add_actions(flatten=True))
            low, high = (pl.col(name) if name in actions.columns else pl.lit(None, pl.String) for name in ("min.version", "max.version"))
            place = pl.col(f"partition.{spec.partition_by[0]}") if spec.partition_by else pl.lit("")
            parts.append(
                actions.select(
                    table=pl.lit(spec.path),
                    state=pl.lit(spec.state),
                    partition=place.cast(pl.String),
                    version=pl.when(low == high).then(low),
                    size_bytes=pl.col("size_bytes").cast(pl.Int64),
                    n_rows=pl.col("num_records").cast(pl.Int64),
                    modified_ms=pl.col("modification_time").cast(pl.Int64),
                )
            )
        return pl.concat(parts)

    def rows(self) -> list[Rows]:
        """Rows of every version in every table, whether a snapshot knows the version or not."""
        out: list[Rows] = []
        for spec in versioned():
            files = self.stored([spec])
            if files["version"].null_count() or files["n_rows"].null_count():
                files = self._counted(spec, files)
            grouped = files.group_by("table", "version", "partition").agg(pl.col("n_rows", "size_bytes").sum(), pl.col("modified_ms").max())
            out.extend(Rows(**row) for row in grouped.sort("table", "partition", "version").to_dicts())
        return out

    def _counted(self, spec: TableSpec, files: pl.DataFrame) -> pl.DataFrame:
        """The same from the rows themselves, where files hold several versions. Bytes are shared out by rows."""
        source = self._tables.dataset(spec, {})
        place = spec.partition_by[0]
        assert source is not None  # its files were just listed
        with self._tables._guard("reading", spec):
            found = pl.DataFrame(source.to_table(columns=["version", place]))
        counts = found.group_by("version", pl.col(place).cast(pl.String).alias("partition")).len("n_rows")
        total = max(1, found.height)
        return counts.select(
            table=pl.lit(spec.path),
            state=pl.lit(spec.state),
            partition=pl.col("partition"),
            version=pl.col("version"),
            size_bytes=(pl.col("n_rows") * int(files["size_bytes"].sum()) // total).cast(pl.Int64),
            n_rows=pl.col("n_rows").cast(pl.Int64),
            modified_ms=pl.lit(files["modified_ms"].max()).cast(pl.Int64),
        )

    def forget(self, rows: Rows) -> None:
        """Delete the rows of one version from one table, by one predicate. Twice is once. Readers of other versions see no change."""
        spec = TABLES[rows.table]
        where = {spec.partition_by[0]: rows.partition, "version": rows.version}
        self._delete(spec, sql(where))

    def forget_keys(self, spec: TableSpec, values: Iterable[str], *, also: str = "") -> None:
        """Delete the rows of a control table whose first key column has one of the values, and for which `also` holds (SQL)."""
        ordered = sorted(set(values))
        for start in range(0, len(ordered), KEYS_AT_ONCE):
            some = " OR ".join(sql({spec.key[0]: value}) for value in ordered[start : start + KEYS_AT_ONCE])
            self._delete(spec, f"({some}) AND {also}" if also else some)

    def _delete(self, spec: TableSpec, predicate: str) -> None:
        def attempt() -> None:
            table = self._tables.open(spec)
            if table is not None:
                with self._tables._guard("deleting from", spec):
                    table.delete(predicate)

        self._lake._retry(spec, attempt)

    def unused_files(self, *, min_age_hours: int, remove: bool = False) -> list[tuple[str, int]]:
        """Parquet files that no table needs any more, or that a killed writer left: (path below the lake, bytes). Removed on demand.

        Only those older than `min_age_hours`: a younger one may be the work of a writer on another machine.
        """
        out: list[tuple[str, int]] = []
        for spec in TABLES.values():
            names = (f"{spec.path}/{path}" for path in self._vacuum(spec, min_age_hours, dry_run=True))
            sizes = [(name, size) for name in names if (size := self._size(name)) is not None]  # the log lists long gone ones too
            out.extend(sizes)
            if sizes and remove:
                self._vacuum(spec, min_age_hours, dry_run=False)
        return sorted(out)

    def _vacuum(self, spec: TableSpec, hours: int, *, dry_run: bool) -> list[str]:
        def attempt() -> list[str]:
            table = self._tables.open(spec)
            if table is None:
                return []
            with self._tables._guard("sweeping", spec):
                # the tables' own retention is a century, so that nothing goes by age alone: here the versions were looked at first
                return table.vacuum(retention_hours=hours, dry_run=dry_run, enforce_retention_duration=False, full=True)

        return self._lake._retry(spec, attempt)

    def _size(self, name: str) -> int | None:
        """Bytes of a file below the lake, None when it is not there. Logs may name it with URL escapes."""
        with guarded("looking for", name, self._lake.root):
            found = self._place.size(name)
            return found if found is not None or unquote(name) == name else self._place.size(unquote(name))

    def missing_files(self) -> Iterator[tuple[str, str]]:
        """Files a table's log lists that are not there: (table, path)."""
        for spec in TABLES.values():
            table = self._tables.open(spec)
            if table is None:
                continue
            with self._tables._guard("listing files of", spec):
                names = pl.DataFrame(table.get_add_actions(flatten=True))["path"].to_list()
            yield from ((spec.path, name) for name in names if self._size(f"{spec.path}/{name}") is None)
