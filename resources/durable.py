"""Files that are there completely or not at all, also after a crash: temporary name, fsync, rename, fsync of the folder."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import time
import uuid
from pathlib import Path
from typing import BinaryIO

TEMPORARY = ".tmp"
PIECE_BYTES = 2**20


def is_temporary(name: str) -> bool:
    """A name only `write_atomic` makes: what a killed writer leaves."""
    return name.startswith(".") and name.endswith(TEMPORARY)


def write_atomic(path: Path, data: bytes | memoryview) -> None:
    """Write `data` to `path`, replacing what is there. The folder is made when missing. OSError passes, with nothing left behind."""
    make_folder(path.parent)
    temporary = path.parent / f".{path.name}.{uuid.uuid4().hex}{TEMPORARY}"
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    fsync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Create missing folders, each made durable in its parent."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for made in reversed(missing):
        made.mkdir(exist_ok=True)
        fsync_folder(made.parent)


def fsync_folder(folder: Path) -> None:
    """Make a rename in `folder` durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep(root: Path, *, min_age_seconds: float) -> int:
    """Remove temporary files below `root` that no writer has touched for `min_age_seconds`. Returns how many."""
    limit = time.time() - min_age_seconds
    n_removed = 0
    for folder, _, names in os.walk(root):
        for name in filter(is_temporary, names):
            path = Path(folder) / name
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime <= limit:
                    path.unlink()
                    n_removed += 1
    return n_removed


def file_sha256(path: Path) -> str:
    """Digest of a file's bytes, read in pieces."""
    with open(path, "rb") as file:
        return stream_sha256(file)


def stream_sha256(file: io.BufferedReader) -> str:
    """Digest of the rest of a stream, read in pieces."""
    return hashlib.file_digest(file, "sha256").hexdigest()


def copy_sha256(file: BinaryIO, target: BinaryIO) -> str:
    """Copy the rest of a stream to `target` in pieces. Returns the digest of what was copied."""
    digest = hashlib.sha256()
    while piece := file.read(PIECE_BYTES):
        digest.update(piece)
        target.write(piece)
    return digest.hexdigest()
