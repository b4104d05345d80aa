"""What worker processes run in tests: functions that can be imported by name."""

from __future__ import annotations

import os
import signal
import sys
import time

import pyarrow as pa


def double(batch: pa.RecordBatch) -> pa.Table:
    """Twice the numbers; the larger, the sooner, so that results arrive out of order."""
    values = batch["n"].to_pylist()
    time.sleep(0.02 * max(0, 5 - values[0]))
    return pa.table({"n": [2 * value for value in values], "threads": [os.environ.get("POLARS_MAX_THREADS")] * len(values)})


def die(number: int) -> int:
    """End like a process that the system kills for its memory."""
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def leave(_: int) -> int:
    """End without a result."""
    sys.exit(7)


class Odd(Exception):
    """An error that cannot be sent: its arguments are not those it is made with."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def fail(kind: str) -> None:
    """Raise what is asked for."""
    if kind == "odd":
        raise Odd(1, 2)
    raise ValueError(f"{kind} is refused")
