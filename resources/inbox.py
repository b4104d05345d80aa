"""Folders that senders fill: which dates lie in an inbox, and whether each is whole."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from pipeline.errors import SourceError
from pipeline.recipe import COMPLETE_MARKER, Source


@dataclass(frozen=True)
class Arrival:
    """A dated folder. `listing`: digest of names, sizes and times of its files; `marked`: the sender says it is whole."""

    day: date
    listing: str
    n_files: int
    marked: bool


def arrivals(source: Source, base_dir: Path, *, wanted: Callable[[date], bool]) -> tuple[list[Arrival], list[str]]:
    """Dated folders of a source's inbox, oldest first, and the names beside them that are no dates.

    Args: base_dir, the folder of the source file; wanted, which dates are listed at all (listing reads every folder below).
    Raises: SourceError when the inbox cannot be listed.
    """
    root = base_dir / source.location
    out, others = [], []
    try:
        with os.scandir(root) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
    except OSError as error:
        why = type(error).__name__
        raise SourceError(f"source {source.name}: inbox {source.location!r} cannot be listed ({why}); check location") from None
    for name in names:
        try:
            day = date.fromisoformat(name)
        except ValueError:
            others.append(name)
            continue
        if day.isoformat() != name:
            others.append(name)
        elif wanted(day):
            out.append(_look(source, root / name, day))
    return out, others


def _look(source: Source, folder: Path, day: date) -> Arrival:
    def fail(error: OSError) -> None:
        raise SourceError(f"source {source.name}: inbox folder {day} cannot be listed ({type(error).__name__})") from None

    lines = []
    for place, _, files in os.walk(folder, onerror=fail):
        for name in files:
            path = os.path.join(place, name)
            try:
                state = os.lstat(path)
            except FileNotFoundError:
                continue  # moved away since the folder was read: the next look differs
            lines.append(f"{os.path.relpath(path, folder)}\0{state.st_size}\0{state.st_mtime_ns}")
    data = [line for line in lines if not line.startswith(f"{COMPLETE_MARKER}\0")]
    listing = hashlib.sha256("\n".join(sorted(data)).encode("utf-8", "surrogateescape")).hexdigest()
    return Arrival(day, listing, len(data), len(data) != len(lines))
