"""Train or validation: a seeded hash of the cluster decides, so equal texts are never on both sides."""

from __future__ import annotations

from fractions import Fraction

import polars as pl

from pipeline.ids import row_digest
from pipeline.recipe import Split

TRAIN, VALIDATION = "train", "validation"


def splits(cluster_ids: pl.Series, config: Split) -> pl.Series:
    """Split of each cluster.

    The first 64 bits of the digest of seed and cluster_id, as a fraction of 2^64, are below the share: compared as integers.
    A cluster keeps its side when others come or go, and moves to validation only when the share grows.
    """
    share = Fraction(config.validation_share)
    if not 0 <= share < 1:
        raise ValueError(f"split.validation_share must be at least 0 and below 1, found {config.validation_share}")
    limit = share.numerator << 64
    heads = (int(row_digest("split", config.seed, cluster_id)[:16], 16) for cluster_id in cluster_ids)
    return pl.Series("split", [VALIDATION if head * share.denominator < limit else TRAIN for head in heads], dtype=pl.String)
