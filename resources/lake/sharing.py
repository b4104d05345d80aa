"""Who may work in a lake at the same time: stages together, housekeeping alone.

`root` is the folder of this machine that holds a lake's locks. What other machines do is not seen: there, age alone protects it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import LakeError
from resources.durable import make_folder
from resources.faults import guarded
from resources.lake.home import LOCKS

NAME = "maintenance.lock"


@contextmanager
def working(root: str) -> Iterator[None]:
    """Held while a stage makes and publishes a version: what it has written, or found and means to use, is not taken away.

    Any number may work at once, and a killed one stops holding. Waits while housekeeping is at it.
    """
    with _flock(root, fcntl.LOCK_SH):
        yield


@contextmanager
def alone(root: str) -> Iterator[None]:
    """Held by housekeeping. Raises LakeError, without waiting, when anything works in the lake on this machine."""
    with _flock(root, fcntl.LOCK_EX | fcntl.LOCK_NB):
        yield


@contextmanager
def _flock(root: str, kind: int) -> Iterator[None]:
    place = Path(root) / LOCKS / NAME
    with guarded("locking", NAME, root):
        make_folder(place.parent)
        handle = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            with guarded("locking", NAME, root, passing=(BlockingIOError,)):
                fcntl.flock(handle, kind)
        except BlockingIOError:
            raise LakeError(
                f"{root}: a run or another housekeeping is working in it; nothing was removed: wait until it ends, then run again"
            ) from None
        yield
    finally:
        os.close(handle)
