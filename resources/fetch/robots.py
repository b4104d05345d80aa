"""robots.txt: what a host lets programs fetch (RFC 9309).

Rules: an answer 2xx is obeyed, its first 500 KiB are read; 4xx (but 429) means there are no rules; 5xx, 429 or no answer at all, after the
retries, means nothing may be fetched. `Crawl-delay`, no part of the RFC, is kept between two requests to a host.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from protego import Protego

from pipeline.errors import SourceError
from pipeline.urls import shown
from resources.fetch.retry import pause
from resources.fetch.settings import AGENT

MAX_ROBOTS_BYTES = 500 * 2**10  # RFC 9309, 2.5
PERMISSION = "set fetch.respect_robots = false only with the host's permission"


class Robots:
    """Rules of every host a fetch meets, each asked for once."""

    def __init__(self, read: Callable[[str], tuple[int, bytes]], *, max_wait_seconds: float, stop: threading.Event) -> None:
        """`read` gets a URL and answers status and body, after its retries; a status of 0 or above 499: not reached."""
        self._read, self._max_wait, self._stop = read, max_wait_seconds, stop
        self._rules: dict[str, Protego] = {}
        self._next: dict[str, float] = {}
        self._lock = threading.Lock()

    def permit(self, url: str) -> None:
        """Return when the URL may be asked for now. Raises SourceError when it may not."""
        parts = urlsplit(url)
        host = f"{parts.scheme}://{parts.netloc}"
        with self._lock:
            if host not in self._rules:
                self._rules[host] = self._load(host)
            rules = self._rules[host]
        if not rules.can_fetch(url, AGENT):
            raise SourceError(f"{shown(url)} is disallowed to {AGENT} by {host}/robots.txt; leave it out, or {PERMISSION}")
        delay = float(rules.crawl_delay(AGENT) or 0)
        if delay > self._max_wait:
            raise SourceError(f"{host}/robots.txt asks for {delay:.0f} s between requests, at most {self._max_wait:.0f} s are waited")
        if delay:
            with self._lock:
                start = max(self._next.get(host, 0.0), time.monotonic())
                self._next[host] = start + delay
            pause(start - time.monotonic(), self._stop)

    def _load(self, host: str) -> Protego:
        status, body = self._read(f"{host}/robots.txt")
        if 400 <= status < 500 and status != 429:
            return Protego.parse("")
        if not 200 <= status < 300:
            answer = f"answered {status}" if status else "did not answer"
            raise SourceError(
                f"{host}/robots.txt {answer}: while its rules are unknown nothing is fetched; run again later, or {PERMISSION}"
            )
        return Protego.parse(body[:MAX_ROBOTS_BYTES].decode("utf-8", "replace"))
