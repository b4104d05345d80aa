"""The one Definitions object: assets, checks, jobs and resources in the order of the chain."""

import os
from pathlib import Path

import dagster as dg

from assets.checks import all_checks
from assets.cleaned_docs import clusters, decisions, documents
from assets.raw_evidence import evidence
from assets.run_view import candidate, run_view
from assets.tokenized_shards import shards
from resources.project import Project


def _job(name: str, description: str, *assets: dg.AssetsDefinition) -> object:
    selection = dg.AssetSelection.assets(*assets)
    return dg.define_asset_job(name, selection=selection, description=description, executor_def=dg.in_process_executor)


def build_definitions(project: Project) -> dg.Definitions:
    """Definitions over one project folder."""
    return dg.Definitions(
        assets=[evidence, documents, clusters, decisions, shards, candidate, run_view],
        asset_checks=all_checks,
        jobs=[
            _job("ingest", "Evidence and documents of one source snapshot", evidence, documents),
            _job("collect", "Evidence of one source snapshot", evidence),
            _job("clean", "Documents of one source snapshot", documents),
            _job("judge", "Clusters and decisions of one release", clusters, decisions),
            _job("tokenize", "Shards of one release under one tokenizer", shards),
            _job("propose", "Candidate of one run view", candidate),
            _job("publish", "Publication of one run view, if it is approved", run_view),
        ],
        resources={"project": project},
        executor=dg.in_process_executor,
    )


defs = build_definitions(Project.at(os.environ.get("RUNVIEW_PROJECT", Path(__file__).resolve().parent.parent)))
