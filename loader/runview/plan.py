"""Which positions a step delivers, and who takes which: the same on every rank, known without communication."""

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from runview.errors import CursorError
from runview.order import Located
from runview.view import Feed

CHUNK = 8192  # positions located at once: enough to spread numpy's call overhead, few ms of latency for the first batch
FILL = -1

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Topology:
    """How many data-parallel replicas there are, and which one this process is.

    Context, tensor and pipeline parallel sizes other than 1 are refused by name: this version would have every peer
    read alone. Give peers of one replica the same dp_rank instead.
    """

    dp: int = 1
    dp_rank: int = 0
    cp: int = 1
    tp: int = 1
    pp: int = 1

    def __post_init__(self) -> None:
        for name in ("cp", "tp", "pp"):
            if getattr(self, name) != 1:
                raise ValueError(
                    f"Topology {name}={getattr(self, name)} is not supported by this version, 1 expected; "
                    "give all peers of a replica the same dp_rank"
                )
        if self.dp < 1 or not 0 <= self.dp_rank < self.dp:
            raise ValueError(f"Topology needs dp >= 1 and 0 <= dp_rank < dp, found dp={self.dp}, dp_rank={self.dp_rank}")


@dataclass(frozen=True)
class Span:
    """Steps of one global batch size: n_steps from first_step, positions from first_position to before end_position."""

    first_step: int
    n_steps: int
    first_position: int
    end_position: int
    global_batch: int


class Schedule:
    """Steps of a run: position <-> step under a batch schedule. `tail_batch` decides about the incomplete last one."""

    def __init__(self, changes: Sequence[tuple[int, int]], length: int, tail_batch: str) -> None:
        spans, step = [], 0
        for at, (start, batch) in enumerate(changes):
            end = min(changes[at + 1][0], length) if at + 1 < len(changes) else length
            if end <= start:
                break
            n_steps = (end - start) // batch if tail_batch == "drop" else -(-(end - start) // batch)
            if n_steps:
                spans.append(Span(step, n_steps, start, min(end, start + n_steps * batch), batch))
            step += n_steps
        self.changes, self.spans, self.n_steps = tuple(changes), tuple(spans), step
        self.end_position = spans[-1].end_position if spans else 0
        self._first_steps = [span.first_step for span in spans]

    def span(self, step: int) -> Span:
        """The span of a step; ValueError outside [0, n_steps)."""
        if not 0 <= step < self.n_steps:
            raise ValueError(f"step must lie in [0, {self.n_steps}), found {step}")
        return self.spans[bisect_right(self._first_steps, step) - 1]

    def position(self, step: int) -> int:
        """How many packs were delivered before a step; step n_steps is the end."""
        if step == self.n_steps:
            return self.end_position
        span = self.span(step)
        return span.first_position + (step - span.first_step) * span.global_batch

    def step(self, position: int) -> int:
        """The step that starts at a position; CursorError when none does, with the neighbours that do."""
        if position == self.end_position:
            return self.n_steps
        for span in self.spans:
            if span.first_position <= position < span.end_position:
                step, rest = divmod(position - span.first_position, span.global_batch)
                if rest:
                    raise CursorError(
                        f"cursor field 'position': {position} is inside step {span.first_step + step}; "
                        f"steps start at {position - rest} and {position - rest + span.global_batch}"
                    )
                return span.first_step + step
        raise CursorError(f"cursor field 'position': {position} is outside the run, which ends at {self.end_position}")


@dataclass(frozen=True)
class StepPlan:
    """One optimizer step of the whole job.

    positions int64 [dp, n_micro, micro_batch]: who takes what, -1 for a fully masked fill pack (`n_fill` of them).
    component, epoch, shard, pack: int64 [n_real], for positions position .. next_position - 1.
    n_loss_tokens, n_loss_samples: sums over the step, the exact loss denominators on every rank.
    """

    step: int
    position: int
    next_position: int
    global_batch: int
    n_micro: int
    positions: Array
    n_fill: int
    component: Array
    epoch: Array
    shard: Array
    pack: Array
    n_loss_tokens: int
    n_loss_samples: int


@dataclass(frozen=True)
class MicroRows:
    """What one micro-batch of one rank holds: positions [first, first + n) and their packs [n,4]; the rest is fill."""

    step: int
    micro_index: int
    n_micro: int
    first: int
    pack_ids: Array
    n_loss_tokens: int
    n_loss_samples: int


