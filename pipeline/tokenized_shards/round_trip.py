"""Does a tokenizer give texts back unchanged? Measured on the documents themselves, per language and domain."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import polars as pl
import pyarrow as pa

from pipeline.tokenized_shards.shards import mix64
from pipeline.tokenized_shards.tokenizer import Tokenizer


def round_trip(documents: pa.Table, *, tokenizer: Tokenizer, seed: str, share: Decimal = Decimal(1)) -> pa.Table:
    """How many documents decode(encode(text)) gives back unchanged, per language and domain.

    Args: documents with doc_id, text, language, domain; share, 0 to 1, of documents to try: those whose seeded mix of
        doc_id is small, so batches of one corpus choose the same documents in any batching.
    Returns: language, domain, n_docs, n_exact (int64), sorted; rows of several batches are added.
    """
    ids = documents["doc_id"].to_pylist()
    first = np.array([int(doc_id[:16], 16) for doc_id in ids], np.uint64)
    # the upper 32 bits decide: exact for any share, and 2^-32 is finer than any corpus needs
    mixed = mix64(first ^ np.uint64(int(seed[:16], 16))) >> np.uint64(32)
    chosen = documents.select(["text", "language", "domain"]).filter(pa.array(mixed < np.uint64(int(share * 2**32))))
    texts = chosen["text"].to_pylist()
    back = tokenizer.decode_batch(*tokenizer.encode_batch(texts))
    exact = np.fromiter((a == b for a, b in zip(texts, back, strict=True)), np.int64, len(texts))
    frame = pl.DataFrame(
        {"language": chosen["language"].to_pylist(), "domain": chosen["domain"].to_pylist(), "n_exact": exact},
        schema={"language": pl.String, "domain": pl.String, "n_exact": pl.Int64},
    )
    return add_round_trips([frame.with_columns(pl.lit(1, pl.Int64).alias("n_docs")).to_arrow()])


def add_round_trips(counts: Sequence[pa.Table]) -> pa.Table:
    """Counts of several batches as one table: language, domain, n_docs, n_exact."""
    schema = {"language": pl.String, "domain": pl.String, "n_docs": pl.Int64, "n_exact": pl.Int64}
    frames = [pl.DataFrame(schema=schema), *(pl.DataFrame(table).select(list(schema)) for table in counts)]
    return pl.concat(frames).group_by("language", "domain").sum().sort("language", "domain").to_arrow()
