"""Data sets of a hub: the revision becomes a commit first, the files are listed at that commit, and their digests are checked.

Names (`main`, a tag) are resolved by `huggingface_hub` against HF_ENDPOINT; the files come through our own transfers, from the address
that library gives. Its cache is not used: it answers with what it holds when the asked revision cannot be had.

The command line and the Makefile set HF_HUB_OFFLINE=1, so that no other part of the product reaches out. A `[fetch]` of kind `hub` is the
one request to do so: `online` lifts the setting for the two calls made here, in this process, and puts it back. RUNVIEW_FETCH_OFFLINE=1
stops this adapter too.
"""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile

from pipeline.errors import SourceError
from pipeline.raw_evidence import pins
from pipeline.recipe import Fetch
from pipeline.urls import shown
from resources.fetch import https
from resources.fetch.parts import Budget, Part, Planned
from resources.fetch.retry import Again, persist, retry_after
from resources.fetch.settings import Settings

T = TypeVar("T")
REPO_COMMIT = constants.HUGGINGFACE_HEADER_X_REPO_COMMIT
_LIFTED = threading.Lock()


@contextmanager
def online() -> Iterator[None]:
    """Inside, `huggingface_hub` may reach the hub, and tells it nothing about this machine. One thread at a time."""
    with _LIFTED:
        before = constants.HF_HUB_OFFLINE, constants.HF_HUB_DISABLE_TELEMETRY
        constants.HF_HUB_OFFLINE, constants.HF_HUB_DISABLE_TELEMETRY = False, True
        try:
            yield
        finally:
            constants.HF_HUB_OFFLINE, constants.HF_HUB_DISABLE_TELEMETRY = before


class HubFiles:
    """The adapter for `kind = "hub"`. `held`: commits of this data set there are landings of; they are named, never used."""

    def __init__(
        self,
        source: str,
        fetch: Fetch,
        settings: Settings,
        stop: threading.Event,
        environment: Mapping[str, str],
        *,
        held: Collection[str] = (),
    ) -> None:
        self._source, self._fetch, self._settings, self._stop, self._held = source, fetch, settings, stop, held
        self._endpoint = environment.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"
        parts = urlsplit(self._endpoint)
        if parts.scheme == "http" and not settings.allow_http:
            raise SourceError("HF_ENDPOINT is plain http; write https, or set RUNVIEW_FETCH_ALLOW_HTTP=1 for a mirror of your own")
        token = environment.get("HF_TOKEN", "").strip()
        # False, not None: None would let the library look for a token in its own files
        self._api = HfApi(endpoint=self._endpoint, token=token or False)
        origin = (f"{parts.scheme}://{parts.netloc}", f"Bearer {token}") if token else None
        self._client = https.Client(settings, robots=False, stop=stop, authorization=origin)

    def plan(self) -> list[Planned]:
        """The files that `include` selects, at the commit that `revision` stands for now."""
        commit = self._commit()
        files = {entry.path: entry for folder in _folders(self._fetch.include) for entry in self._tree(folder, commit)}
        out = []
        for path, entry in files.items():
            url = hf_hub_url(self._fetch.dataset, path, repo_type="dataset", revision=commit, endpoint=self._endpoint)
            sha256 = entry.lfs.sha256 if entry.lfs else None
            size = entry.lfs.size if entry.lfs else entry.size
            out.append(Planned(path, url, size, None, commit, sha256, None if sha256 else entry.blob_id))
        return out

    def transfer(self, part: Part, budget: Budget) -> None:
        commit = part.planned.revision

        def inspect(url: str, headers: Mapping[str, str]) -> None:
            found = headers.get(REPO_COMMIT)
            if found is not None and found != commit:
                raise SourceError(f"source {self._source}: {shown(url)} is answered from commit {found}, {commit} was asked for; refused")

        https.transfer(self._client, part, budget, inspect=inspect, revision=commit)

    def _commit(self) -> str:
        fetch = self._fetch

        def ask() -> str | None:
            try:
                info = self._api.dataset_info(fetch.dataset, revision=fetch.revision or None, timeout=self._settings.timeout_seconds)
            except RevisionNotFoundError:
                return None
            return info.sha

        remote = self._ask(ask, f"revision {fetch.revision or '(default)'} of data set {fetch.dataset}")
        commit = pins.resolve(self._source, fetch.revision, remote=remote, held=self._held, production=self._settings.production)
        if not pins.is_commit(commit):
            raise SourceError(f"source {self._source}: the hub resolves data set {fetch.dataset} to {commit!r}, expected a commit id")
        return commit

    def _tree(self, folder: str, commit: str) -> list[RepoFile]:
        def ask() -> list[RepoFile]:
            try:
                found = self._api.list_repo_tree(self._fetch.dataset, folder or None, recursive=True, revision=commit, repo_type="dataset")
                return [entry for entry in found if isinstance(entry, RepoFile)]
            except RemoteEntryNotFoundError:
                return []  # its pattern then selects nothing, which is an error that names it

        return self._ask(ask, f"files of data set {self._fetch.dataset} at {commit}")

    def _ask(self, call: Callable[[], T], what: str) -> T:
        def attempt() -> T:
            try:
                with online():
                    return call()
            except (GatedRepoError, RepositoryNotFoundError) as error:
                raise SourceError(
                    f"source {self._source}: data set {self._fetch.dataset} is not to be had at {shown(self._endpoint)} "
                    f"({type(error).__name__}); check fetch.dataset, and HF_TOKEN when it is private or gated"
                ) from None
            except HfHubHTTPError as error:
                status = error.response.status_code
                if status in https.PASSING:
                    raise Again(f"answered {status}", wait_seconds=retry_after(error.response.headers.get("Retry-After"))) from None
                raise SourceError(f"source {self._source}: {what}: the hub answered {status}") from None
            except httpx2.TransportError as error:
                raise Again(type(error).__name__) from None
            except (ValueError, TypeError, KeyError) as error:
                raise SourceError(
                    f"source {self._source}: {what}: the answer is not of the hub's protocol ({type(error).__name__})"
                ) from None

        return persist(attempt, what=f"source {self._source}: {what}", settings=self._settings, stop=self._stop)


def _folders(patterns: Collection[str]) -> list[str]:
    """The smallest set of folders that holds whatever the patterns select: a large data set is not listed as a whole for one subset."""
    folders = set()
    for pattern in patterns:
        names = posixpath.dirname(pattern).split("/")
        fixed = next((i for i, name in enumerate(names) if set(name) & set("*?[")), len(names))
        folders.add("/".join(names[:fixed]))
    return sorted(f for f in folders if not any(f != other and (not other or f.startswith(f"{other}/")) for other in folders))
