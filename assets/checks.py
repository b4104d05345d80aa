"""One multi-asset check per asset: a one-row profile judged by Great Expectations, written to `gates`.

The check judges exactly the version the run wrote for its partition (else the latest materialized one), and a consumer
compares the version it is about to read with the one judged.
"""

from collections.abc import Callable, Iterator
from typing import Any

import dagster as dg

from assets import partitions, profile_steps
from assets.cleaned_docs import clusters, decisions, documents
from assets.gates import write_gate
from assets.metadata import version_of_run
from assets.raw_evidence import evidence
from assets.run_view import candidate
from assets.tokenized_shards import shards
from pipeline.contracts import RULES
from pipeline.profiles import Profile
from resources.expectations import validate
from resources.project import Project


def judged_version(context: Any, key: dg.AssetKey, partition: str) -> str:
    """Version to judge: the one this run materialized for `partition`, else the latest materialized."""
    instance = context.instance
    version = version_of_run(instance, context.run.run_id, key, partition)
    if version is not None:
        return version
    records = instance.fetch_materializations(dg.AssetRecordsFilter(asset_key=key, asset_partitions=[str(partition)]), limit=1).records
    if not records:
        raise dg.Failure(
            f"{key.to_user_string()} partition {partition} was never materialized; there is nothing to check", allow_retries=False
        )
    return str(records[0].asset_materialization.metadata["version"].value)


def _check(asset: dg.AssetsDefinition, partitions_def: dg.PartitionsDefinition, profile_of: Callable[[Project, str], Profile]) -> Any:
    stage = asset.key.to_user_string()
    rules = RULES[stage]
    specs = [
        dg.AssetCheckSpec(
            rule.name,
            asset=asset,
            description=rule.why,
            blocking=rule.severity == "error",
            partitions_def=partitions_def,
            metadata={"minimum": rule.minimum, "maximum": rule.maximum, "severity": rule.severity},
        )
        for rule in rules
    ]

    @dg.multi_asset_check(name=f"{stage}_checks", specs=specs)
    def check(context: dg.AssetCheckExecutionContext, project: dg.ResourceParam[Project]) -> Iterator[dg.AssetCheckResult]:
        version = judged_version(context, asset.key, context.partition_key)
        profile = profile_of(project, version)
        verdicts = validate(rules, profile.counts)
        write_gate(project, stage, version, verdicts, run_id=context.run.run_id)
        for rule, verdict in zip(rules, verdicts, strict=True):
            yield dg.AssetCheckResult(
                asset_key=asset.key,
                check_name=rule.name,
                passed=verdict.passed and verdict.n_evaluated > 0,
                severity=dg.AssetCheckSeverity.ERROR if verdict.severity == "error" else dg.AssetCheckSeverity.WARN,
                description=rule.why,
                metadata={
                    "version": version,
                    "observed": verdict.observed if verdict.observed is not None else "nothing",
                    "minimum": "open" if rule.minimum is None else rule.minimum,
                    "maximum": "open" if rule.maximum is None else rule.maximum,
                    "n_evaluated": verdict.n_evaluated,
                    "offending_ids": dg.MetadataValue.json(profile.examples.get(rule.name, [])),
                },
            )

    return check


all_checks = [
    _check(evidence, partitions.source_snapshots, profile_steps.evidence_profile_of),
    _check(documents, partitions.source_snapshots, profile_steps.documents_profile_of),
    _check(clusters, partitions.releases, profile_steps.clusters_profile_of),
    _check(decisions, partitions.releases, profile_steps.decisions_profile_of),
    _check(shards, partitions.release_tokenizers, profile_steps.shards_profile_of),
    _check(candidate, partitions.run_views, profile_steps.candidate_profile_of),
]
