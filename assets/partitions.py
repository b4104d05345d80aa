"""Partition definitions: source x date, release, release x tokenizer, run view."""

import os
from collections.abc import Iterable

import dagster as dg

# The first date a source snapshot may have. Registered keys are sources x days since then, so it is a setting.
FIRST_DATE = os.environ.get("RUNVIEW_FIRST_DATE", "2026-01-01")

sources = dg.DynamicPartitionsDefinition(name="sources")
dates = dg.DailyPartitionsDefinition(start_date=FIRST_DATE, end_offset=1)
source_snapshots = dg.MultiPartitionsDefinition({"source": sources, "snapshot": dates})
releases = dg.DynamicPartitionsDefinition(name="releases")
tokenizers = dg.DynamicPartitionsDefinition(name="tokenizers")
release_tokenizers = dg.MultiPartitionsDefinition({"release": releases, "tokenizer": tokenizers})
run_views = dg.DynamicPartitionsDefinition(name="run_views")


def register(instance: dg.DagsterInstance, definition: dg.DynamicPartitionsDefinition, keys: Iterable[str]) -> None:
    """Add the keys of a dynamic partition that are not there yet."""
    assert definition.name is not None
    there = set(instance.get_dynamic_partitions(definition.name))
    missing = sorted(set(keys) - there)
    if missing:
        instance.add_dynamic_partitions(definition.name, missing)
