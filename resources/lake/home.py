"""The lake's root: its marker file `lake.json`, and the locks that let one process at a time complete a version."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import LakeError
from pipeline.ids import canonical_json
from resources.durable import is_temporary, make_folder
from resources.faults import guarded
from resources.places import LocalPlace, Place, place_of
from resources.places import is_local as is_local

FORMAT = 1  # layout of folders and of the snapshot row
SCHEMA = 1  # columns of pipeline/schemas.py; additive nullable columns do not count
MARKER = "lake.json"
LOCKS = ".locks"


@dataclass(frozen=True)
class Stand:
    """Format and schema of a lake."""

    format: int
    schema: int

    def __str__(self) -> str:
        return f"format {self.format}, schema {self.schema}"


CURRENT = Stand(FORMAT, SCHEMA)


def open_home(root: str) -> None:
    """Check `lake.json`, or create it in an empty or missing folder, or below an empty prefix of an object store.

    Raises: LakeError for another format or schema, with what to do, and for a folder that holds something else.
    """
    place = place_of(root)
    with guarded("opening", f"lake {root}", root):
        text = _marker(place)
        if text is None:
            others = _others(place)
            if others and _marker(place) is None:  # another process may have made the lake between the two looks
                raise LakeError(
                    f"lake {root}: expected {MARKER} or an empty folder, found {others} other entries; choose another folder, "
                    f"or restore {MARKER} from a copy of this lake"
                )
            place.create(MARKER, canonical_json({"format": FORMAT, "schema": SCHEMA}))  # or another process did
    reached, unfinished = read_stand(root)
    if unfinished:
        raise LakeError(f"lake {root}: a migration stands unfinished at {reached}; go on with `runviewctl migrate --yes`")
    for name, found, known in (("format", reached.format, FORMAT), ("schema", reached.schema, SCHEMA)):
        if found != known:
            advice = "install the release that wrote it, or a later one" if found > known else "run `runviewctl migrate`"
            raise LakeError(f"lake {root}: {name} {found} found, this release reads {known}; {advice}")


def read_stand(root: str) -> tuple[Stand, bool]:
    """Where a lake stands, and whether a migration of it is unfinished. Raises LakeError when its marker is missing or says neither."""
    with guarded("opening", f"lake {root}", root):
        text = _marker(place_of(root))
    if text is None:
        raise LakeError(f"lake {root}: no {MARKER} there; nothing to look at")
    try:
        found = json.loads(text)
        unfinished = "reached" in found
        kinds = [(found["reached"] if unfinished else found)[name] for name in ("format", "schema")]
        if [type(kind) for kind in kinds] != [int, int]:
            raise TypeError
    except (ValueError, TypeError, KeyError):
        raise LakeError(
            f"lake {root}: {MARKER} is not JSON with `format` and `schema` ({len(text)} bytes); restore it from a copy"
        ) from None
    return Stand(*kinds), unfinished


def write_stand(root: str, stand: Stand, *, reached: Stand | None = None) -> None:
    """Say where a lake stands, or with `reached` that a migration to `stand` is under way and has come so far."""
    value: dict[str, object] = {"format": stand.format, "schema": stand.schema}
    if reached is not None:
        value["reached"] = {"format": reached.format, "schema": reached.schema}
    with guarded("writing", MARKER, root):
        place_of(root).replace(MARKER, canonical_json(value))


def _marker(place: Place) -> bytes | None:
    try:
        return place.read(MARKER)
    except FileNotFoundError:
        return None


def _others(place: Place) -> int | str:
    """How many entries lie there; of an object store, whether any does."""
    if isinstance(place, LocalPlace):
        folder = Path(place.root)
        folder.mkdir(parents=True, exist_ok=True)
        return sum(not is_temporary(name) and name != LOCKS for name in os.listdir(folder))  # a lock may be older than the lake
    return "some" if next(iter(place.files()), None) else 0


@contextmanager
def held(root: str, name: str) -> Iterator[None]:
    """Hold the lock called `name` on this machine; a killed holder loses it. In an object store there are no locks.

    Delta's own conflict detection guards against writers on other machines, and in an object store against all. The lock keeps
    writers here from making the same rows twice, and from replacing rows between another's last look and its snapshot row.
    """
    if not is_local(root):
        yield
        return
    place = Path(root) / LOCKS / f"{name}.lock"
    with guarded("locking", place.name, root):
        make_folder(place.parent)
        handle = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with guarded("locking", place.name, root):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def version_lock(version: str) -> str:
    """One of 256 names, so that lock files do not pile up."""
    return f"version-{version[:2]}"


def table_lock(path: str) -> str:
    """The lock of a control table. Taken after a version's, never before it."""
    return path.replace("/", "-")
