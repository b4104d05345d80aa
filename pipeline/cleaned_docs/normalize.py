"""Unicode NFC, once, and LF line ends. Nothing else is touched: never NFKC, which turns `x²` into `x2`."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray


def normalize(texts: pl.Series) -> tuple[pl.Series, dict[str, NDArray[np.float64]]]:
    """The texts in NFC with LF line ends, and what was changed.

    Returns: texts, and per row `n_crlf`, `n_lone_cr` (line ends rewritten) and `nfc_changed` (1 where NFC changed the text).
    Invariant: twice is once.
    """
    n = len(texts)
    n_crlf, n_cr, changed = np.zeros(n), np.zeros(n), np.zeros(n)
    returns = texts.str.contains("\r", literal=True)
    if returns.any():
        rows = returns.arg_true()
        part = texts.gather(rows)
        pairs = part.str.count_matches("\r\n", literal=True)
        n_crlf[rows] = pairs.to_numpy()
        n_cr[rows] = (part.str.count_matches("\r", literal=True) - pairs).to_numpy()
        part = part.str.replace_all("\r\n", "\n", literal=True).str.replace_all("\r", "\n", literal=True)
        texts = _put(texts, rows, part)
    # ASCII is its own NFC; skipping it makes code several times cheaper
    rows = (texts.str.len_bytes() != texts.str.len_chars()).arg_true()
    if len(rows):
        part = texts.gather(rows)
        made = part.str.normalize("NFC")
        differs = made != part
        if differs.any():
            changed[rows.to_numpy()] = differs.to_numpy()
            texts = _put(texts, rows, made)
    return texts, {"n_crlf": n_crlf, "n_lone_cr": n_cr, "nfc_changed": changed}


def _put(texts: pl.Series, rows: pl.Series, values: pl.Series) -> pl.Series:
    """`texts` with `values` at `rows`."""
    place = np.arange(len(texts), dtype=np.int64)
    place[rows.to_numpy()] = len(texts) + np.arange(len(rows), dtype=np.int64)
    return pl.concat([texts, values.rename(texts.name)]).gather(place)
