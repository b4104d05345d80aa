"""A pure map in processes of its own: results in the order of the items, a bounded number of items at a time, one thread in each.

Workers are fresh interpreters. Forking would copy this process's threads' locks without the threads (polars, torch, Dagster), and
multiprocessing's own fresh start imports the program again in each worker, which is Dagster's command line here. What goes in
and comes out is Arrow IPC, so that a slice is sent as a slice.

How many workers, and whether any, changes no byte of a result.
"""

from __future__ import annotations

import io
import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from pipeline.errors import PipelineError, RecipeError

T = TypeVar("T")
R = TypeVar("R")

# A worker costs 2.3 CPU seconds before its first result (imports 0.7 s, language model 0.6 s, compiled rules 0.6 s), and a core cleans
# 25 to 33 MB/s (301 MB of Python source: 9.0 s in process, 8.1 s with two workers on two cores that others used too). By that, two on
# idle cores are as fast as none at 115 MB.
PARALLEL_BYTES = 128 * 2**20
BYTES_PER_WORKER = 16 * 2**20  # fewer have nothing to do: work is cut in pieces of this size
# Items taken and not handed on yet, for each worker: one it works on, one that is done or comes next.
ITEMS_PER_WORKER = 2
END_SECONDS = 5.0
# Libraries start as many threads as there are cores, in every worker.
ONE_THREAD = ("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS")
SETTING = "RUNVIEW_WORKERS"
_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


class WorkerError(PipelineError):
    """A worker process ended before its work; names the work and how it ended. Nothing of the step was published."""


