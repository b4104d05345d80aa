"""Evidence: every payload as received, by source and date."""

import dagster as dg

from assets import partitions, steps
from assets.metadata import column_schema, snapshot_metadata
from pipeline.schemas import EVIDENCE
from resources.project import Project


def result(done: steps.Done) -> dg.MaterializeResult:
    """Materialization of a completed step; its data version is the stage version."""
    return dg.MaterializeResult(
        data_version=dg.DataVersion(done.snapshot.version),
        metadata=snapshot_metadata(done.snapshot, reused=done.reused, seconds=done.seconds),
    )


def source_snapshot(context: dg.AssetExecutionContext) -> tuple[str, str]:
    """Source and date of the running partition."""
    keys = context.partition_key.keys_by_dimension  # type: ignore[attr-defined]
    return keys["source"], keys["snapshot"]


@dg.asset(
    group_name="raw_evidence",
    partitions_def=partitions.source_snapshots,
    owners=["team:data"],
    kinds={"deltalake"},
    metadata={"dagster/column_schema": column_schema(EVIDENCE), "dagster/table_name": EVIDENCE.path},
)
def evidence(context: dg.AssetExecutionContext, project: dg.ResourceParam[Project]) -> dg.MaterializeResult:
    """Every payload of a source snapshot as received: bytes, time, source, licence, deletion keys. Rejects keep their reason."""
    source, snapshot = source_snapshot(context)
    return result(steps.collect_evidence(project, source, steps.date.fromisoformat(snapshot), run_id=context.run_id))
