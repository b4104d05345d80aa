"""What the fetch tests run, here and in processes of their own that are killed."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path

from pipeline.recipe import Source, parse_source
from resources.fetch import Landing, land

DAY = date(2026, 11, 1)
QUICK = {
    "RUNVIEW_FETCH_ALLOW_HTTP": "1",
    "RUNVIEW_FETCH_BACKOFF_SECONDS": "0.01",
    "RUNVIEW_FETCH_RETRIES": "2",
    "RUNVIEW_FETCH_TIMEOUT_SECONDS": "5",
}
HEAD = 'name = "faq"\nreader = "text"\nconsent_basis = "test"\n'


def source_of(fetch: str, head: str = HEAD) -> Source:
    """A source with these lines in its [fetch]."""
    return parse_source(f"{head}[fetch]\n{fetch}\n", where="faq.toml")


def of_urls(*urls: str, more: str = "") -> Source:
    """A source of these addresses."""
    return source_of(f'kind = "https"\nurls = {list(urls)!r}\n{more}')


def landed(source: Source, lake: Path, **environment: str) -> Landing:
    """Land it, with little patience."""
    return land(source, DAY, lake_root=str(lake), environment={**QUICK, **environment})


def content(landing: Landing) -> dict[str, bytes]:
    """Bytes of every file, by path."""
    return {path: (landing.folder / "files" / path).read_bytes() for path in landing.files}


def of_env(lake: str, text: str) -> None:
    """For processes of their own: land the source of this text under the environment of the process."""
    for name, value in {**QUICK, "RUNVIEW_FETCH_WORKERS": "1"}.items():  # one thread, so that acts have an order to be killed in
        os.environ.setdefault(name, value)
    land(parse_source(text, where="faq.toml"), DAY, lake_root=lake)
