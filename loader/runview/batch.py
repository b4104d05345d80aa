"""Making one micro-batch: token copies, shifted labels, positions, into memory that is used again.

Everything follows from segment bounds and doc_state, never from the value of a token. Legend: B rows, T seq_len, S
document segments.
"""

import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from runview.errors import RunviewError
from runview.layout import MicroLayout, Shape, lay_out
from runview.plan import MicroRows, Planner
from runview.store import OpenShard, ShardCache

GROUP_ROWS = 512  # rows laid out at once: numpy's call overhead falls below a microsecond a row
KEPT = 4  # groups of layouts kept, so that threads working at a group's end and at the next one's start both find theirs
IGNORE = -100  # the label that torch's cross_entropy leaves out by default

Array = np.ndarray[Any, Any]


@dataclass(eq=False)
class Batch:
    """One micro-batch of one rank. Arrays stay valid as long as anything refers to them.

    input_ids [B,T]; labels [B,T], already shifted: labels[b,t] is the token that follows input_ids[b,t] in the same
    document, else -100; position_ids [B,T], from 0 in each attention segment. cu_seqlens int32, strictly increasing
    from 0 to B*T over the flattened rows: one attention segment per document (or per stretch of live documents, when
    the view's attention is `full`), per erased document and per padding tail; max_seqlen the longest of them.
    segment_starts int64 [S]: where each document segment starts in the flattened rows; `doc_ids` uint8 [S,32] whose
    it is (zero for an erased document). loss_weight is None where every label weighs 1.
    positions int64 [B]; pack_ids int64 [B,4]: component, epoch, shard, pack; both -1 for a fully masked fill row.
    n_fill: the fill rows of this micro-batch. n_loss_tokens, n_loss_samples: of the whole step over all ranks and
    micro-batches, the denominator of its loss.
    """

    step: int
    micro_index: int
    n_micro: int
    input_ids: Array
    labels: Array
    position_ids: Array
    cu_seqlens: Array
    max_seqlen: int
    segment_starts: Array
    positions: Array
    pack_ids: Array
    component_names: tuple[str, ...]
    n_loss_tokens: int
    n_loss_samples: int
    n_fill: int
    documents: list[tuple[OpenShard, int]]
    loss_weight: Array | None = None

    @property
    def is_last(self) -> bool:
        """Whether the optimizer step ends with this micro-batch."""
        return self.micro_index == self.n_micro - 1

    @cached_property
    def doc_ids(self) -> Array:
        """Gathered when first asked for, since training does not need it; its bytes are checked as tokens are."""
        ids = [shard.doc_ids(pack) for shard, pack in self.documents]
        return np.concatenate(ids) if ids else np.zeros((0, 32), np.uint8)


