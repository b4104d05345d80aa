"""Token shards, pack indexes, catalogs and stats of a release under one tokenizer."""

import dagster as dg

from assets import partitions, shard_steps
from assets.cleaned_docs import decisions
from assets.metadata import column_schema
from assets.raw_evidence import result
from pipeline.schemas import SHARDS
from resources.project import Project


@dg.asset(
    group_name="tokenized_shards",
    partitions_def=partitions.release_tokenizers,
    deps=[dg.AssetDep(decisions, partition_mapping=dg.MultiToSingleDimensionPartitionMapping("release"))],
    owners=["team:training-data"],
    kinds={"deltalake", "numpy"},
    metadata={"dagster/column_schema": column_schema(SHARDS), "dagster/table_name": SHARDS.path},
)
def shards(context: dg.AssetExecutionContext, project: dg.ResourceParam[Project]) -> dg.MaterializeResult:
    """Immutable token files with document boundaries, their pack indexes, and per component a catalog and stats."""
    keys = context.partition_key.keys_by_dimension  # type: ignore[attr-defined]
    release = project.release(keys["release"])
    return result(shard_steps.make_shards(project, release, project.recipe(release.recipe), keys["tokenizer"], run_id=context.run_id))