def worker_count(size_bytes: int) -> int:
    """How many workers to use for this many bytes of input; 1 means none beside this process.

    All cores this process may use, unless RUNVIEW_WORKERS says how many; below PARALLEL_BYTES one, since starting them takes
    longer than it saves. Raises RecipeError for a setting that is no count.
    """
    text = os.environ.get(SETTING, "").strip()
    if text and not (text.isdecimal() and int(text) > 0):
        raise RecipeError(f"{SETTING}: a number of processes from 1 expected, found {text!r}; leave it empty for all cores")
    if size_bytes < PARALLEL_BYTES:
        return 1
    return int(text) if text else max(1, min(usable_cores(), size_bytes // BYTES_PER_WORKER))


def usable_cores() -> int:
    """Cores this process may run on: its affinity, and the quota of its container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = _CPU_MAX.read_text().split()
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def mapped(function: Callable[[T], R], items: Iterable[T], *, n_workers: int, what: str) -> Iterator[R]:
    """`map(function, items)` in `n_workers` processes, or in this one when that is 1.

    Args:
        function: importable by name, as `pickle` needs it; pure, since which process runs it is chance.
        what: name of the work, for errors.
    Memory: `ITEMS_PER_WORKER` items or results for each worker. Items are taken from this process alone, in order.
    Raises: what `function` raises, with the place in the worker as a note; WorkerError when a worker was killed or could not start.
        Either ends all workers.
    """
    if n_workers < 1:
        raise ValueError(f"n_workers: expected at least 1, found {n_workers}")
    if n_workers == 1:
        yield from map(function, items)
        return
    order = pickle.dumps(function)
    source = enumerate(items)
    done: dict[int, bytes] = {}
    n_out, n_in, more = 0, 0, True
    workers: list[_Worker] = []
    try:
        for number in range(n_workers):  # all at once: sending a large item waits until its worker has imported
            workers.append(_Worker(order, number + 1, n_workers, what))
        while True:
            while more and n_in - n_out < n_workers * ITEMS_PER_WORKER:
                free = next((worker for worker in workers if worker.item is None), None)
                following = next(source, None) if free else None
                if free is None or following is None:
                    more = free is None
                    break
                free.send(following[0], _dump(following[1]))
                n_in += 1
            if n_out in done:
                yield pickle.loads(done.pop(n_out))
                n_out += 1
                continue  # with room for another item
            if n_out == n_in:
                return
            busy = {worker.connection: worker for worker in workers if worker.item is not None}
            for ready in wait(list(busy)):
                number, data = busy[ready].receive()  # type: ignore[index]
                done[number] = data
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """One process and the connection to it; `item` is the number of the item it works on."""

    def __init__(self, order: bytes, number: int, n_workers: int, what: str) -> None:
        self.name = f"{what}: worker {number} of {n_workers}"
        self.item: int | None = None
        self.connection, far = Pipe()
        path = os.pathsep.join(os.path.abspath(place) for place in sys.path if place)
        environment = {**os.environ, **dict.fromkeys(ONE_THREAD, "1"), "PYTHONPATH": path}
        # -P: the working folder may hold a file named like a module
        command = [sys.executable, "-P", "-c", f"from resources.workers import serve; serve({far.fileno()})"]
        try:
            self.process = subprocess.Popen(command, pass_fds=[far.fileno()], stdin=subprocess.DEVNULL, env=environment)
        except OSError as error:
            self.connection.close()
            raise WorkerError(f"{self.name} could not start ({type(error).__name__}, {error.errno}); run the same command again") from None
        finally:
            far.close()
        self._put(order)

    def send(self, number: int, data: bytes) -> None:
        self.item = number
        self._put(data)

    def receive(self) -> tuple[int, bytes]:
        """Number of the item and its result. Raises what the function raised."""
        assert self.item is not None
        try:
            ok = self.connection.recv_bytes() == b"ok"
            data = self.connection.recv_bytes()
        except (EOFError, OSError):
            raise self._lost() from None
        if not ok:
            raise pickle.loads(data)
        number, self.item = self.item, None
        return number, data

    def _put(self, data: bytes) -> None:
        try:
            self.connection.send_bytes(data)
        except OSError:
            raise self._lost() from None

    def _lost(self) -> WorkerError:
        try:
            code = self.process.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            code = 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        place = "before its first item" if self.item is None else f"while it worked on item {self.item}"
        memory = f" (the system does that when memory is short: set {SETTING} to fewer)" if code == -signal.SIGKILL else ""
        return WorkerError(f"{self.name} {how} {place}{memory}; nothing was published: run the same command again")

    def end(self) -> None:
        """End the process; it holds nothing that must be put down."""
        self.connection.close()  # an idle worker ends by itself
        if self.item is not None:
            self.process.kill()
        try:
            self.process.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def serve(handle: int) -> None:
    """The life of a worker: take an item, send its result, until the other side is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the parent, which then ends this
    connection: Connection[Any, Any] = Connection(handle)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        function = pickle.loads(connection.recv_bytes())
        while True:
            data = connection.recv_bytes()
            try:
                answer, ok = _dump(function(pickle.loads(data))), b"ok"
            except Exception as error:
                answer, ok = _portable(error), b"error"
            connection.send_bytes(ok)
            connection.send_bytes(answer)


class _Pickler(pickle.Pickler):
    """Arrow tables and batches as IPC: their own pickle sends the whole of what they are slices of."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, (pa.RecordBatch, pa.Table)):
            return NotImplemented
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, value.schema) as writer:
            writer.write(value)
        return _arrow, (sink.getvalue().to_pybytes(), isinstance(value, pa.RecordBatch))


def _arrow(data: bytes, is_batch: bool) -> pa.Table | pa.RecordBatch:
    reader = pa.ipc.open_stream(data)
    return reader.read_next_batch() if is_batch else reader.read_all()


def _dump(value: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


def _portable(error: Exception) -> bytes:
    """The exception for the other side, its place as a note; what cannot be sent is named by its class alone."""
    where = "".join(traceback.format_tb(error.__traceback__))
    for sent in (error, WorkerError(f"{type(error).__name__} in a worker, whose text cannot be sent")):
        sent.__traceback__ = None
        sent.add_note(f"in a worker process:\n{where}")
        try:
            data = pickle.dumps(sent)
            pickle.loads(data)
        except Exception:
            continue
        return data
    raise AssertionError("a plain error can be sent")
