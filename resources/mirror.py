"""A view's files on this machine: fetched while the view is read, or copied whole.

The loader reads file systems. What lies in an object store is verified through a temporary folder of bounded size (`opened`), and
trained from after it was copied (`pull`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path

from pipeline.errors import LakeError, ViewError
from resources import durable
from resources.faults import guarded
from resources.files import AT_ONCE, HAS_BLOCKS, FileStore, ViewFolder
from resources.places import LocalPlace
from runview.manifest import parse
from runview.shards import KINDS, Catalog, relative_path
from runview.store import OpenShard
from runview.view import Feed, RunView, parse_checked

MIRROR_BYTES = 8 * 2**30  # of large files at a time; the machine's share, so RUNVIEW_MIRROR_BYTES changes it
TRIES = 2  # a copy with another digest may have been damaged on the way; twice, the stored file is


@contextlib.contextmanager
def opened(files: FileStore, folder: ViewFolder, view_id: str) -> Iterator[RunView]:
    """The view opened to read every file of it, also a candidate, which the loader refuses.

    A local store is read in place. From an object store every file is downloaded once to a temporary folder (TMPDIR), of shards and pack
    indexes at most RUNVIEW_MIRROR_BYTES at a time, and removed at the end; catalogs and stats stay as long as the view is open.
    A file that is missing or damaged in the store is so here too, and reading it says so.
    """
    if isinstance(files.place, LocalPlace):
        path = Path(files.view_place(folder, view_id))
        yield RunView(path, parse_checked(path))
        return
    limit = os.environ.get("RUNVIEW_MIRROR_BYTES") or str(MIRROR_BYTES)
    if not limit.isdigit() or int(limit) == 0:
        raise LakeError(f"RUNVIEW_MIRROR_BYTES: expected a number of bytes, found {limit!r}")
    with tempfile.TemporaryDirectory(prefix="runview-mirror-") as name:
        yield MirroredView(files, folder, view_id, Mirror(files, Path(name), int(limit)))


class Mirror:
    """A folder laid out like the store's. Of the files asked for by `hold` it keeps at most `limit_bytes`, the last asked for longest."""

    def __init__(self, files: FileStore, root: Path, limit_bytes: int) -> None:
        self.files, self.root, self.limit_bytes = files, root, limit_bytes
        self.fetched_bytes = 0
        self._held: OrderedDict[Path, int] = OrderedDict()

    def keep(self, kind: str, sha256: str) -> None:
        """Fetch a file for good."""
        self._fetch(kind, sha256)

    def hold(self, kind: str, sha256: str) -> None:
        """Fetch a file with its block digests, and drop what was held longest above the limit. A file above it is held alone."""
        path = self.root / relative_path(kind, sha256)
        if path in self._held:
            self._held.move_to_end(path)
            return
        size = self.files.size(kind, sha256) or 0
        while self._held and sum(self._held.values()) + size > self.limit_bytes:
            old, _ = self._held.popitem(last=False)
            for gone in (old, old.with_suffix(".blocks")):
                gone.unlink(missing_ok=True)
        self._fetch(kind, sha256)
        self._held[path] = size

    def _fetch(self, kind: str, sha256: str) -> None:
        path = self.root / relative_path(kind, sha256)
        if self.files.size(kind, sha256) is None:
            return  # reading it names it
        with guarded("mirroring", f"{kind}/{sha256}", self.root):
            path.parent.mkdir(parents=True, exist_ok=True)
            for _ in range(TRIES):
                with open(path, "wb") as file:
                    found = self.files.copy_to(kind, sha256, file)
                    self.fetched_bytes += file.tell()
                if found == sha256:
                    break
            if kind in HAS_BLOCKS:
                with open(path.with_suffix(".blocks"), "wb") as file:
                    self.files.copy_to(kind, sha256, file, blocks=True)


@dataclass(frozen=True)
class MirroredFeed(Feed):
    """A feed whose shards are fetched when they are opened."""

    mirror: Mirror

    def open_shard(self, component: int, shard: int) -> OpenShard:
        """As `Feed.open_shard`."""
        catalog = self.components[component].catalog
        self.mirror.hold("shards", catalog.shard_id[shard])
        self.mirror.hold("packs", catalog.pack_index_id[shard])
        return super().open_shard(component, shard)


class MirroredView(RunView):
    """A view of an object store, opened through a mirror."""

    def __init__(self, files: FileStore, folder: ViewFolder, view_id: str, mirror: Mirror) -> None:
        data = files.read_view(folder, view_id)
        path = mirror.root / folder / f"{view_id}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        withdrawal = files.withdrawal(view_id) if folder == "views" else None
        if withdrawal is not None:
            path.with_suffix(".withdrawn.json").write_bytes(withdrawal)
        manifest = parse(data)
        for component in (*manifest.components, *manifest.validation):
            mirror.keep("catalogs", component.catalog)
            mirror.keep("stats", component.stats)
        self._mirror = mirror
        super().__init__(path, manifest)
        self.feed = self._mirrored(self.feed)

    def validation(self, component: str) -> Feed:
        """As `RunView.validation`."""
        return self._mirrored(super().validation(component))

    def _mirrored(self, feed: Feed) -> Feed:
        return MirroredFeed(**{one.name: getattr(feed, one.name) for one in fields(feed)}, mirror=self._mirror)


