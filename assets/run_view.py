"""The candidate of a run view, and its publication under a signed approval."""

import dagster as dg

from assets import partitions, view_steps
from assets.metadata import column_schema
from assets.raw_evidence import result
from assets.tokenized_shards import shards
from pipeline.schemas import RUN_VIEWS
from resources.lake.sharing import working
from resources.project import Project


@dg.asset(
    group_name="run_view",
    partitions_def=partitions.run_views,
    deps=[dg.AssetDep(shards, partition_mapping=dg.AllPartitionMapping())],
    owners=["team:training-data"],
    kinds={"json"},
    metadata={"dagster/column_schema": column_schema(RUN_VIEWS), "dagster/table_name": RUN_VIEWS.path},
)
def candidate(context: dg.AssetExecutionContext, project: dg.ResourceParam[Project]) -> dg.MaterializeResult:
    """The manifest of exactly which packs a run sees and in which order, waiting for approval. Nothing reads it to train."""
    release = project.release_of_view(context.partition_key)
    done = view_steps.make_candidate(project, release, project.recipe(release.recipe), run_id=context.run_id)
    made = result(done)
    return made._replace(metadata={**(made.metadata or {}), **view_steps.view_metadata(project, done.snapshot.record["view_id"])})


@dg.asset(
    group_name="run_view",
    partitions_def=partitions.run_views,
    deps=[candidate],
    owners=["team:training-data"],
    kinds={"json"},
)
def run_view(context: dg.AssetExecutionContext, project: dg.ResourceParam[Project]) -> dg.MaterializeResult:
    """The published run view. The asset itself verifies the approvals against these bytes, the policy and the deletion list."""
    release = project.release_of_view(context.partition_key)
    with working(str(project.state_root)):
        published = view_steps.publish_view(project, release, project.recipe(release.recipe), run_id=context.run_id)
    return dg.MaterializeResult(
        data_version=dg.DataVersion(published.view_id),
        metadata={
            "view_id": published.view_id,
            "path": dg.MetadataValue.path(published.path),
            "approved_by": ", ".join(published.approvers),
            "policy": published.policy_label,
            "already_published": published.reused,
            **view_steps.view_metadata(project, published.view_id),
        },
    )
