"""How documents become packs of at most `seq_len` tokens: every token in exactly one pack, or counted as lost.

`concat` cuts the stream of documents every `seq_len`; a document continues in the next pack. `best_fit` is
best-fit-decreasing: only documents longer than `seq_len` are split, into full pieces and one remainder.
With `segment_multiple` m every segment takes a multiple of m of the pack, so that context parallelism can cut it evenly.

Source: Johnson 1974 (best-fit-decreasing); Ding et al. 2024, "Fewer Truncations Improve Language Modeling".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import numba
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class PackPlan:
    """Packs in packing order: pack p holds segments [pack_offsets[p], pack_offsets[p + 1]).

    Attributes:
        pack_offsets: int64 [P + 1].
        segment_doc, segment_start, segment_length: int64 [G]; ordinal of the document, first token in it, tokens.
        lost: reason -> tokens that lie in no pack.
    """

    pack_offsets: Array
    segment_doc: Array
    segment_start: Array
    segment_length: Array
    lost: Mapping[str, int]

    @property
    def n_packs(self) -> int:
        return len(self.pack_offsets) - 1

    @property
    def n_packed_tokens(self) -> int:
        return int(self.segment_length.sum())

    def reordered(self, order: Array) -> PackPlan:
        """The same packs, pack i being this plan's pack order[i]."""
        sizes = np.diff(self.pack_offsets)[order]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        at = np.repeat(self.pack_offsets[:-1][order] - offsets[:-1], sizes) + np.arange(int(offsets[-1]))
        return PackPlan(offsets, self.segment_doc[at], self.segment_start[at], self.segment_length[at], self.lost)


