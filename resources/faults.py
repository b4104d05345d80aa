"""What the outside world raises, turned into LakeError without its text: storage libraries print the rows they fail on."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import LakeError, PipelineError

_OS_ERROR = re.compile(r"os error (\d+)|\[Errno (\d+)\]")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_ANSWERS = (
    (
        re.compile(r"(169\.254\.(?:169\.254|170\.2)/)"),
        "no keys in the environment, and this machine gives no role; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    ),
    # of obstore, deltalake, polars and Arrow alike: only these words are taken from their texts
    (
        re.compile(r"\b(ExpiredToken|InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|InvalidClientTokenId|RequestTimeTooSkewed)\b"),
        "the store does not accept the credentials; check the AWS_ variables of this process (and its clock)",
    ),
    (re.compile(r"\b(NoSuchBucket|NO_SUCH_BUCKET)\b"), "there is no such bucket; create it, or correct the URL"),
    (
        re.compile(r"\b(AccessDenied|ACCESS_DENIED|AllAccessDisabled|40[13] (?:Forbidden|Unauthorized)|HTTP status 40[13])\b"),
        "the store refuses this: the credentials are wrong or may not do it; check the AWS_ variables, and allow list, get, put and delete",
    ),
    (
        re.compile(r"\b(NotImplemented|501 Not Implemented)\b"),
        "the store does not know this request, perhaps put on a condition (If-None-Match), without which it cannot hold a lake",
    ),
    (
        re.compile(
            r"\b(SlowDown|SLOW_DOWN|InternalError|HTTP status 50[0234]"
            r"|500 Internal Server Error|502 Bad Gateway|503 Service Unavailable|504 Gateway Timeout)\b"
        ),
        "the store is overloaded or out of order, also after repeated tries; run again later",
    ),
    (
        re.compile(r"(dns error|[Cc]onnection refused|tcp connect error|error sending request|operation timed out|curlCode: \d+)"),
        "the store cannot be reached; check AWS_ENDPOINT_URL and the network, and run again",
    ),
)


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


def refusal(error: BaseException) -> str | None:
    """What an object store's answer means and what to do about it, by the codes in the error's text; None when it has none of them."""
    text = str(error)
    for pattern, meaning in _ANSWERS:
        found = pattern.search(text)
        if found:
            return f"{meaning} ({found.group(1)})"
    return None


def fault(action: str, what: str, error: BaseException, root: str | os.PathLike[str]) -> LakeError:
    """LakeError for a failure of `action` on `what`: class and error number of the cause, never its text."""
    if is_full(error):
        return disk_full(what, root)
    answer = refusal(error) if "://" in os.fspath(root) else None
    if answer is not None:
        return LakeError(f"{action} {what} in {os.fspath(root)} failed: {answer}")
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
    place = Path(tempfile.gettempdir() if "://" in os.fspath(root) else root)
    for folder in (place, *place.parents):
        try:
            return shutil.disk_usage(folder).free
        except OSError:
            continue
    return "unknown"
