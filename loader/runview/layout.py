"""Where everything of some consecutive micro-batches goes, computed at once: numpy costs some microseconds a call,
whatever the size, and one micro-batch alone would spend more on calls than on copying tokens.

Legend: K micro-batches, B rows each, T seq_len; flat coordinates count positions over all K*B rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from runview.plan import FILL, MicroRows
from runview.store import OpenShard, ShardCache

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Shape:
    """What does not change from one micro-batch to the next."""

    rows: int
    seq_len: int
    segment_multiple: int
    full_attention: bool

    @property
    def size(self) -> int:
        return self.rows * self.seq_len


@dataclass(frozen=True)
class MicroLayout:
    """One micro-batch, in its own flattened coordinates [0, B*T).

    copies: (target, shard, first token, length); mask: where a document's last token stands; erased: ranges of erased
    documents; dirty: rows that are not full of tokens; edges int64: attention segments; starts: document segments.
    """

    copies: list[tuple[int, OpenShard, int, int]]
    mask: Array
    erased: list[tuple[int, int]]
    dirty: list[int]
    edges: Array
    sizes: Array
    max_seqlen: int
    starts: Array
    positions: Array
    pack_ids: Array
    documents: list[tuple[OpenShard, int]]


def lay_out(micros: Sequence[MicroRows], shape: Shape, cache: ShardCache) -> list[MicroLayout]:
    """The layouts of consecutive micro-batches. Opens every shard they need; errors of files pass through."""
    n_rows, seq_len = len(micros) * shape.rows, shape.seq_len
    positions, pack_ids = np.full(n_rows, FILL, np.int64), np.full((n_rows, 4), FILL, np.int64)
    for number, micro in enumerate(micros):
        at, n = number * shape.rows, len(micro.pack_ids)
        positions[at : at + n] = np.arange(micro.first, micro.first + n)
        pack_ids[at : at + n] = micro.pack_ids
    real = np.flatnonzero(positions >= 0)
    documents = _open(pack_ids[real], cache)
    bounds = [(shard.pack_offsets[pack], shard.pack_offsets[pack + 1]) for shard, pack in documents]
    table = np.concatenate(
        [shard.segments[a:b] for (shard, _), (a, b) in zip(documents, bounds, strict=True)] or [np.zeros((0, 2), np.int64)]
    )
    begin, length = table[:, 0], table[:, 1] >> 2
    ends, gone = (table[:, 1] & OpenShard.ENDS) != 0, (table[:, 1] & OpenShard.GONE) != 0
    padded = -(-length // shape.segment_multiple) * shape.segment_multiple

    n_each = np.zeros(n_rows, np.int64)
    n_each[real] = [b - a for a, b in bounds]
    edge = _cumulated(n_each)  # first segment of each row
    after = _cumulated(padded)
    used = np.diff(after[edge])
    n_tokens = used if shape.segment_multiple == 1 else np.diff(_cumulated(length)[edge])
    row_start = np.arange(n_rows, dtype=np.int64) * seq_len
    starts = after[:-1] + np.repeat(row_start - after[edge[:-1]], n_each)

    new_run = np.ones(len(begin), np.bool_)
    new_run[1:] = (begin[1:] != begin[:-1] + length[:-1]) | (padded[:-1] != length[:-1])
    new_run[edge[real]] = True
    run = np.flatnonzero(new_run)
    last = np.append(run[1:], len(begin))[: len(run)] - 1  # no run at all when every row is fill
    run_lengths = starts[last] + length[last] - starts[run]
    row_of_run = np.searchsorted(edge, run, side="right") - 1
    shard_of_run = (np.cumsum(positions >= 0) - 1)[row_of_run]

    edges = _edges(shape, starts, row_start, used, padded, gone)
    micro_start = np.arange(len(micros) + 1, dtype=np.int64) * shape.size
    mask, erased_at = (starts + length - 1)[ends], np.flatnonzero(gone)
    cuts = [np.searchsorted(a, micro_start).tolist() for a in (starts[run], mask, starts[erased_at], edges, starts)]
    sizes = np.diff(edges)
    longest = np.maximum.reduceat(sizes, cuts[3][:-1]).tolist()
    dirty = (n_tokens != seq_len).reshape(len(micros), shape.rows)
    any_dirty = dirty.any(axis=1).tolist()
    copies = list(
        zip(
            (starts[run] % shape.size).tolist(),
            [documents[i][0] for i in shard_of_run.tolist()],
            begin[run].tolist(),
            run_lengths.tolist(),
            strict=True,
        )
    )
    erased = list(zip((starts[erased_at] % shape.size).tolist(), length[erased_at].tolist(), strict=True))
    found, document = [], 0
    for k, micro in enumerate(micros):
        (r0, r1), (m0, m1), (g0, g1), (e0, e1), (s0, s1) = ((cut[k], cut[k + 1]) for cut in cuts)
        base, rows = k * shape.size, slice(k * shape.rows, (k + 1) * shape.rows)
        found.append(
            MicroLayout(
                copies[r0:r1],
                mask[m0:m1] - base,
                erased[g0:g1],
                np.flatnonzero(dirty[k]).tolist() if any_dirty[k] else [],
                edges[e0 : e1 + 1] - base,
                sizes[e0:e1],
                longest[k],
                starts[s0:s1] - base,
                positions[rows],
                pack_ids[rows],
                documents[document : document + len(micro.pack_ids)],
            )
        )
        document += len(micro.pack_ids)
    return found


def _open(pack_ids: Array, cache: ShardCache) -> list[tuple[OpenShard, int]]:
    """The open shard and the pack number of each row; each shard is asked for once."""
    opened: dict[tuple[int, int], OpenShard] = {}
    found = []
    for component, _, shard, pack in pack_ids.tolist():
        item = opened.get((component, shard))
        if item is None:
            item = opened[component, shard] = cache.get(component, shard)
        found.append((item, pack))
    return found


def _edges(shape: Shape, starts: Array, row_start: Array, used: Array, padded: Array, gone: Array) -> Array:
    """Bounds of the attention segments, sorted, from 0 to the end of all rows; each row's start is one of them."""
    total = len(row_start) * shape.seq_len
    tails = (row_start + used)[used < shape.seq_len]
    if not shape.full_attention:
        if not len(tails):
            return np.append(starts, total)
        return np.append(np.union1d(starts, tails), total)
    edges = np.union1d(row_start, tails)
    if gone.any():
        edges = np.union1d(edges, np.union1d(starts[gone], (starts + padded)[gone]))
    return np.append(edges[edges < total], total)


def _cumulated(values: Array) -> Array:
    result = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=result[1:])
    return result