def pack(
    lengths: Array,
    *,
    seq_len: int,
    policy: Literal["concat", "best_fit"],
    segment_multiple: int = 1,
    tail_pack: Literal["drop", "masked_pad"] = "masked_pad",
) -> PackPlan:
    """Packs of documents in the given order.

    Args: lengths, int64 [D], tokens of each document, all at least 1; segment_multiple must divide seq_len;
        tail_pack, what happens to the last pack when it is not full: `concat`'s remainder of the stream, `best_fit`'s pack
        that was opened last (other packs that are not full are kept under both). `drop` counts it as lost.
    Returns: the plan, in packing order. `best_fit` puts the full pieces of a split document right before its remainder,
        so that documents laid out by first use make almost every pack one contiguous range.
    Invariant: a pure function; sum of segment lengths + lost = sum of lengths; a pack holds at most seq_len tokens.
    Cost: best_fit O(D log seq_len) time and O(D) memory.
    """
    lengths = np.asarray(lengths, np.int64)
    if seq_len < 1 or segment_multiple < 1 or seq_len % segment_multiple:
        raise ValueError(f"segment_multiple must divide seq_len, found {segment_multiple} and {seq_len}")
    if lengths.ndim != 1 or (len(lengths) and int(lengths.min()) < 1):
        raise ValueError("lengths must be a 1-D array of numbers >= 1")
    if policy not in ("concat", "best_fit") or tail_pack not in ("drop", "masked_pad"):
        raise ValueError(f"policy must be concat or best_fit, tail_pack drop or masked_pad; found {policy!r}, {tail_pack!r}")
    if policy == "concat":
        offsets, doc, start, length = _concat(lengths, seq_len, segment_multiple)
    else:
        offsets, doc, start, length = _best_fit(lengths, seq_len, segment_multiple)
    lost = 0
    if tail_pack == "drop" and len(offsets) > 1:
        first = int(offsets[-2])
        room = -(-length[first:] // segment_multiple) * segment_multiple
        if int(room.sum()) < seq_len:
            lost = int(length[first:].sum())
            offsets, doc, start, length = offsets[:-1], doc[:first], start[:first], length[:first]
    return PackPlan(offsets, doc, start, length, {"tail_dropped": lost})


def _concat(lengths: Array, seq_len: int, multiple: int) -> tuple[Array, Array, Array, Array]:
    """Cuts of the stream of rounded documents. Cuts are multiples of `multiple`, so rounding only touches a document's end."""
    room = -(-lengths // multiple) * multiple
    end = np.cumsum(room)
    begin = end - room
    first_pack, last_pack = begin // seq_len, (end - 1) // seq_len
    pieces = last_pack - first_pack + 1
    doc = np.repeat(np.arange(len(lengths)), pieces)
    piece = np.arange(len(doc)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    in_pack = first_pack[doc] + piece
    start = np.maximum(in_pack * seq_len, begin[doc]) - begin[doc]
    stop = np.minimum((in_pack + 1) * seq_len - begin[doc], lengths[doc])
    n_packs = int(in_pack[-1]) + 1 if len(in_pack) else 0
    return np.searchsorted(in_pack, np.arange(n_packs + 1)), doc, start, stop - start


def _best_fit(lengths: Array, seq_len: int, multiple: int) -> tuple[Array, Array, Array, Array]:
    n_full, rest = np.divmod(lengths, seq_len)
    with_rest = np.flatnonzero(rest)
    units = -(-rest[with_rest] // multiple)
    by_size = np.argsort(-units, kind="stable")
    bin_of = _place(units[by_size], seq_len // multiple)
    # Items of one bin: remainders of split documents first (their full pieces come right before), then by size.
    doc = with_rest[by_size]
    is_whole = n_full[doc] == 0
    order = np.lexsort((np.arange(len(doc)), is_whole, bin_of))
    doc, bin_of = doc[order], bin_of[order]
    # Documents cut into full pieces alone have no remainder; they are packed first.
    exact = np.flatnonzero((rest == 0) & (n_full > 0))
    leaders = np.concatenate([exact, doc])
    # Row r of `leaders`: n_full full pieces, each a pack of its own, then (except for `exact`) the remainder.
    is_rest = np.arange(len(leaders)) >= len(exact)
    bins = np.concatenate([np.full(len(exact), -1), bin_of])
    full = n_full[leaders]
    full_doc = np.repeat(leaders, full)
    full_piece = np.arange(len(full_doc)) - np.repeat(np.cumsum(full) - full, full)
    rest_doc = leaders[is_rest]
    seg_doc = np.concatenate([full_doc, rest_doc])
    seg_start = np.concatenate([full_piece * seq_len, n_full[rest_doc] * seq_len])
    seg_length = np.concatenate([np.full(len(full_doc), seq_len), rest[rest_doc]])
    seg_bin = np.concatenate([np.repeat(bins, full), bins[is_rest]])
    is_full = np.arange(len(seg_doc)) < len(full_doc)
    by_pack = np.lexsort((np.arange(len(seg_doc)), ~is_full, seg_bin))
    seg_doc, seg_start, seg_length, seg_bin, is_full = (a[by_pack] for a in (seg_doc, seg_start, seg_length, seg_bin, is_full))
    opens = is_full.copy()
    opens[1:] |= is_full[:-1] | (seg_bin[1:] != seg_bin[:-1])
    opens[:1] = True
    return np.concatenate([np.flatnonzero(opens), [len(seg_doc)]]).astype(np.int64), seg_doc, seg_start, seg_length


def _place_slowly(sizes: Array, capacity: int) -> Array:
    """Best fit of sizes that do not increase: the bin of each, numbered as they are opened.

    Bins of equal room form a stack; a tree over room (leaf = is there a bin with exactly this room) finds the smallest that
    suffices in O(log capacity).
    """
    width = 1
    while width < capacity + 1:
        width *= 2
    tree = np.zeros(2 * width, np.bool_)
    top = np.full(capacity + 1, -1, np.int64)
    below = np.empty(len(sizes), np.int64)
    bin_of = np.empty(len(sizes), np.int64)
    n_bins = 0
    for i in range(len(sizes)):
        size = sizes[i]
        node = width + size
        if not tree[node]:
            while node > 1 and (node & 1 or not tree[node + 1]):
                node >>= 1
            node = node + 1 if node > 1 else 0
            while 0 < node < width:
                node *= 2
                if not tree[node]:
                    node += 1
        if node == 0:
            chosen, room = n_bins, capacity
            n_bins += 1
        else:
            room = node - width
            chosen = top[room]
            top[room] = below[chosen]
            if top[room] < 0:
                tree[node] = False
                node >>= 1
                while node and not (tree[2 * node] or tree[2 * node + 1]):
                    tree[node] = False
                    node >>= 1
        bin_of[i] = chosen
        room -= size
        if room > 0:
            below[chosen] = top[room]
            top[room] = chosen
            node = width + room
            while node and not tree[node]:
                tree[node] = True
                node >>= 1
    return bin_of


# Compiled at the first call (about a second); as plain Python it takes 130 times as long.
_place = cast("Callable[[Array, int], Array]", numba.njit(_place_slowly))
