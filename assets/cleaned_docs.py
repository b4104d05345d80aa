"""Documents, their clusters over a release, and one decision each."""

import dagster as dg

from assets import partitions, steps
from assets.metadata import column_schema, version_of_run
from assets.raw_evidence import evidence, result, source_snapshot
from pipeline.schemas import CLUSTERS, DECISIONS, DOCUMENTS
from resources.project import Project


class DocumentsConfig(dg.Config):
    """Which recipe cleans, and which evidence version (by default the one this run wrote, else the newest complete one)."""

    recipe: str = "default"
    evidence_version: str = ""


@dg.asset(
    group_name="cleaned_docs",
    partitions_def=partitions.source_snapshots,
    deps=[evidence],
    owners=["team:data"],
    kinds={"deltalake", "polars"},
    metadata={"dagster/column_schema": column_schema(DOCUMENTS), "dagster/table_name": DOCUMENTS.path},
    automation_condition=dg.AutomationCondition.eager() & dg.AutomationCondition.all_deps_blocking_checks_passed(),
)
def documents(context: dg.AssetExecutionContext, config: DocumentsConfig, project: dg.ResourceParam[Project]) -> dg.MaterializeResult:
    """One normalised text per document, every measured attribute, and the local decision with all failing rules."""
    source, snapshot = source_snapshot(context)
    written = version_of_run(context.instance, context.run_id, evidence.key, context.partition_key)
    return result(
        steps.make_documents(
            project,
            project.recipe(config.recipe),
            source,
            steps.date.fromisoformat(snapshot),
            run_id=context.run_id,
            evidence_version=config.evidence_version or written,
        )
    )


@dg.asset(
    group_name="cleaned_docs",
    partitions_def=partitions.releases,
    deps=[dg.AssetDep(documents, partition_mapping=dg.AllPartitionMapping())],
    owners=["team:data"],
    kinds={"deltalake", "polars"},
    metadata={"dagster/column_schema": column_schema(CLUSTERS), "dagster/table_name": CLUSTERS.path},
)
def clusters(context: dg.AssetExecutionContext, project: dg.ResourceParam[Project]) -> dg.MaterializeResult:
    """Duplicate clusters over the whole release, the survivor of each, and the split every cluster lies in."""
    release = project.release(context.partition_key)
    return result(steps.make_clusters(project, release, project.recipe(release.recipe), run_id=context.run_id))


@dg.asset(
    group_name="cleaned_docs",
    partitions_def=partitions.releases,
    deps=[clusters, dg.AssetDep(documents, partition_mapping=dg.AllPartitionMapping())],
    owners=["team:data"],
    kinds={"deltalake", "polars"},
    metadata={"dagster/column_schema": column_schema(DECISIONS), "dagster/table_name": DECISIONS.path},
)
def decisions(context: dg.AssetExecutionContext, project: dg.ResourceParam[Project]) -> dg.MaterializeResult:
    """Keep or drop for every document of the release, with all reasons, their values, and one primary reason."""
    release = project.release(context.partition_key)
    return result(steps.make_decisions(project, release, project.recipe(release.recipe), run_id=context.run_id))
