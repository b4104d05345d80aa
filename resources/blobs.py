"""Payloads too large for a table row, by the digest of their bytes: `<root>/<ab>/<sha256>`."""

from __future__ import annotations

import contextlib
import tempfile
from os import PathLike
from pathlib import Path
from typing import BinaryIO, cast

from pipeline.errors import LakeError
from pipeline.ids import sha256_hex
from resources import durable
from resources.faults import guarded
from resources.files import ensure
from resources.places import LocalPlace, Place, place_of

AGAIN = "restore it from a copy or collect its source again"
IN_MEMORY = 8 * 2**20  # a copy that is handed out as a stream lies in memory up to this size, then in a file without a name


class BlobStore:
    """Content-addressed payloads. A blob is there completely or not at all; what is there already is verified, never trusted."""

    def __init__(self, root: str | PathLike[str]) -> None:
        self.place: Place = place_of(root)
        self.root = self.place.root

    def path(self, sha256: str) -> Path:
        """Path of a blob on this machine. Raises LakeError for an object store."""
        name = _name(sha256)
        if not isinstance(self.place, LocalPlace):
            raise LakeError(f"{self.root} is an object store: blob {sha256} has no path here; read it")
        return self.place.path(name)

    def put(self, data: bytes | memoryview) -> str:
        """Store bytes; returns their digest. Twice is once; a damaged blob is rewritten, with a warning. Raises LakeError."""
        sha256 = sha256_hex(data)
        with guarded("writing", f"blob {sha256}", self.root):
            ensure(self.place, _name(sha256), data, sha256)
        return sha256

    def open(self, sha256: str) -> BinaryIO:
        """The blob as a stream, verified to its end before it is handed out. Raises LakeError when it is missing or damaged."""
        name = _name(sha256)
        with guarded("reading", f"blob {sha256}", self.root), contextlib.ExitStack() as stack:
            try:
                if isinstance(self.place, LocalPlace):
                    local = stack.enter_context(open(self.place.path(name), "rb"))
                    file, found = cast(BinaryIO, local), durable.stream_sha256(local)
                else:
                    file = stack.enter_context(cast(BinaryIO, tempfile.SpooledTemporaryFile(IN_MEMORY)))  # noqa: SIM115
                    found = self.place.copy_to(name, file)
            except FileNotFoundError:
                raise LakeError(f"blob {sha256} is missing; {AGAIN}") from None
            if found != sha256:
                raise LakeError(f"blob {sha256}: found bytes with digest {found}; {AGAIN}")
            file.seek(0)
            stack.pop_all()  # the caller closes it
            return file

    def read(self, sha256: str) -> bytes:
        """All bytes of a blob, verified. Raises LakeError as `open`."""
        with self.open(sha256) as file, guarded("reading", f"blob {sha256}", self.root):
            return file.read()

    def sweep(self, *, min_age_seconds: float) -> int:
        """Remove what killed writers left and no writer touched for that long. Returns the number of files or unfinished uploads."""
        with guarded("sweeping", "what killed writers left", self.root):
            return self.place.sweep(min_age_seconds=min_age_seconds)


def _name(sha256: str) -> str:
    if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
        raise ValueError(f"expected 64 lower-case hex digits, found {sha256!r}")
    return f"{sha256[:2]}/{sha256}"
