"""How fetching runs: patience, speed and permissions, from the environment. Nothing in here changes a fetched byte.

| variable | meaning | default |
|---|---|---|
| RUNVIEW_PRODUCTION | `1`: a data set without revision is refused | off |
| RUNVIEW_FETCH_OFFLINE | `1`: only complete landings are used, no network | off |
| RUNVIEW_FETCH_ALLOW_HTTP | `1`: plain http too, for mirrors on a private network; never a step down from https | off |
| RUNVIEW_FETCH_WORKERS | files at once | 4 |
| RUNVIEW_FETCH_RETRIES | attempts in a row that bring no new byte, after the first | 5 |
| RUNVIEW_FETCH_BACKOFF_SECONDS | first wait between attempts, doubled each time | 0.5 |
| RUNVIEW_FETCH_MAX_WAIT_SECONDS | longest wait, also for Retry-After and for Crawl-delay; more is an error that says so | 300 |
| RUNVIEW_FETCH_TIMEOUT_SECONDS | silence of a server that ends an attempt | 60 |
| RUNVIEW_FETCH_AGENT | appended to the User-Agent: how an operator is reached | |
| RUNVIEW_LANDING | folder of the landings | `<lake>/landing` |

Credentials: NETRC (or ~/.netrc) for https, AWS_* for s3, HF_TOKEN for the hub. HF_ENDPOINT names the hub.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from pipeline.errors import SourceError

AGENT = "runview-pipeline"  # the name robots.txt may address
MAX_BACKOFF_SECONDS = 30.0


@dataclass(frozen=True)
class Settings:
    """Settings of one fetch; see the table above."""

    production: bool = False
    offline: bool = False
    allow_http: bool = False
    workers: int = 4
    retries: int = 5
    backoff_seconds: float = 0.5
    max_wait_seconds: float = 300.0
    timeout_seconds: float = 60.0
    contact: str = ""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        """From environment variables. Raises SourceError naming a variable that holds no sensible number."""

        def number(name: str, default: float, least: float) -> float:
            text = environment.get(f"RUNVIEW_FETCH_{name}", "")
            try:
                value = float(text) if text else default
            except ValueError:
                value = float("nan")
            if not least <= value < 1e9:
                raise SourceError(f"RUNVIEW_FETCH_{name} must be a number of at least {least:g}")
            return value

        return cls(
            production=is_on(environment, "RUNVIEW_PRODUCTION"),
            offline=is_on(environment, "RUNVIEW_FETCH_OFFLINE"),
            allow_http=is_on(environment, "RUNVIEW_FETCH_ALLOW_HTTP"),
            workers=int(number("WORKERS", cls.workers, 1)),
            retries=int(number("RETRIES", cls.retries, 0)),
            backoff_seconds=number("BACKOFF_SECONDS", cls.backoff_seconds, 0),
            max_wait_seconds=number("MAX_WAIT_SECONDS", cls.max_wait_seconds, 0),
            timeout_seconds=number("TIMEOUT_SECONDS", cls.timeout_seconds, 0.05),
            contact=environment.get("RUNVIEW_FETCH_AGENT", ""),
        )

    @property
    def user_agent(self) -> str:
        """What servers are told."""
        return f"{AGENT}/0.1 {self.contact}".strip()

    def wait_after(self, n_failed: int) -> float:
        """Seconds to wait after the n-th attempt in a row that brought nothing (from 1)."""
        return min(self.backoff_seconds * 2.0 ** (n_failed - 1), MAX_BACKOFF_SECONDS, self.max_wait_seconds)


def is_on(environment: Mapping[str, str], name: str) -> bool:
    """Is a switch set? Raises SourceError for anything but 1, 0, true, false or empty: a misspelt switch is not off."""
    value = environment.get(name, "").strip().lower()
    if value not in ("", "0", "1", "true", "false"):
        raise SourceError(f"{name} must be 1 or 0")
    return value in ("1", "true")
