"""Named bytes below one root, that are there completely or not at all: in a folder of this machine, or in an object store.

`place_of` is where the choice is made; whoever stores files (lake.json, files of the loader, blobs) goes through a `Place`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from os import PathLike, fspath
from pathlib import Path
from typing import BinaryIO, Protocol

from resources import durable


class Place(Protocol):
    """Files by their relative POSIX name. Every method raises FileNotFoundError for a name that is not there, unless it says else."""

    root: str

    def where(self, name: str) -> str:
        """The full path or URL of a name."""

    def size(self, name: str) -> int | None:
        """Bytes of a file; None when it is not there."""

    def sha256(self, name: str) -> str:
        """Digest of a file's bytes, read now."""

    def read(self, name: str) -> bytes:
        """All bytes."""

    def copy_to(self, name: str, target: BinaryIO) -> str:
        """Write all bytes to `target` in pieces; returns their digest."""

    def create(self, name: str, data: bytes | memoryview) -> bool:
        """Write bytes where nothing is; False, and nothing written, when something is there."""

    def replace(self, name: str, data: bytes | memoryview) -> None:
        """Write bytes, in the place of what is there."""

    def files(self, below: str = "") -> Iterator[tuple[str, int]]:
        """Name and size of every file below a folder, finished ones only, in no order. A folder that is not there holds none."""

    def sweep(self, *, min_age_seconds: float) -> int:
        """Remove what killed writers left and no writer touched for that long. Returns how many."""


class LocalPlace:
    """A folder: temporary name, fsync, rename, fsync of the folder."""

    def __init__(self, root: str | PathLike[str]) -> None:
        self.root = fspath(root)

    def path(self, name: str) -> Path:
        """The path of a name."""
        return Path(self.root) / name

    def where(self, name: str) -> str:
        return str(self.path(name))

    def size(self, name: str) -> int | None:
        try:
            return self.path(name).stat().st_size
        except FileNotFoundError:
            return None

    def sha256(self, name: str) -> str:
        return durable.file_sha256(self.path(name))

    def read(self, name: str) -> bytes:
        return self.path(name).read_bytes()

    def copy_to(self, name: str, target: BinaryIO) -> str:
        with open(self.path(name), "rb") as file:
            return durable.copy_sha256(file, target)

    def create(self, name: str, data: bytes | memoryview) -> bool:
        if self.path(name).exists():
            return False
        durable.write_atomic(self.path(name), data)
        return True

    def replace(self, name: str, data: bytes | memoryview) -> None:
        durable.write_atomic(self.path(name), data)

    def files(self, below: str = "") -> Iterator[tuple[str, int]]:
        for folder, _, names in os.walk(self.path(below)):
            for name in names:
                if not durable.is_temporary(name):
                    path = Path(folder) / name
                    with contextlib.suppress(FileNotFoundError):  # deltalake's own temporary names come and go
                        yield path.relative_to(self.root).as_posix(), path.stat().st_size

    def sweep(self, *, min_age_seconds: float) -> int:
        return durable.sweep(Path(self.root), min_age_seconds=min_age_seconds)


def is_local(root: str) -> bool:
    """A path of this machine, not a URL of an object store."""
    return "://" not in root


def place_of(root: str | PathLike[str]) -> Place:
    """A folder of this machine for a path, an object store for a URL. Raises LakeError when the URL or the environment will not do."""
    if is_local(fspath(root)):
        return LocalPlace(root)
    from resources.objects import ObjectPlace  # the library is an extra

    return ObjectPlace(fspath(root))
