"""Files the loader reads, by the digest of their bytes, and the two files of a run view.

A file is there completely or not at all; what is there already is verified, never trusted.
"""

from __future__ import annotations

import logging
from os import PathLike, fspath
from pathlib import Path
from typing import Literal

from pipeline.errors import LakeError
from pipeline.ids import sha256_hex
from resources import durable
from resources.faults import guarded
from runview.shards import block_digests, relative_path

log = logging.getLogger(__name__)

ViewFolder = Literal["candidates", "views"]


class FileStore:
    """`<root>/<kind>/<ab>/<sha256>.safetensors` with `<sha256>.blocks` beside, and `<root>/{candidates,views}/<view_id>.json`."""

    def __init__(self, root: str | PathLike[str]) -> None:
        self.root = fspath(root)

    def path(self, kind: str, sha256: str) -> Path:
        """Place of a file; `kind` is shards, packs, catalogs or stats."""
        return Path(self.root) / relative_path(kind, _digest(sha256))

    def put(self, kind: str, data: bytes | memoryview, *, blocks: bool) -> str:
        """Store bytes under their digest, with block digests when `blocks`; returns the digest. Twice is once.

        The `.blocks` file is written first, so that no reader finds a file without it. A file that is there with other bytes is
        rewritten, with a warning. Raises LakeError, for a full disk too; then nothing of the file is visible.
        """
        sha256 = sha256_hex(data)
        path = self.path(kind, sha256)
        with guarded("writing", f"{kind}/{sha256}", self.root):
            if blocks:
                digests = block_digests(bytes(data) if isinstance(data, memoryview) else data)
                _ensure(path.with_suffix(".blocks"), digests, sha256_hex(digests))
            _ensure(path, data, sha256)
        return sha256

    def get(self, kind: str, sha256: str) -> bytes:
        """The bytes, verified. Raises LakeError when the file is missing or its bytes have another digest."""
        return _verified(self.path(kind, sha256), sha256, f"{kind}/{sha256}", self.root)

    def put_view(self, folder: ViewFolder, view_id: str, data: bytes) -> Path:
        """Store a manifest under its digest and read it back. Raises LakeError when `view_id` is not the digest of the bytes."""
        found = sha256_hex(data)
        if found != view_id:
            raise LakeError(f"{folder}/{view_id}.json: the bytes have digest {found}; a view is named by the digest of its bytes")
        path = self._view(folder, view_id)
        with guarded("writing", f"{folder}/{view_id}.json", self.root):
            if path.exists():
                there = path.read_bytes()
                if there != data:
                    raise LakeError(
                        f"{folder}/{view_id}.json is there with {len(there)} other bytes (digest {sha256_hex(there)}); it was edited or "
                        "damaged: move it away, then publish again"
                    )
                return path
            durable.write_atomic(path, data)
        self.read_view(folder, view_id)
        return path

    def read_view(self, folder: ViewFolder, view_id: str) -> bytes:
        """A manifest's bytes, verified. Raises LakeError when it is missing or was changed."""
        return _verified(self._view(folder, view_id), view_id, f"{folder}/{view_id}.json", self.root)

    def has_view(self, folder: ViewFolder, view_id: str) -> bool:
        """Is the manifest there?"""
        return self._view(folder, view_id).exists()

    def write_record(self, view_id: str, data: bytes, *, folder: ViewFolder = "views") -> Path:
        """Write `<view_id>.record.json` beside the manifest, replacing an earlier one. It is in no digest."""
        path = self._view(folder, view_id).with_suffix(".record.json")
        with guarded("writing", f"{folder}/{view_id}.record.json", self.root):
            durable.write_atomic(path, data)
        return path

    def read_record(self, view_id: str, *, folder: ViewFolder = "views") -> bytes:
        """Bytes of `<view_id>.record.json`. Raises LakeError when it is missing."""
        with guarded("reading", f"{folder}/{view_id}.record.json", self.root):
            return self._view(folder, view_id).with_suffix(".record.json").read_bytes()

    def sweep(self, *, min_age_seconds: float) -> int:
        """Remove what killed writers left and no writer touched for that long. Returns the number of files."""
        with guarded("sweeping", "temporary files", self.root):
            return durable.sweep(Path(self.root), min_age_seconds=min_age_seconds)

    def _view(self, folder: ViewFolder, view_id: str) -> Path:
        if folder not in ("candidates", "views"):
            raise ValueError(f"folder: expected candidates or views, found {folder!r}")
        return Path(self.root) / folder / f"{_digest(view_id)}.json"


def _digest(sha256: str) -> str:
    if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
        raise ValueError(f"expected 64 lower-case hex digits, found {sha256!r}")
    return sha256


def _ensure(path: Path, data: bytes | memoryview, sha256: str) -> None:
    if path.exists():
        if path.stat().st_size == len(data) and durable.file_sha256(path) == sha256:
            return
        log.warning("%s has other bytes than its name or neighbour says; rewriting it", path.name)
    durable.write_atomic(path, data)


def _verified(path: Path, sha256: str, what: str, root: str) -> bytes:
    with guarded("reading", what, root):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise LakeError(f"{what} is missing; run the stage that makes it again, or restore it from a copy") from None
    found = sha256_hex(data)
    if found != sha256:
        raise LakeError(f"{what}: {len(data)} bytes with digest {found} found, expected {sha256}; run the stage again or restore a copy")
    return data
