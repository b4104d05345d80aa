"""Token files, manifests and blobs of a lake: which a view lists, which nothing lists, and taking those away."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import LakeError
from resources.blobs import BlobStore
from resources.durable import is_temporary
from resources.faults import guarded
from resources.files import FileStore
from resources.places import is_local
from runview.errors import RunviewError
from runview.manifest import Manifest
from runview.shards import KINDS, Catalog

BLOCKS = ".blocks"
Listed = set[tuple[str, str]]
"""(kind, digest) of files: shards, packs, catalogs, stats, blobs, candidates."""


@dataclass(frozen=True)
class Found:
    """A file of the lake: its kind, the digest it is named by, place, bytes, and seconds since it was written."""

    kind: str
    digest: str
    path: Path
    size_bytes: int
    age_seconds: float


def listed_by(files: FileStore, manifest: Manifest) -> Listed:
    """Every file a view's manifest lists, through its catalogs. Raises LakeError when a catalog cannot be read: then nobody knows."""
    listed: Listed = set()
    for component in (*manifest.components, *manifest.validation):
        listed |= {("catalogs", component.catalog), ("stats", component.stats)}
        try:
            catalog = Catalog(files.get("catalogs", component.catalog))
        except RunviewError as error:
            raise LakeError(f"catalog {component.catalog} of view {manifest.view_id} cannot be read: {error}") from None
        listed |= {("shards", digest) for digest in catalog.shard_id}
        listed |= {("packs", digest) for digest in catalog.pack_index_id}
    return listed


def walk(files: FileStore, blobs: BlobStore) -> Iterator[Found]:
    """Every file named by a digest: token files and their block digests, manifests of candidates, blobs. Of this machine only."""
    now = time.time()
    places = [(kind, Path(files.root) / kind) for kind in (*KINDS, "candidates") if is_local(files.root)]
    places += [("blobs", Path(blobs.root))] if is_local(blobs.root) else []
    for kind, root in places:
        with guarded("listing", kind, root):
            for folder, _, names in os.walk(root):
                for name in names:
                    if is_temporary(name):
                        continue
                    path = Path(folder) / name
                    with contextlib.suppress(FileNotFoundError):
                        stat = path.stat()
                        yield Found(kind, name.split(".")[0], path, stat.st_size, now - stat.st_mtime)


def unlisted(files: FileStore, blobs: BlobStore, listed: Listed, *, min_age_seconds: float) -> list[Found]:
    """Files nothing lists and nobody wrote for that long."""
    found = (item for item in walk(files, blobs) if (item.kind, item.digest) not in listed and item.age_seconds >= min_age_seconds)
    return sorted(found, key=lambda item: (item.kind, item.digest, item.path.suffix == BLOCKS))


def remove(found: Iterable[Found]) -> int:
    """Remove files, a token file always before its block digests. Returns the bytes. Twice is once."""
    size = 0
    for item in found:
        with guarded("removing", f"{item.kind}/{item.digest}", item.path.parent), contextlib.suppress(FileNotFoundError):
            item.path.unlink()
            size += item.size_bytes
    return size


def stale_temporaries(root: str, *, min_age_seconds: float) -> list[Found]:
    """What killed writers left below a folder and no writer touched for that long."""
    limit = time.time()
    out: list[Found] = []
    if not is_local(root):
        return out
    for folder, _, names in os.walk(root):
        for name in filter(is_temporary, names):
            path = Path(folder) / name
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                if limit - stat.st_mtime >= min_age_seconds:
                    out.append(Found("temporary", name, path, stat.st_size, limit - stat.st_mtime))
    return out
