"""A file while it is fetched: what came so far, how much of it is safe on disk, and which version of the remote file it belongs to.

`<key>.part` holds the bytes; `<key>.json` says what they are, and is written before they are relied on. After a crash of the machine
only the bytes that were synced count, so that a hole in a file's middle is never taken for content; after the death of a process nothing
is lost, since what it wrote is in the system's hands: the boot id tells the two apart.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Self

from pipeline.errors import SourceError
from pipeline.ids import canonical_json, sha256_hex
from resources.durable import fsync_folder, write_atomic

SYNC_BYTES = 32 * 2**20  # at most this much is fetched again after a power cut
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def strong(etag: str | None) -> str | None:
    """The entity tag when it promises equal bytes; a weak one (`W/"..."`) only promises equal meaning, and cannot join two halves."""
    return etag if etag and etag.startswith('"') and etag.endswith('"') and len(etag) > 2 else None


@dataclass(frozen=True)
class Planned:
    """One file to fetch, as it was listed.

    Attributes:
        path: relative POSIX path it lands under. url: its address.
        size_bytes, etag, revision: as listed; None where only the transfer tells.
        sha256, git_blob: digest its bytes must have, where the listing gives one (git_blob: of a git blob object).
    """

    path: str
    url: str
    size_bytes: int | None = None
    etag: str | None = None
    revision: str | None = None
    sha256: str | None = None
    git_blob: str | None = None


@dataclass(frozen=True)
class Landed:
    """One file of a complete landing, as `landing.json` lists it."""

    path: str
    url: str
    size_bytes: int
    sha256: str
    etag: str | None
    revision: str | None
    fetched_at: datetime

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "fetched_at": self.fetched_at.isoformat()}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        return cls(**{**plain, "fetched_at": datetime.fromisoformat(plain["fetched_at"])})


@dataclass(frozen=True)
class Version:
    """Which version of a remote file some bytes are of. Only one with a strong `etag` can be continued later."""

    etag: str | None = None
    last_modified: str | None = None
    total: int | None = None
    encoding: str = ""
    revision: str | None = None


class Part:
    """The growing file of one planned file. One process holds it at a time (the landing is locked)."""

    def __init__(self, folder: Path, planned: Planned) -> None:
        key = sha256_hex(canonical_json([planned.path, planned.url]))[:32]
        self.path, self._state = folder / f"{key}.part", folder / f"{key}.json"
        self.decoded = folder / f"{key}.decoded"  # the content without its transfer coding, see encoding.py
        self.planned = planned
        self.version = Version()
        self.size = 0
        self.landed: Landed | None = None
        self._unsynced = 0
        self._file: BinaryIO | None = None
        self._load()

    def _load(self) -> None:
        try:
            state = json.loads(self._state.read_bytes())
        except FileNotFoundError:
            return
        if state["landed"]:
            self.landed = Landed.from_json(state["landed"])
            return
        self.version = Version(**state["version"])
        found = self.path.stat().st_size if self.path.exists() else 0
        same_boot = state["boot"] and state["boot"] == _boot()
        durable = found if same_boot else state["durable"]
        listed = self.planned.etag
        if strong(self.version.etag) is None or (listed and listed != self.version.etag) or found < durable:
            self.version = Version()  # what is there cannot be continued
        else:
            self.size = durable

    def begin(self, version: Version) -> None:
        """Start from nothing with this version of the remote file."""
        self._close()
        self._file = open(self.path, "wb")  # noqa: SIM115 (closed by _close)
        self.version, self.size, self._unsynced = version, 0, 0
        self._save()

    def carry_on(self) -> None:
        """Go on at `size` with the same version."""
        self._close()
        self._file = open(self.path, "r+b")  # noqa: SIM115
        self._file.truncate(self.size)
        self._file.seek(self.size)

    def write(self, data: bytes) -> None:
        """Append; every 32 MiB are made durable."""
        assert self._file is not None, "begin or carry_on comes first"
        self._file.write(data)
        self.size += len(data)
        self._unsynced += len(data)
        if self._unsynced >= SYNC_BYTES:
            self.sync()

    def sync(self) -> None:
        """Make what came so far durable, and say so."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._unsynced = 0
            self._save()

    def note(self, revision: str | None) -> None:
        """Add the revision the remote names to the version."""
        if revision != self.version.revision:
            self.version = replace(self.version, revision=revision)
            self._save()

    def discard(self) -> None:
        """Drop the bytes: they are not of what was listed."""
        self._close()
        self.version, self.size = Version(), 0
        self.landed = None
        for place in (self.path, self.decoded, self._state):
            place.unlink(missing_ok=True)

    def close(self) -> None:
        """Make durable what came, for a later attempt."""
        self.sync()
        self._close()

    def finish(self, landed: Landed, target: Path) -> None:
        """Write what landed, then put the verified file in its place. A crash between the two is healed by `restore`."""
        self.landed = landed
        write_atomic(self._state, canonical_json({"landed": landed.to_json()}))
        self.restore(target)

    def restore(self, target: Path) -> None:
        """Put a verified file in its place, when a crash left it here."""
        for place in (self.decoded, self.path):
            if place.exists():
                os.replace(place, target)
                fsync_folder(target.parent)
                break
        self.path.unlink(missing_ok=True)

    def _save(self) -> None:
        state = {"version": asdict(self.version), "durable": self.size - self._unsynced, "boot": _boot(), "landed": None}
        write_atomic(self._state, canonical_json(state))

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class Budget:
    """Bytes a snapshot may still take; shared by the threads of one fetch."""

    def __init__(self, source: str, max_bytes: int) -> None:
        self._source, self._max = source, max_bytes
        self._sizes: dict[str, int] = {}
        self._total = 0
        self._lock = threading.Lock()

    def claim(self, path: str, size_bytes: int) -> None:
        """Say how large a file is known to be at least. Raises SourceError when the snapshot would pass max_bytes."""
        with self._lock:
            known = self._sizes.get(path, 0)
            self._total += max(size_bytes - known, 0)
            self._sizes[path] = max(size_bytes, known)
            total = self._total
        if total > self._max:
            raise SourceError(
                f"source {self._source}: {path} brings the snapshot to {total} bytes or more, fetch.max_bytes is {self._max}; "
                "raise it, or select fewer files"
            )


def _boot() -> str:
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""  # without one only synced bytes are trusted
