"""The loader: iterates the micro-batches of one rank, from a cursor, over an opened run view."""

import os
import time
import weakref
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from runview.batch import Assembler, Batch
from runview.cursor import Cursor, isolation_id, schedule_id
from runview.errors import CursorError, LoaderClosedError
from runview.layout import Shape
from runview.plan import Planner, Schedule, StepPlan, Topology
from runview.store import ShardCache
from runview.view import Feed, RunView
from runview.workers import Workers

__all__ = ["Batch", "Feed", "Loader", "RunView", "Topology"]

DTYPES: dict[str, np.dtype[Any]] = {"int64": np.dtype(np.int64), "int32": np.dtype(np.int32)}
ALONE = Topology()
PREFETCH = 4  # micro-batches made ahead; more only adds memory once the consumer never waits


class Loader:
    """Micro-batches of one data-parallel rank. An iterator: every `for` continues where the last one stopped.

    Args: view, a RunView, or a Feed from `RunView.validation`; topology, who this rank is; micro_batch, packs in one
    micro-batch; threads, background assemblers (0: in the caller's thread); prefetch, micro-batches made ahead;
    device, None or "cpu" in this version; dtype, "int64" or "int32" of ids, labels and positions; global_batch, for
    validation alone (default dp x micro_batch); max_open_shards bounds open files;
    withdrawal_check_seconds, how often the store is asked whether the view was withdrawn.

    The cursor moves when the last micro-batch of a step is taken; `state_dict` inside a step gives the step's start.
    The same cursor resumes under any other topology, micro_batch, threads or prefetch. `len(loader)` is the number of
    optimizer steps, the same on every rank. Close it, or use it as a context manager. Not for sharing between threads.
    """

    def __init__(
        self,
        view: RunView | Feed,
        *,
        topology: Topology = ALONE,
        micro_batch: int,
        threads: int = 1,
        prefetch: int = PREFETCH,
        device: str | None = None,
        dtype: str = "int64",
        global_batch: int | None = None,
        max_open_shards: int = 256,
        withdrawal_check_seconds: float = 60.0,
    ) -> None:
        feed = view.feed if isinstance(view, RunView) else view
        if micro_batch < 1 or threads < 0 or prefetch < 1:
            raise ValueError(f"micro_batch >= 1, threads >= 0 and prefetch >= 1 expected, found {micro_batch}, {threads}, {prefetch}")
        if device not in (None, "cpu"):
            raise ValueError(f"device must be None or 'cpu' in this version, found {device!r}; move the batch yourself")
        if dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {sorted(DTYPES)}, found {dtype!r}")
        if dtype == "int32" and feed.manifest.tokenizer.vocab_size > 2**31:
            raise ValueError(f"vocab_size {feed.manifest.tokenizer.vocab_size} does not fit int32; use dtype='int64'")
        if feed.schedule is not None and global_batch is not None:
            raise ValueError("global_batch is decided by the view's batch schedule; give it for validation only")
        if global_batch is not None and global_batch < 1:
            raise ValueError(f"global_batch must be at least 1, found {global_batch}")
        self.feed, self.topology, self.micro_batch = feed, topology, micro_batch
        changes = feed.schedule or ((0, global_batch or topology.dp * micro_batch),)
        self.schedule = Schedule(changes, feed.order.length, feed.tail_batch)
        self._ids = (schedule_id(self.schedule.changes), isolation_id(()))
        self._planner = Planner(feed, self.schedule, topology, micro_batch)
        self._cache = ShardCache(feed.open_shard, max_open_shards)
        manifest = feed.manifest
        shape = Shape(micro_batch, manifest.seq_len, manifest.packing.segment_multiple, manifest.attention == "full")
        self._assembler = Assembler(
            self._cache,
            self._planner,
            shape,
            padding_id=manifest.tokenizer.padding_id,
            component_names=tuple(files.name for files in feed.components),
            dtype=DTYPES[dtype],
            n_buffers=(prefetch if threads else 0) + 3,
        )
        self._workers = Workers(self._assembler.assemble, threads, prefetch)
        self._finalizer = weakref.finalize(self, self._workers.close)
        self.continued_from: str | None = None
        self._check_seconds, self._next_check = withdrawal_check_seconds, time.monotonic() + withdrawal_check_seconds
        self._counts = dict.fromkeys(("steps", "micro_batches", "packs", "fill_packs", "positions"), 0)
        self._wait_seconds, self._started, self._pid = 0.0, time.monotonic(), os.getpid()
        self._step, self._micro, self._ahead = 0, 0, (0, 0)

    def __len__(self) -> int:
        """Optimizer steps of the whole run, equal on every rank; not what is left."""
        return self.schedule.n_steps

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        self._usable()
        if time.monotonic() >= self._next_check:
            self.feed.check_withdrawn()
            self._next_check = time.monotonic() + self._check_seconds
        if self._step >= self.schedule.n_steps:
            raise StopIteration
        self._fill()
        started = time.perf_counter()
        try:
            batch = self._workers.get()
        except BaseException:
            self._move(self._step, self._micro)  # the same micro-batch is tried again when asked again
            raise
        self._wait_seconds += time.perf_counter() - started
        counts = self._counts
        counts["micro_batches"] += 1
        counts["packs"] += self.micro_batch - batch.n_fill
        counts["fill_packs"] += batch.n_fill
        counts["positions"] += batch.input_ids.size
        if batch.is_last:
            self._step, self._micro = self._step + 1, 0
            self._counts["steps"] += 1
        else:
            self._micro += 1
        return batch

    @property
    def step(self) -> int:
        """The step that the cursor stands at: steps completed."""
        return self._step

    @property
    def position(self) -> int:
        """Packs delivered to the whole job by completed steps."""
        return self.schedule.position(self._step)

    def seek(self, position: int) -> None:
        """Continue at a global position, which must be the start of a step (or the end); costs no reading."""
        self._usable()
        self._move(self.schedule.step(position))

    def state_dict(self, after: Batch | None = None) -> dict[str, str | int]:
        """The cursor as JSON values. With `after`, as it stands once that batch is consumed (for fetching ahead)."""
        step = self._step if after is None else after.step + after.is_last
        return Cursor(self.feed.identity, self.feed.order_version, self.schedule.position(step), step, *self._ids).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a cursor of this view, or of one it continues; CursorError names the field that differs."""
        self._usable()
        cursor, feed = Cursor.from_dict(state), self.feed
        earlier = next((c for c in feed.continues if c.view_id == cursor.view_id), None)
        if cursor.view_id != feed.identity and earlier is None:
            raise CursorError(
                f"cursor field 'view_id': {feed.identity} expected, found {cursor.view_id}, which this view does "
                f"not continue (it continues {[c.view_id for c in feed.continues]}); open the cursor's view"
            )
        if earlier is not None and cursor.position > earlier.up_to_position:
            raise CursorError(
                f"cursor field 'position': view {feed.identity} continues {cursor.view_id} up to position "
                f"{earlier.up_to_position}, found {cursor.position}; resume from an earlier cursor"
            )
        expected = {"order": feed.order_version, "schedule_id": self._ids[0], "isolation_id": self._ids[1]}
        if earlier is not None and earlier.relation == "amendment":
            del expected["schedule_id"]  # an amendment may change the schedule after up_to_position; the step is checked below
        for field, value in expected.items():
            if getattr(cursor, field) != value:
                raise CursorError(
                    f"cursor field {field!r}: {value!r} expected, found {getattr(cursor, field)!r}; the same step would hold other packs"
                )
        step = self.schedule.step(cursor.position)
        if step != cursor.step:
            raise CursorError(f"cursor field 'step': position {cursor.position} starts step {step}, found {cursor.step}")
        self._move(step)
        self.continued_from = None if earlier is None else cursor.view_id

    def plan(self, step: int) -> StepPlan:
        """What the whole job gets in a step; any step, without moving the cursor."""
        return self._planner.plan(step)

    def batch_at(self, step: int) -> list[Batch]:
        """This rank's micro-batches of any step, without moving the cursor."""
        self._usable()
        return [self._assembler.assemble_alone(step, i) for i in range(self._planner.n_micro(step))]

    def metrics(self) -> dict[str, float | int | str | None]:
        """Counts since construction, for this rank. `wait_seconds` is the time spent waiting for a batch, and no other;
        `wait_ratio` its part of the wall time since construction."""
        elapsed = max(time.monotonic() - self._started, 1e-9)
        return {
            **self._counts,
            "cursor_step": self._step,
            "cursor_position": self.position,
            "wait_seconds": self._wait_seconds,
            "wait_ratio": self._wait_seconds / elapsed,
            "shards_opened": self._cache.n_opened,
            "shards_open": self._cache.n_open,
            "blocks_verified": self._cache.n_blocks_verified,
            "continued_from": self.continued_from,
        }

    def close(self) -> None:
        """Stop and join the threads, let go of the files. Batches already taken stay valid. Twice is once."""
        self._finalizer()
        self._cache.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _usable(self) -> None:
        if not self._finalizer.alive:
            raise LoaderClosedError("this loader is closed; make a new one and load the cursor into it")
        if self._pid != os.getpid():
            raise LoaderClosedError(
                f"this loader was made in process {self._pid} and cannot be used after a fork; its threads "
                "stayed there. Use DataLoader(num_workers=0) and Loader(threads=...)"
            )

    def _move(self, step: int, micro: int = 0) -> None:
        self._workers.drain()
        self._step, self._micro = step, micro
        self._ahead = (step, micro)

    def _fill(self) -> None:
        while self._workers.has_room and self._ahead[0] < self.schedule.n_steps:
            step, micro = self._ahead
            self._workers.put(step, micro)
            self._ahead = (step, micro + 1) if micro + 1 < self._planner.n_micro(step) else (step + 1, 0)
