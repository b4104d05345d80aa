"""Landings: `<lake>/landing/<source>/<snapshot>/`, the files of one fetched source snapshot.

    landing.json   written last: every file with url, size, sha256, entity tag, revision and time. With it the landing is complete,
                   is never fetched again and never changed; without it no reader takes anything from here
    files/         the files, each put in its place whole, verified and synced
    plan.json      while incomplete: what was listed, and at which revision. A later run goes on with this list, not a newer one
    parts/         while incomplete: what came of files that are not whole, see parts.py

A landing of another `[fetch]` for the same date is set aside beside it (`<snapshot>.was-<id>`), and comes back when the source file does.
To fetch again, remove the folder: what evidence was captured from it stays.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Protocol

from pipeline.errors import SourceError
from pipeline.ids import canonical_json, digest
from pipeline.raw_evidence import pins
from pipeline.raw_evidence.inventory import matches
from pipeline.recipe import Fetch, Source
from pipeline.urls import shown
from resources.durable import file_sha256, fsync_folder, make_folder, sweep, write_atomic
from resources.faults import is_full
from resources.fetch import encoding
from resources.fetch.parts import Budget, Landed, Part, Planned
from resources.fetch.retry import Stopped
from resources.fetch.settings import Settings
from resources.lake.home import held
from resources.places import is_local

logger = logging.getLogger(__name__)
FORMAT = 1
READ_BYTES = 2**20
MAX_PATH_BYTES = 1024


class Adapter(Protocol):
    """One kind of remote."""

    def plan(self) -> list[Planned]:
        """What there is to fetch, resolved."""

    def transfer(self, part: Part, budget: Budget) -> None:
        """Bring one file's part to its end."""


@dataclass(frozen=True)
class Landing:
    """A complete landing.

    Attributes:
        source: the source as its files are read: with `location` in the landing. Its identity is the source file's.
        folder: the landing's folder, which `source.location` is relative to.
        files: what landed, by path.
    """

    source: Source
    folder: Path
    files: Mapping[str, Landed]

    def record(self) -> dict[str, Any]:
        """What goes beside the evidence, in no id: where from, which revisions, when, how much."""
        times = sorted(file.fetched_at for file in self.files.values())
        fetch = self.source.fetch
        revisions = sorted({file.revision for file in self.files.values() if file.revision})
        return {
            "kind": fetch.kind if fetch else "",
            "n_files": len(self.files),
            "size_bytes": sum(file.size_bytes for file in self.files.values()),
            "revisions": revisions[:20],
            "n_revisions": len(revisions),
            "fetched_from": times[0].isoformat(),
            "fetched_to": times[-1].isoformat(),
        }


