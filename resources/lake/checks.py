"""What must hold before rows are written to a version, and between a version and a second attempt at it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import ContractError, LakeError
from pipeline.schemas import TableSpec
from pipeline.stages import StageVersion
from resources.lake.rows import Prepared, digest, without_new_columns
from resources.lake.snapshot import Snapshot


def prepare(stage: StageVersion, tables: Sequence[tuple[TableSpec, pa.Table]]) -> dict[str, Prepared]:
    """The tables by path, conformed and checked, with their digests. Raises ContractError naming table, column and counts."""
    ready: dict[str, Prepared] = {}
    for spec, data in tables:
        if spec.path in ready:
            raise ContractError(f"stage {stage.stage}: table {spec.path} stands twice; give its rows in one table")
        if spec.state != stage.state or not any(column.name == "version" for column in spec.columns):
            raise ContractError(f"stage {stage.stage} writes state {stage.state}; table {spec.path} does not hold its versions")
        rows = spec.conform(data)
        spec.check_keys(rows)
        for name, value in where(spec, stage.partition, stage.version).items():
            n_other = len(rows) - (pc.sum(pc.equal(rows[name], value)).as_py() or 0)
            if n_other:
                raise ContractError(f"table {spec.path}: {n_other} of {len(rows)} rows have another {name}, expected {value}")
        ready[spec.path] = Prepared(spec, rows, digest(rows, spec.key))
    return ready


def where(spec: TableSpec, partition: Mapping[str, str], version: str) -> dict[str, str]:
    """The columns that place a version's rows in a table, with their values. Raises ContractError when the partition names too few."""
    missing = [name for name in spec.partition_by if name not in partition]
    if missing:
        raise ContractError(f"table {spec.path} is partitioned by {missing}, which the partition {dict(partition)} does not name")
    return {**{name: partition[name] for name in spec.partition_by}, "version": version}


def same_content(there: Snapshot, ready: Mapping[str, Prepared], *, some: bool = False) -> None:
    """Raises LakeError when the complete version holds other tables, counts or content than `ready`, which may be `some` of them."""
    if not set(ready) <= set(there.tables) if some else set(there.tables) != set(ready):
        raise LakeError(
            f"version {there.version} of stage {there.stage} is complete with tables {sorted(there.tables)}, to be written are "
            f"{sorted(ready)}: same version, other content; raise the stage's code_version"
        )
    for path, one in ready.items():
        made = there.tables[path]
        old = without_new_columns(one, made.columns)
        if old.content_sha256 != made.content_sha256 or len(old.rows) != made.n_rows:
            raise LakeError(
                f"stage {there.stage}, table {path}: version {there.version} is complete with {made.n_rows} rows and content "
                f"{made.content_sha256}, to be written are {len(old.rows)} rows with content {old.content_sha256}: same version, "
                "other content; raise the stage's code_version"
            )


def known(spec: TableSpec, columns: Sequence[str] | None) -> list[str]:
    """The named columns, or all. Raises ContractError for unknown ones."""
    names = [column.name for column in spec.columns]
    if columns is None:
        return names
    unknown = sorted(set(columns) - set(names))
    if unknown:
        raise ContractError(f"table {spec.path} has no columns {unknown}; known are {names}")
    return list(columns)
