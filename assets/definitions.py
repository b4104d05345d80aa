"""The one Definitions object: assets, checks, jobs and resources in the order of the chain."""

import os
from pathlib import Path

import dagster as dg

from assets.alert_sensors import alert_sensors
from assets.automation import launching, nightly, with_freshness
from assets.checks import all_checks
from assets.cleaned_docs import clusters, decisions, documents
from assets.jobs import all_jobs
from assets.raw_evidence import evidence
from assets.run_view import candidate, run_view
from assets.tokenized_shards import shards
from resources.project import Project


def build_definitions(project: Project) -> dg.Definitions:
    """Definitions over one project folder."""
    return dg.Definitions(
        assets=[with_freshness(evidence, project), documents, clusters, decisions, shards, candidate, run_view],
        asset_checks=all_checks,
        jobs=all_jobs,
        schedules=[nightly],
        sensors=[*launching, *alert_sensors],
        resources={"project": project},
        executor=dg.in_process_executor,
    )


defs = build_definitions(Project.at(os.environ.get("RUNVIEW_PROJECT", Path(__file__).resolve().parent.parent)))
