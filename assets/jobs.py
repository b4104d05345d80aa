"""The jobs of the chain, in its order: what schedules, sensors, the terminal and the UI start."""

import dagster as dg

from assets.cleaned_docs import clusters, decisions, documents
from assets.raw_evidence import evidence
from assets.run_view import candidate, run_view
from assets.tokenized_shards import shards


def _job(name: str, description: str, *assets: dg.AssetsDefinition):  # type: ignore[no-untyped-def]
    selection = dg.AssetSelection.assets(*assets)
    return dg.define_asset_job(name, selection=selection, description=description, executor_def=dg.in_process_executor)


ingest = _job("ingest", "Evidence and documents of one source snapshot", evidence, documents)
collect = _job("collect", "Evidence of one source snapshot", evidence)
clean = _job("clean", "Documents of one source snapshot", documents)
judge = _job("judge", "Clusters and decisions of one release", clusters, decisions)
tokenize = _job("tokenize", "Shards of one release under one tokenizer", shards)
propose = _job("propose", "Candidate of one run view", candidate)
publish = _job("publish", "Publication of one run view, if it is approved", run_view)
all_jobs = [ingest, collect, clean, judge, tokenize, propose, publish]