def land(source: Source, snapshot: date, *, lake_root: str, environment: Mapping[str, str] = os.environ) -> Landing:
    """The landing of a source snapshot: what is complete is taken as it is, what is begun is continued, else it is fetched.

    One process at a time works on a landing; another waits for it.
    Raises: SourceError, naming source, file and what to do; what came so far is kept for the next run.
    """
    fetch = _fetch_of(source)
    settings = Settings.of(environment)
    pins.require_pin(source.name, fetch, production=settings.production)
    root = landing_root(lake_root, environment)
    folder = root / source.name / snapshot.isoformat()
    with held(str(root), f"{source.name}-{snapshot}"), _disk(source, folder):
        make_folder(folder.parent)
        _right_one(folder, fetch)
        if not (folder / "landing.json").exists():
            if settings.offline:
                raise SourceError(f"source {source.name} {snapshot}: no complete landing, and RUNVIEW_FETCH_OFFLINE=1 forbids to fetch one")
            _complete(source, snapshot, folder, settings, environment)
        landing = _read(source, snapshot, folder)
        shutil.rmtree(folder / "parts", ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            (folder / "plan.json").unlink()
    return landing


def landing_root(lake_root: str, environment: Mapping[str, str]) -> Path:
    """Folder of all landings. Raises SourceError for a lake on an object store when RUNVIEW_LANDING names no folder."""
    if place := environment.get("RUNVIEW_LANDING"):
        return Path(place).absolute()
    if not is_local(lake_root):
        raise SourceError("files land on this machine, and the lake is an object store: set RUNVIEW_LANDING to a folder")
    return Path(lake_root) / "landing"


def fetch_id(fetch: Fetch) -> str:
    """Digest of what a `[fetch]` asks for."""
    return digest("fetch", fetch.identity())


def _fetch_of(source: Source) -> Fetch:
    if source.fetch is None:
        raise ValueError(f"source {source.name} has no [fetch]")
    return source.fetch


# -- the folder ---------------------------------------------------------------------------------------------------------


def _right_one(folder: Path, fetch: Fetch) -> None:
    """Let `folder` be the landing of this `[fetch]`: one of another is set aside, one that was set aside comes back."""
    found = _stated(folder)
    if found == fetch_id(fetch):
        return
    if found is not None:
        aside = _aside(folder, found)
        if aside.exists():
            raise SourceError(f"landing {folder.parent.name}/{aside.name} exists twice; remove one of the two folders")
        os.rename(folder, aside)
        fsync_folder(folder.parent)
        logger.warning("landing %s/%s was of another [fetch]; it is kept as %s", folder.parent.name, folder.name, aside.name)
    else:
        shutil.rmtree(folder, ignore_errors=True)  # nothing was listed yet
    back = _aside(folder, fetch_id(fetch))
    if back.exists():
        os.rename(back, folder)
        fsync_folder(folder.parent)


def _aside(folder: Path, found: str) -> Path:
    return folder.parent / f"{folder.name}.was-{found[:16]}"


def _stated(folder: Path) -> str | None:
    """fetch_id of what a landing was begun for, None before it was."""
    for name in ("landing.json", "plan.json"):
        plain = _json(folder / name)
        if plain is not None:
            return str(plain["fetch_id"])
    return None


def _json(path: Path) -> dict[str, Any] | None:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        plain = json.loads(text)
        if plain["format"] != FORMAT:
            raise SourceError(
                f"landing {path.parent.parent.name}/{path.parent.name}: {path.name} has format {plain['format']!r}, expected {FORMAT}"
            )
    except (ValueError, TypeError, KeyError):
        raise SourceError(
            f"landing {path.parent.parent.name}/{path.parent.name}: {path.name} is damaged; remove the folder to fetch again"
        ) from None
    return plain  # type: ignore[no-any-return]


def _read(source: Source, snapshot: date, folder: Path) -> Landing:
    plain = _json(folder / "landing.json")
    if plain is None:
        raise SourceError(f"source {source.name} {snapshot}: the landing has no landing.json; run again")
    files = {row["path"]: Landed.from_json(row) for row in plain["files"]}
    fetch = _fetch_of(source)
    if fetch.kind == "hub":
        for revision in {file.revision for file in files.values()}:
            pins.resolve(source.name, fetch.revision, remote=revision)
    return Landing(replace(source, location="files"), folder, files)


def _held_revisions(folder: Path) -> list[str]:
    """Revisions of the other landings of a source."""
    found = set()
    for path in folder.parent.glob("*/landing.json"):
        with contextlib.suppress(SourceError):
            found |= {row["revision"] for row in (_json(path) or {"files": []})["files"] if row["revision"]}
    return sorted(found)


# -- fetching -----------------------------------------------------------------------------------------------------------


def _complete(source: Source, snapshot: date, folder: Path, settings: Settings, environment: Mapping[str, str]) -> None:
    """Fetch what is missing, then write landing.json."""
    stop = threading.Event()
    sweep(folder, min_age_seconds=0)  # the landing is locked: whoever left temporary files is dead
    adapter = _adapter(source, folder, settings, stop, environment)
    planned = _plan(source, folder, adapter)
    fetch = _fetch_of(source)
    budget = Budget(source.name, fetch.max_bytes)
    for file in planned:
        budget.claim(file.path, file.size_bytes or 0)
    make_folder(folder / "parts")
    try:
        landed = _all(planned, lambda file: _one(source, file, folder, adapter, budget), settings.workers, stop)
    except SourceError as error:
        if isinstance(error, _changed_type()):
            (folder / "plan.json").unlink(missing_ok=True)
        raise
    _only(folder / "files", {file.path for file in landed})
    rows = sorted((file.to_json() for file in landed), key=lambda row: row["path"])
    value = {
        "format": FORMAT,
        "fetch_id": fetch_id(fetch),
        "source": source.name,
        "snapshot": snapshot.isoformat(),
        "fetch": fetch.identity(),
    }
    write_atomic(folder / "landing.json", canonical_json({**value, "files": rows}))
    logger.info("landing source=%s snapshot=%s files=%d bytes=%d", source.name, snapshot, len(rows), sum(row["size_bytes"] for row in rows))


def _adapter(source: Source, folder: Path, settings: Settings, stop: threading.Event, environment: Mapping[str, str]) -> Adapter:
    """Imported here: obstore and huggingface_hub take a while, and most sources need neither."""
    fetch = _fetch_of(source)
    if fetch.kind == "https":
        from resources.fetch.https import HttpsFiles

        return HttpsFiles(source.name, fetch, settings, stop)
    if fetch.kind == "s3":
        from resources.fetch.s3 import S3Files

        return S3Files(source.name, fetch, settings, stop, environment)
    from resources.fetch.hub import HubFiles

    return HubFiles(source.name, fetch, settings, stop, environment, held=_held_revisions(folder))


def _changed_type() -> type[SourceError]:
    from resources.fetch.s3 import Changed

    return Changed


def _plan(source: Source, folder: Path, adapter: Adapter) -> list[Planned]:
    """The list of an earlier run that did not end, or a new one, written before anything is fetched."""
    plain = _json(folder / "plan.json")
    if plain is not None:
        return [Planned(**row) for row in plain["files"]]
    fetch = _fetch_of(source)
    listed = adapter.plan()
    chosen = [file for file in listed if fetch.kind == "https" or any(matches(file.path, pattern) for pattern in fetch.include)]
    if fetch.kind != "https":
        for pattern in fetch.include:
            if not any(matches(file.path, pattern) for file in chosen):
                raise SourceError(f"source {source.name}: fetch.include pattern {pattern!r} selects none of {len(listed)} listed files")
    if len(chosen) > fetch.max_files:
        raise SourceError(
            f"source {source.name}: {len(chosen)} files are listed, fetch.max_files is {fetch.max_files}; raise it or select fewer"
        )
    _check_paths(source.name, [file.path for file in chosen])
    ordered = sorted(chosen, key=lambda file: file.path)
    make_folder(folder)
    value = {"format": FORMAT, "fetch_id": fetch_id(fetch), "files": [asdict(file) for file in ordered]}
    write_atomic(folder / "plan.json", canonical_json(value))
    return ordered


def _check_paths(source: str, paths: Collection[str]) -> None:
    """Raises SourceError for a path that stands twice, is a file and a folder, or does not stay in its folder."""
    seen: set[str] = set()
    for path in paths:
        names = path.split("/")
        try:
            n_bytes = len(path.encode())
        except UnicodeEncodeError:
            n_bytes = MAX_PATH_BYTES + 1
        if any(name in ("", ".", "..") for name in names) or "\0" in path or n_bytes > MAX_PATH_BYTES:
            raise SourceError(f"source {source}: listed path {path[:80]!a} cannot be a file here; leave it out by fetch.include")
        if path in seen:
            raise SourceError(f"source {source}: two listed files have the path {path}")
        seen.add(path)
    for path in paths:
        for parent in Path(path).parents:
            if parent.as_posix() in seen:
                raise SourceError(f"source {source}: {parent.as_posix()} is listed as a file and as a folder of {path}")


def _all(planned: list[Planned], one: Callable[[Planned], Landed], workers: int, stop: threading.Event) -> list[Landed]:
    """Every file, some at once. The first error stops the others, which keep what they have."""
    with ThreadPoolExecutor(workers, thread_name_prefix="fetch") as pool:
        futures = [pool.submit(one, file) for file in planned]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            if not all(future.done() and future.exception() is None for future in futures if not future.cancelled()):
                stop.set()
                pool.shutdown(wait=True, cancel_futures=True)
    errors = [error for future in futures if not future.cancelled() and (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, Stopped)):
        raise error
    return [future.result() for future in futures]


def _one(source: Source, planned: Planned, folder: Path, adapter: Adapter, budget: Budget) -> Landed:
    """One file in its place, verified; twice is once."""
    target = folder / "files" / planned.path
    make_folder(target.parent)
    part = Part(folder / "parts", planned)
    if part.landed is not None and planned.etag not in (None, part.landed.etag):
        part.discard()  # of an earlier list; the object changed since
    if part.landed is not None:
        part.restore(target)
        if target.is_file() and target.stat().st_size == part.landed.size_bytes and file_sha256(target) == part.landed.sha256:
            budget.claim(planned.path, part.landed.size_bytes)
            return part.landed
        part.discard()
    for last in (False, True):
        adapter.transfer(part, budget)
        fault = _fault(planned, part)
        if fault is None:
            break
        part.discard()
        if last:
            raise SourceError(f"source {source.name}: {shown(planned.url)}: {fault}, twice; nothing of it is kept")
    ready = part.path
    if part.version.encoding:
        limit = _fetch_of(source).max_bytes
        if encoding.decode(part.path, part.decoded, coding=part.version.encoding, name=planned.path, max_bytes=limit):
            ready = part.decoded
            budget.claim(planned.path, ready.stat().st_size)
    version = part.version
    landed = Landed(
        planned.path,
        shown(planned.url),
        ready.stat().st_size,
        file_sha256(ready),
        version.etag,
        version.revision,
        datetime.now(UTC),
    )
    part.finish(landed, target)
    return landed


def _fault(planned: Planned, part: Part) -> str | None:
    """How the fetched bytes differ from what was listed, None when they do not."""
    size = part.path.stat().st_size
    if planned.size_bytes is not None and not part.version.encoding and size != planned.size_bytes:
        return f"{planned.size_bytes} bytes were listed, {size} came"
    if planned.sha256 is not None and (found := file_sha256(part.path)) != planned.sha256:
        return f"sha256 {planned.sha256} was listed, {found} came"
    if planned.git_blob is not None and (found := _git_blob(part.path, size)) != planned.git_blob:
        return f"git blob {planned.git_blob} was listed, {found} came"
    return None


def _git_blob(path: Path, size: int) -> str:
    """Id git gives a file's content. SHA-1 is the repository's choice; it finds accidents, not forgers."""
    hasher = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    with open(path, "rb") as file:
        while data := file.read(READ_BYTES):
            hasher.update(data)
    return hasher.hexdigest()


def _only(root: Path, paths: set[str]) -> None:
    """Remove files of an earlier list that are not of this one."""
    for folder, _, names in os.walk(root):
        for name in names:
            place = Path(folder) / name
            if place.relative_to(root).as_posix() not in paths:
                place.unlink()


@contextlib.contextmanager
def _disk(source: Source, folder: Path) -> Iterator[None]:
    """A full disk and other faults of this machine as SourceError, without its paths."""
    try:
        yield
    except OSError as error:
        cause = error.strerror or type(error).__name__
        if is_full(error):
            place = next((place for place in (folder, *folder.parents) if place.exists()), Path("/"))
            cause = f"disk full, {shutil.disk_usage(place).free} bytes are free; what came is kept: free space and run again"
        raise SourceError(f"source {source.name}: landing {folder.name}: {cause}") from None
