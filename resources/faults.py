"""What the outside world raises, turned into LakeError without its text: storage libraries print the rows they fail on."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import LakeError, PipelineError

_OS_ERROR = re.compile(r"os error (\d+)|\[Errno (\d+)\]")
_FULL = (errno.ENOSPC, errno.EDQUOT)


def os_error_number(error: BaseException) -> int | None:
    """The operating system's error number, also where a library only mentions it in its text."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    found = _OS_ERROR.search(str(error))
    return int(found.group(1) or found.group(2)) if found else None


def is_full(error: BaseException) -> bool:
    """Was the cause a full disk or quota?"""
    return os_error_number(error) in _FULL


def disk_full(what: str, root: str | os.PathLike[str]) -> LakeError:
    """The error for a full disk: names what was being written, the bytes left, and what to do."""
    return LakeError(
        f"disk full while writing {what}: {_free(root)} bytes free at the lake's root; "
        "nothing of it was published: free space and run the same command again"
    )


def fault(action: str, what: str, error: BaseException, root: str | os.PathLike[str]) -> LakeError:
    """LakeError for a failure of `action` on `what`: class and error number of the cause, never its text."""
    if is_full(error):
        return disk_full(what, root)
    number = os_error_number(error)
    cause = f"{type(error).__name__}, {errno.errorcode.get(number, number)}" if number is not None else type(error).__name__
    return LakeError(f"{action} {what} failed ({cause}); its message is withheld, since it may quote rows: check the storage and run again")


@contextmanager
def guarded(action: str, what: str, root: str | os.PathLike[str], *, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Inside, anything but our own errors becomes a LakeError from `fault`. A panic of a native library is no Exception: also caught."""
    try:
        yield
    except (PipelineError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        if isinstance(error, passing):
            raise
        raise fault(action, what, error, root) from None


def _free(root: str | os.PathLike[str]) -> int | str:
    place = Path(root)
    for folder in (place, *place.parents):
        try:
            return shutil.disk_usage(folder).free
        except OSError:
            continue
    return "unknown"