class BufferPool:
    """Reused memory for batches: fresh memory costs page faults, several times the copy itself.

    A buffer is handed out again only when nothing refers to it any more, neither a batch nor a view made from one
    (numpy and torch keep the owner alive, so its reference count tells). When all are held, a new one is made.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], capacity: int) -> None:
        self._shape, self._dtype, self._capacity = shape, dtype, capacity
        self._buffers: list[Array] = []
        self._next = 0
        self._lock = threading.Lock()

    def take(self) -> Array:
        with self._lock:
            for _ in range(len(self._buffers)):
                self._next = (self._next + 1) % len(self._buffers)
                if sys.getrefcount(self._buffers[self._next]) == 2:  # the list and the argument itself
                    return self._buffers[self._next]
            buffer = np.empty(self._shape, self._dtype)
            if len(self._buffers) < self._capacity:
                self._buffers.append(buffer)
            return buffer


class Assembler:
    """Makes the micro-batches of a plan, in any order; made for consecutive ones. Safe for threads.

    Layouts are made ahead for a group of micro-batches, at first for one, then twice as many each time: the first batch
    after a seek waits for no shard but its own. A shard that fails in a group fails only the micro-batch it is in.
    """

    def __init__(
        self,
        cache: ShardCache,
        planner: Planner,
        shape: Shape,
        *,
        padding_id: int,
        component_names: tuple[str, ...],
        dtype: np.dtype[Any],
        n_buffers: int,
    ) -> None:
        if shape.size >= 2**31:
            raise ValueError(f"micro_batch x seq_len = {shape.size} does not fit cu_seqlens (int32); use a smaller micro_batch")
        self._cache, self._planner, self._shape = cache, planner, shape
        self._padding_id, self._names, self._dtype = padding_id, component_names, dtype
        self._pool = BufferPool((3, shape.size), dtype, n_buffers)
        self._arange = np.arange(shape.size, dtype=dtype)
        self._ready: OrderedDict[tuple[int, int], tuple[MicroRows, MicroLayout]] = OrderedDict()
        self._expected, self._group = (-1, -1), 1
        self._lock = threading.Lock()

    def assemble(self, step: int, micro: int) -> Batch:
        """The micro-batch, expecting that those after it are asked for next."""
        return self._fill(*self._layout(step, micro))

    def assemble_alone(self, step: int, micro: int) -> Batch:
        """The micro-batch, without looking ahead."""
        rows = self._planner.rows(step, micro)
        return self._fill(rows[0], lay_out(rows, self._shape, self._cache)[0])

    def _layout(self, step: int, micro: int) -> tuple[MicroRows, MicroLayout]:
        with self._lock:
            ready = self._ready.pop((step, micro), None)
            if ready is not None:
                return ready
            at_end = (step, micro) == self._expected
            self._group = min(2 * self._group, max(1, GROUP_ROWS // self._shape.rows)) if at_end else 1
            rows = self._planner.rows(step, micro, self._group)
            try:
                layouts = lay_out(rows, self._shape, self._cache)
            except RunviewError:
                self._group, rows = 1, rows[:1]
                layouts = lay_out(rows, self._shape, self._cache)  # raises again only if this one is concerned
            after = rows[-1].micro_index + 1
            self._expected = (rows[-1].step, after) if after < rows[-1].n_micro else (rows[-1].step + 1, 0)
            for row, layout in zip(rows[1:], layouts[1:], strict=True):
                self._ready[row.step, row.micro_index] = (row, layout)
            while len(self._ready) > KEPT * max(1, GROUP_ROWS // self._shape.rows):
                self._ready.popitem(last=False)  # left behind by a seek
            return rows[0], layouts[0]

    def _fill(self, rows: MicroRows, layout: MicroLayout) -> Batch:
        buffer = self._pool.take()
        input_ids, labels, position_ids = buffer
        seq_len = self._shape.seq_len
        for row in layout.dirty:
            at = slice(row * seq_len, (row + 1) * seq_len)
            input_ids[at], labels[at] = self._padding_id, IGNORE
        for start, shard, begin, length in layout.copies:
            end = begin + length
            if end < shard.n_tokens:
                shard.ensure_tokens(begin, end + 1)
                labels[start : start + length] = shard.tokens[begin + 1 : end + 1]
            else:  # the shard's last token ends its document: no label, masked below
                shard.ensure_tokens(begin, end)
                labels[start : start + length - 1] = shard.tokens[begin + 1 : end]
            input_ids[start : start + length] = shard.tokens[begin:end]
        labels[layout.mask] = IGNORE
        for start, length in layout.erased:
            labels[start : start + length] = IGNORE
        np.subtract(self._arange, np.repeat(layout.edges[:-1].astype(self._dtype), layout.sizes), out=position_ids)
        shape = (self._shape.rows, seq_len)
        return Batch(
            step=rows.step,
            micro_index=rows.micro_index,
            n_micro=rows.n_micro,
            input_ids=input_ids.reshape(shape),
            labels=labels.reshape(shape),
            position_ids=position_ids.reshape(shape),
            cu_seqlens=layout.edges.astype(np.int32),
            max_seqlen=layout.max_seqlen,
            segment_starts=layout.starts,
            positions=layout.positions,
            pack_ids=layout.pack_ids,
            component_names=self._names,
            n_loss_tokens=rows.n_loss_tokens,
            n_loss_samples=rows.n_loss_samples,
            n_fill=self._shape.rows - len(rows.pack_ids),
            documents=layout.documents,
        )
