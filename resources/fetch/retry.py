"""Trying again: waits that grow, are capped and follow what a server asks for, and end when nothing new comes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

from pipeline.errors import SourceError
from resources.fetch.settings import Settings

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Again(Exception):
    """An attempt failed in a way that may pass. `wait_seconds`: what the server asked for."""

    def __init__(self, reason: str, *, wait_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.reason, self.wait_seconds = reason, wait_seconds


class Stopped(Exception):
    """Another file of the same fetch failed, or the run was interrupted; what came is kept."""


def retry_after(value: str | None) -> float | None:
    """Seconds a Retry-After header asks for (a number or an HTTP date); None when there is none or it says nothing."""
    if not value:
        return None
    if value.strip().isdigit():
        return float(value)
    try:
        when = parsedate_to_datetime(value)
    except ValueError:
        return None
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())


def persist(
    attempt: Callable[[], T], *, what: str, settings: Settings, stop: threading.Event, progress: Callable[[], int] = lambda: 0
) -> T:
    """Call `attempt` until it does not raise Again.

    Args: what, for messages; progress, bytes that came so far: an attempt that raised it counts as none failed.
    Raises: SourceError after `retries` attempts in a row without progress, or when the server asks for a longer wait than is allowed;
        Stopped when `stop` is set.
    """
    best, failed = progress(), 0
    while True:
        if stop.is_set():
            raise Stopped
        try:
            return attempt()
        except Again as again:
            now = progress()
            if now > best:
                best, failed = now, 0
            failed += 1
            if failed > settings.retries:
                kept = f"; {now} bytes are kept" if now else ""
                raise SourceError(
                    f"{what}: gave up after {failed} attempts without a new byte: {again.reason}{kept}; run again later"
                ) from None
            wait = settings.wait_after(failed) if again.wait_seconds is None else again.wait_seconds
            if wait > settings.max_wait_seconds:
                raise SourceError(
                    f"{what}: {again.reason}; asked to wait {wait:.0f} s, at most {settings.max_wait_seconds:.0f} s are waited: "
                    "run again later"
                ) from None
            logger.info("%s: %s; attempt %d follows in %.1f s", what, again.reason, failed + 1, wait)
            pause(wait, stop)


def pause(seconds: float, stop: threading.Event) -> None:
    """Wait, unless told to stop. Raises Stopped."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if stop.wait(min(left, 1.0)):
            raise Stopped