@dataclass(frozen=True)
class _Chunk:
    """Some whole steps of one span, located: `pack_ids` int64 [n, 4] from `first`, and loss sums per step."""

    first: int
    first_step: int
    pack_ids: Array
    loss_tokens: list[int]
    loss_samples: list[int]


class Planner:
    """Plans of steps and of a rank's micro-batches. Locates many steps at a time; safe for threads."""

    def __init__(self, feed: Feed, schedule: Schedule, topology: Topology, micro_batch: int) -> None:
        self.feed, self.schedule, self.topology, self.micro_batch = feed, schedule, topology, micro_batch
        self._chunks: OrderedDict[int, _Chunk] = OrderedDict()
        self._lock = threading.Lock()

    def n_micro(self, step: int) -> int:
        """Micro-batches of a step, equal on every rank."""
        return -(-self.schedule.span(step).global_batch // (self.topology.dp * self.micro_batch))

    def plan(self, step: int) -> StepPlan:
        """The step of the whole job."""
        span, chunk = self.schedule.span(step), self._chunk(step)
        first, n_real = self._extent(span, step)
        n_micro, dp, size = self.n_micro(step), self.topology.dp, self.micro_batch
        slots = np.arange(n_micro * dp * size, dtype=np.int64)
        positions = np.where(slots < n_real, first + slots, FILL).reshape(n_micro, dp, size).transpose(1, 0, 2)
        ids = chunk.pack_ids[first - chunk.first : first - chunk.first + n_real]
        at = step - chunk.first_step
        return StepPlan(
            step,
            first,
            first + n_real,
            span.global_batch,
            n_micro,
            positions,
            len(slots) - n_real,
            ids[:, 0],
            ids[:, 1],
            ids[:, 2],
            ids[:, 3],
            chunk.loss_tokens[at],
            chunk.loss_samples[at],
        )

    def rows(self, step: int, micro_index: int, count: int = 1) -> list[MicroRows]:
        """This rank's part of a micro-batch and of up to count - 1 after it; fewer where the located positions end.

        Its own are the micro_batch slots of the step from (micro_index x dp + dp_rank) x micro_batch on.
        """
        span, chunk = self.schedule.span(step), self._chunk(step)
        n_micro, stride, size = self.n_micro(step), self.topology.dp * self.micro_batch, self.micro_batch
        end_step = chunk.first_step + len(chunk.loss_tokens)
        found: list[MicroRows] = []
        while len(found) < count and step < end_step:
            first, n_real = self._extent(span, step)
            low = min(micro_index * stride + self.topology.dp_rank * size, n_real)
            high = min(low + size, n_real)
            offset, at = first - chunk.first, step - chunk.first_step
            ids = chunk.pack_ids[offset + low : offset + high]
            sums = chunk.loss_tokens[at], chunk.loss_samples[at]
            found.append(MicroRows(step, micro_index, n_micro, first + low, ids, *sums))
            micro_index += 1
            if micro_index == n_micro:
                step, micro_index = step + 1, 0
        return found

    def _extent(self, span: Span, step: int) -> tuple[int, int]:
        first = span.first_position + (step - span.first_step) * span.global_batch
        return first, min(span.global_batch, span.end_position - first)

    def _chunk(self, step: int) -> _Chunk:
        span = self.schedule.span(step)
        per = max(1, CHUNK // span.global_batch)
        first_step = step - (step - span.first_step) % per
        with self._lock:
            chunk = self._chunks.get(first_step)
            if chunk is None:
                chunk = self._chunks[first_step] = self._locate(span, first_step, per)
                if len(self._chunks) > 3:
                    self._chunks.popitem(last=False)
            return chunk

    def _locate(self, span: Span, first_step: int, n_steps: int) -> _Chunk:
        first = span.first_position + (first_step - span.first_step) * span.global_batch
        end = min(span.end_position, first + n_steps * span.global_batch)
        found: Located = self.feed.order.locate(np.arange(first, end, dtype=np.int64))
        loss = np.zeros((end - first, 2), np.int64)
        for number in np.unique(found.component).tolist():
            at = np.flatnonzero(found.component == number)
            files = self.feed.components[number]
            loss[at] = files.stats[files.first_pack[found.shard[at]] + found.pack[at], 1:3]
        sums = np.add.reduceat(loss, np.arange(0, end - first, span.global_batch), axis=0)
        ids = np.stack([found.component, found.epoch, found.shard, found.pack], axis=1)
        return _Chunk(first, first_step, ids, (sums[:, 0] // 1000).tolist(), sums[:, 1].tolist())
