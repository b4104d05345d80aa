"""Files the loader reads, by the digest of their bytes, and the two files of a run view.

A file is there completely or not at all; what is there already is verified, never trusted.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from pathlib import Path
from typing import BinaryIO, Literal

from pipeline.errors import LakeError
from pipeline.ids import sha256_hex
from resources.faults import guarded
from resources.places import LocalPlace, Place, place_of
from runview.shards import block_digests, relative_path

log = logging.getLogger(__name__)

ViewFolder = Literal["candidates", "views"]
HAS_BLOCKS = ("shards", "packs")  # read by range, so each 256 KiB has a digest of its own
AT_ONCE = 16  # questions or copies under way in an object store


class FileStore:
    """`<root>/<kind>/<ab>/<sha256>.safetensors` with `<sha256>.blocks` beside, and `<root>/{candidates,views}/<view_id>.json`.

    `root` is a folder of this machine or a URL of an object store; the layout is the same.
    """

    def __init__(self, root: str | PathLike[str]) -> None:
        self.place: Place = place_of(root)
        self.root = self.place.root

    def path(self, kind: str, sha256: str) -> Path:
        """Path of a file on this machine; `kind` is shards, packs, catalogs or stats. Raises LakeError for an object store."""
        if not isinstance(self.place, LocalPlace):
            raise LakeError(f"{self.root} is an object store: its files have no path here; run `runviewctl view pull VIEW DIR`")
        return self.place.path(_name(kind, sha256))

    def put(self, kind: str, data: bytes | memoryview, *, blocks: bool) -> str:
        """Store bytes under their digest, with block digests when `blocks`; returns the digest. Twice is once.

        The `.blocks` file is written first, so that no reader finds a file without it. A file that is there with other bytes is
        rewritten, with a warning. Raises LakeError, for a full disk too; then nothing of the file is visible.
        """
        sha256 = sha256_hex(data)
        name = _name(kind, sha256)
        with guarded("writing", f"{kind}/{sha256}", self.root):
            if blocks:
                digests = block_digests(bytes(data) if isinstance(data, memoryview) else data)
                ensure(self.place, _blocks(name), digests, sha256_hex(digests))
            ensure(self.place, name, data, sha256)
        return sha256

    def get(self, kind: str, sha256: str) -> bytes:
        """The bytes, verified. Raises LakeError when the file is missing or its bytes have another digest."""
        return self._verified(_name(kind, sha256), sha256, f"{kind}/{sha256}")

    def size(self, kind: str, sha256: str) -> int | None:
        """Bytes of a file, by one question to the store; None when it is not there, or lacks the block digests of its kind."""
        name = _name(kind, sha256)
        with guarded("looking for", f"{kind}/{sha256}", self.root):
            if kind in HAS_BLOCKS and self.place.size(_blocks(name)) is None:
                return None
            return self.place.size(name)

    def sizes(self, files: Sequence[tuple[str, str]]) -> list[int | None]:
        """`size` of many files (kind, digest), in their order; in an object store several questions at a time."""
        if isinstance(self.place, LocalPlace):
            return [self.size(kind, sha256) for kind, sha256 in files]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(lambda one: self.size(*one), files))

    def copy_to(self, kind: str, sha256: str, target: BinaryIO, *, blocks: bool = False) -> str:
        """Write a file, or with `blocks` its block digests, to `target`; returns the digest of what was written, for the caller to judge.

        Raises LakeError when it is missing.
        """
        name = _name(kind, sha256)
        return self._copied(_blocks(name) if blocks else name, f"{kind}/{sha256}", target)

    def put_view(self, folder: ViewFolder, view_id: str, data: bytes) -> str:
        """Store a manifest under its digest and read it back; returns where. Under `views` this is the moment of publication.

        Raises LakeError when `view_id` is not the digest of the bytes.
        """
        found = sha256_hex(data)
        if found != view_id:
            raise LakeError(f"{folder}/{view_id}.json: the bytes have digest {found}; a view is named by the digest of its bytes")
        name = _view(folder, view_id)
        with guarded("writing", name, self.root):
            if not self.place.create(name, data):
                there = self.place.read(name)
                if there != data:
                    raise LakeError(
                        f"{name} is there with {len(there)} other bytes (digest {sha256_hex(there)}); it was edited or "
                        "damaged: move it away, then publish again"
                    )
                return self.place.where(name)
        self.read_view(folder, view_id)
        return self.place.where(name)

    def view_place(self, folder: ViewFolder, view_id: str) -> str:
        """Path or URL of a manifest."""
        return self.place.where(_view(folder, view_id))

    def read_view(self, folder: ViewFolder, view_id: str) -> bytes:
        """A manifest's bytes, verified. Raises LakeError when it is missing or was changed."""
        return self._verified(_view(folder, view_id), view_id, _view(folder, view_id))

    def has_view(self, folder: ViewFolder, view_id: str) -> bool:
        """Is the manifest there?"""
        with guarded("looking for", _view(folder, view_id), self.root):
            return self.place.size(_view(folder, view_id)) is not None

    def names(self, folder: ViewFolder) -> list[str]:
        """Names of the files of a folder: manifests, records, withdrawals."""
        _view(folder, "0" * 64)
        with guarded("listing", folder, self.root):
            return sorted(name.partition("/")[2] for name, _ in self.place.files(folder))

    def withdrawal(self, view_id: str) -> bytes | None:
        """Bytes of `views/<view_id>.withdrawn.json`; None while the view is not withdrawn. Raises LakeError when it cannot be told."""
        name = _beside(_view("views", view_id), ".withdrawn.json")
        with guarded("reading", name, self.root):
            try:
                return self.place.read(name)
            except FileNotFoundError:
                return None

    def write_record(self, view_id: str, data: bytes, *, folder: ViewFolder = "views") -> str:
        """Write `<view_id>.record.json` beside the manifest, replacing an earlier one; returns where. It is in no digest."""
        name = _beside(_view(folder, view_id), ".record.json")
        with guarded("writing", name, self.root):
            self.place.replace(name, data)
        return self.place.where(name)

    def read_record(self, view_id: str, *, folder: ViewFolder = "views") -> bytes:
        """Bytes of `<view_id>.record.json`. Raises LakeError when it is missing."""
        name = _beside(_view(folder, view_id), ".record.json")
        with guarded("reading", name, self.root):
            return self.place.read(name)

    def sweep(self, *, min_age_seconds: float) -> int:
        """Remove what killed writers left and no writer touched for that long. Returns the number of files or unfinished uploads."""
        with guarded("sweeping", "what killed writers left", self.root):
            return self.place.sweep(min_age_seconds=min_age_seconds)

    def _verified(self, name: str, sha256: str, what: str) -> bytes:
        with guarded("reading", what, self.root):
            try:
                data = self.place.read(name)
            except FileNotFoundError:
                raise LakeError(f"{what} is missing; run the stage that makes it again, or restore it from a copy") from None
        found = sha256_hex(data)
        if found != sha256:
            raise LakeError(
                f"{what}: {len(data)} bytes with digest {found} found, expected {sha256}; run the stage again or restore a copy"
            )
        return data

    def _copied(self, name: str, what: str, target: BinaryIO) -> str:
        with guarded("copying", what, self.root):
            try:
                return self.place.copy_to(name, target)
            except FileNotFoundError:
                raise LakeError(f"{what} is missing; run the stage that makes it again, or restore it from a copy") from None


def ensure(place: Place, name: str, data: bytes | memoryview, sha256: str) -> None:
    """Make `data` the bytes of a file that is named by a digest. What is there is read and compared, and replaced when it differs."""
    if place.size(name) is None and place.create(name, data):
        return
    if place.size(name) == len(data) and place.sha256(name) == sha256:
        return
    log.warning("%s has other bytes than its name or neighbour says; rewriting it", name.rpartition("/")[2])
    place.replace(name, data)


def _digest(sha256: str) -> str:
    if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
        raise ValueError(f"expected 64 lower-case hex digits, found {sha256!r}")
    return sha256


def _name(kind: str, sha256: str) -> str:
    return str(relative_path(kind, _digest(sha256)))


def _blocks(name: str) -> str:
    return _beside(name, ".blocks")


def _view(folder: ViewFolder, view_id: str) -> str:
    if folder not in ("candidates", "views"):
        raise ValueError(f"folder: expected candidates or views, found {folder!r}")
    return f"{folder}/{_digest(view_id)}.json"


def _beside(name: str, suffix: str) -> str:
    return name.rpartition(".")[0] + suffix
