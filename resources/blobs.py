"""Payloads too large for a table row, by the digest of their bytes: `<root>/<ab>/<sha256>`."""

from __future__ import annotations

import io
import logging
from os import PathLike, fspath
from pathlib import Path

from pipeline.errors import LakeError
from pipeline.ids import sha256_hex
from resources import durable
from resources.faults import guarded

log = logging.getLogger(__name__)


class BlobStore:
    """Content-addressed payloads. A blob is there completely or not at all; what is there already is verified, never trusted."""

    def __init__(self, root: str | PathLike[str]) -> None:
        self.root = fspath(root)

    def path(self, sha256: str) -> Path:
        """Place of a blob."""
        if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
            raise ValueError(f"expected 64 lower-case hex digits, found {sha256!r}")
        return Path(self.root) / sha256[:2] / sha256

    def put(self, data: bytes | memoryview) -> str:
        """Store bytes; returns their digest. Twice is once; a damaged blob is rewritten, with a warning. Raises LakeError."""
        sha256 = sha256_hex(data)
        path = self.path(sha256)
        with guarded("writing", f"blob {sha256}", self.root):
            if path.exists():
                if path.stat().st_size == len(data) and durable.file_sha256(path) == sha256:
                    return sha256
                log.warning("blob %s has other bytes than its name says; rewriting it", sha256)
            durable.write_atomic(path, data)
        return sha256

    def open(self, sha256: str) -> io.BufferedReader:
        """The blob as a stream, verified to its end before it is handed out. Raises LakeError when it is missing or damaged."""
        with guarded("reading", f"blob {sha256}", self.root):
            try:
                file = open(self.path(sha256), "rb")  # noqa: SIM115 (the caller closes it)
            except FileNotFoundError:
                raise LakeError(f"blob {sha256} is missing; restore it from a copy or collect its source again") from None
            try:
                found = durable.stream_sha256(file)
                if found != sha256:
                    raise LakeError(f"blob {sha256}: found bytes with digest {found}; restore it from a copy or collect its source again")
                file.seek(0)
            except BaseException:
                file.close()
                raise
            return file

    def read(self, sha256: str) -> bytes:
        """All bytes of a blob, verified. Raises LakeError as `open`."""
        with self.open(sha256) as file, guarded("reading", f"blob {sha256}", self.root):
            return file.read()

    def sweep(self, *, min_age_seconds: float) -> int:
        """Remove what killed writers left and no writer touched for that long. Returns the number of files."""
        with guarded("sweeping", "temporary files", self.root):
            return durable.sweep(Path(self.root), min_age_seconds=min_age_seconds)
