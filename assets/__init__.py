"""Dagster over the pipeline. Two features are used on purpose while Dagster still calls them preview or beta: partitioned
asset checks and multi-to-single partition mappings; tests cover them, so their notices are silenced here, and only theirs."""

import warnings

import dagster as dg

for _category, _what in (
    (dg.PreviewWarning, "Specifying a partitions_def"),
    (dg.BetaWarning, "Class `MultiToSingleDimensionPartitionMapping`"),
):
    warnings.filterwarnings("ignore", message=_what, category=_category)