@dataclass(frozen=True)
class Pulled:
    """A copied view: where its manifest lies, how many files it has, and what of them was copied now."""

    path: Path
    n_files: int
    size_bytes: int
    n_copied: int
    copied_bytes: int


def pull(files: FileStore, view_id: str, folder: Path) -> Pulled:
    """Copy exactly the files a published view needs into a folder that `RunView.open` reads. Killed and run again, it goes on.

    Every file is compared with its digest, also those that are there already (they are read, not copied again); the manifest comes last,
    so a view that can be opened there is whole. A later withdrawal is not known to a copy: pull again before a new run.

    Raises: ViewError, when the view is withdrawn (the copy is then marked so too); LakeError, when a file is missing or has another digest,
        or when the disk is too small.
    """
    data = files.read_view("views", view_id)
    manifest_path = folder / "views" / f"{view_id}.json"
    with guarded("copying", f"view {view_id}", folder):
        durable.make_folder(manifest_path.parent)
        for name in ("views", *KINDS):
            if (folder / name).is_dir():
                durable.sweep(folder / name, min_age_seconds=3600)
        withdrawal = files.withdrawal(view_id)
        if withdrawal is not None:
            durable.write_atomic(manifest_path.with_suffix(".withdrawn.json"), withdrawal)
            raise ViewError(f"view {view_id} was withdrawn; read views/{view_id}.withdrawn.json, then take the view that succeeds it")
        manifest = parse(data)
        components = (*manifest.components, *manifest.validation)
        small = {("catalogs", one.catalog): one.catalog for one in components} | {("stats", one.stats): one.stats for one in components}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            done = list(pool.map(lambda one: _copy(files, folder, *one, blocks_sha256=None), small))
            large, needed = _large(folder, [one.catalog for one in components])
            free = shutil.disk_usage(folder).free
            if needed > free:
                raise LakeError(
                    f"{folder}: shards of {needed} bytes are still to be copied, {free} bytes are free; free space and pull again"
                )
            done += pool.map(lambda one: _copy(files, folder, *one[0], blocks_sha256=one[1]), large.items())
        durable.write_atomic(manifest_path.with_suffix(".record.json"), files.read_record(view_id))
        durable.write_atomic(manifest_path, data)
    return Pulled(
        manifest_path,
        len(done) + 2,
        sum(size for size, _ in done),
        sum(copied for _, copied in done),
        sum(size for size, copied in done if copied),
    )


def _large(folder: Path, catalogs: list[str]) -> tuple[dict[tuple[str, str], str], int]:
    """Shards and pack indexes with the digests of their `.blocks`, and the bytes of shards that are not there."""
    out: dict[tuple[str, str], str] = {}
    needed = 0
    for sha256 in dict.fromkeys(catalogs):
        catalog = Catalog(folder / relative_path("catalogs", sha256))
        for shard in range(catalog.n_shards):
            out["shards", catalog.shard_id[shard]] = catalog.shard_blocks_sha256[shard]
            out["packs", catalog.pack_index_id[shard]] = catalog.pack_blocks_sha256[shard]
            if not (folder / relative_path("shards", catalog.shard_id[shard])).exists():
                needed += int(catalog.size_bytes[shard])
    return out, needed


def _copy(files: FileStore, folder: Path, kind: str, sha256: str, *, blocks_sha256: str | None) -> tuple[int, bool]:
    """Copy one file, its block digests first, where it is not there with these bytes. Returns its bytes, and whether it was copied."""
    path = folder / relative_path(kind, sha256)
    if blocks_sha256 is not None:
        _copy_one(files, path.with_suffix(".blocks"), kind, sha256, blocks_sha256, blocks=True)
    copied = _copy_one(files, path, kind, sha256, sha256, blocks=False)
    return path.stat().st_size, copied


def _copy_one(files: FileStore, path: Path, kind: str, sha256: str, expected: str, *, blocks: bool) -> bool:
    with guarded("copying", f"{kind}/{sha256}", path.parent.parent):
        if path.exists() and durable.file_sha256(path) == expected:
            return False
        durable.make_folder(path.parent)
        temporary = path.parent / f".{path.name}.{uuid.uuid4().hex}{durable.TEMPORARY}"
        try:
            for _ in range(TRIES):
                with open(temporary, "wb") as file:
                    found = files.copy_to(kind, sha256, file, blocks=blocks)
                    file.flush()
                    os.fsync(file.fileno())
                if found == expected:
                    os.replace(temporary, path)
                    durable.fsync_folder(path.parent)
                    return True
        finally:
            temporary.unlink(missing_ok=True)
        what = f"block digests of {kind}/{sha256}" if blocks else f"{kind}/{sha256}"
        raise LakeError(f"{what}: expected bytes with digest {expected}, found {found}; the lake's file is damaged: restore it from a copy")
