"""Metadata a person reads on an asset: counts that add up, drop reasons as a table, versions, sizes, timings."""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from pipeline.ledger import Ledger
from pipeline.schemas import TableSpec
from resources.lake import Snapshot


def version_of_run(instance: dg.DagsterInstance, run_id: str, key: dg.AssetKey, partition: str) -> str | None:
    """Version of an asset's partition that a run materialized; None when it did not."""
    for entry in instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION):
        made = entry.dagster_event.event_specific_data.materialization  # type: ignore[union-attr]
        if made.asset_key == key and (made.partition is None or str(made.partition) == str(partition)):
            return str(made.metadata["version"].value)
    return None


def column_schema(spec: TableSpec) -> dg.TableSchema:
    """The table's columns with meaning and unit."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                c.name,
                type=str(c.type),
                description=f"{c.doc} ({c.unit})" if c.unit else c.doc,
                constraints=dg.TableColumnConstraints(nullable=c.nullable, unique=(c.name,) == spec.key),
            )
            for c in spec.columns
        ]
    )


def ledger_table(ledger: Ledger) -> dg.TableMetadataValue:
    """A ledger as a table: what, reason, count."""
    records = [dg.TableRecord({"what": ledger.total_name, "reason": "", "count": ledger.total})]
    for name, part in {**ledger.parts, **ledger.extra}.items():
        if isinstance(part, Mapping):
            ordered = sorted(part.items(), key=lambda item: (-item[1], item[0]))
            records.extend(dg.TableRecord({"what": name, "reason": reason, "count": n}) for reason, n in ordered)
        else:
            records.append(dg.TableRecord({"what": name, "reason": "", "count": part}))
    return dg.MetadataValue.table(records)


def snapshot_metadata(snapshot: Snapshot, *, reused: bool, seconds: float) -> dict[str, Any]:
    """What every materialization shows, from the completed snapshot."""
    values: dict[str, Any] = {
        "version": snapshot.version,
        "reused": reused,
        "seconds": round(seconds, 3),
        "parents": dg.MetadataValue.json(dict(snapshot.identity.get("parents", {}))),
        "tables": dg.MetadataValue.json(
            {
                name: {"rows": t.n_rows, "delta_version": t.delta_version, "content_sha256": t.content_sha256}
                for name, t in snapshot.tables.items()
            }
        ),
    }
    for ledger in snapshot.ledgers:
        values[f"ledger: {ledger.unit}"] = ledger_table(ledger)
        values[f"{ledger.unit}: {ledger.total_name}"] = ledger.total
    if snapshot.tables:
        values["dagster/row_count"] = next(iter(snapshot.tables.values())).n_rows
    return values
