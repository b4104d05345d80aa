"""The completed record of a version: one row of `snapshots`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa

from pipeline.errors import LakeError
from pipeline.ids import canonical_json
from pipeline.ledger import Ledger
from pipeline.schemas import SNAPSHOTS
from pipeline.stages import StageVersion


@dataclass(frozen=True)
class TableRecord:
    """One table of a version. `columns` are those the digest covers, so that columns added to the schema later change nothing."""

    n_rows: int
    delta_version: int
    content_sha256: str
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Snapshot:
    """A version whose tables are complete. `tables` is keyed by path; `identity` is what the version digests; `record` is in no id."""

    version: str
    stage: str
    state: str
    partition: Mapping[str, str]
    identity: Mapping[str, Any]
    ledgers: tuple[Ledger, ...]
    tables: Mapping[str, TableRecord]
    run_id: str
    created_at: datetime
    record: Mapping[str, Any] = field(default_factory=dict)


def to_row(
    stage: StageVersion,
    *,
    tables: Mapping[str, TableRecord],
    ledgers: Sequence[Ledger],
    run_id: str,
    now: datetime,
    record: Mapping[str, Any],
) -> pa.Table:
    """The `snapshots` row of a version: one row, conformed."""
    plain = {
        path: {
            "n_rows": made.n_rows,
            "delta_version": made.delta_version,
            "content_sha256": made.content_sha256,
            "columns": list(made.columns),
        }
        for path, made in tables.items()
    }
    row = {
        "version": stage.version,
        "stage": stage.stage,
        "state": stage.state,
        "partition": partition_text(stage.partition),
        "status": "complete",
        "identity": stage.identity_json(),
        "ledgers": _json([ledger.to_json() for ledger in ledgers]),
        "tables": _json(plain),
        "run_id": run_id,
        "created_at": now,
        "record": _json(dict(record)),
    }
    return SNAPSHOTS.conform(pa.Table.from_pylist([row], schema=SNAPSHOTS.schema))


def partition_text(partition: Mapping[str, str]) -> str:
    """A partition as it stands in the row."""
    return _json(dict(partition))


def from_row(row: Mapping[str, Any]) -> Snapshot:
    """Inverse of `to_row`. Raises LakeError naming the version when the row cannot be read."""
    try:
        tables = {
            path: TableRecord(made["n_rows"], made["delta_version"], made["content_sha256"], tuple(made["columns"]))
            for path, made in json.loads(row["tables"]).items()
        }
        return Snapshot(
            version=row["version"],
            stage=row["stage"],
            state=row["state"],
            partition=json.loads(row["partition"]),
            identity=json.loads(row["identity"]),
            ledgers=tuple(Ledger.from_json(value).close() for value in json.loads(row["ledgers"])),
            tables=tables,
            run_id=row["run_id"],
            created_at=row["created_at"],
            record=json.loads(row["record"]),
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise LakeError(
            f"snapshot row of version {row.get('version')} cannot be read ({type(error).__name__}); it was not written by this release"
        ) from None


def _json(value: Any) -> str:
    return canonical_json(value).decode()
