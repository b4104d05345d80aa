"""The lake's folder: its marker file `lake.json`, and the locks that let one process at a time complete a version."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import LakeError
from pipeline.ids import canonical_json
from resources.durable import is_temporary, make_folder, write_atomic
from resources.faults import guarded

FORMAT = 1  # layout of folders and of the snapshot row
SCHEMA = 1  # columns of pipeline/schemas.py; additive nullable columns do not count
MARKER = "lake.json"
LOCKS = ".locks"


def is_local(root: str) -> bool:
    """A path of this machine, not a URL of an object store."""
    return "://" not in root


def open_home(root: str) -> None:
    """Check `lake.json`, or create it in an empty or missing folder.

    Raises: LakeError for a newer format or schema, for a folder that holds something else, and for an object store, where the
    marker cannot be made yet.
    """
    if not is_local(root):
        raise LakeError(f"lake {root}: only local folders can hold {MARKER} for now; give a path of this machine")
    folder = Path(root)
    with guarded("opening", f"lake {root}", root):
        folder.mkdir(parents=True, exist_ok=True)
        others = [name for name in os.listdir(folder) if not is_temporary(name)]
        if MARKER not in others and not (folder / MARKER).exists():
            if others:
                raise LakeError(
                    f"lake {root}: expected {MARKER} or an empty folder, found {len(others)} other entries; choose another folder, "
                    f"or restore {MARKER} from a copy of this lake"
                )
            write_atomic(folder / MARKER, canonical_json({"format": FORMAT, "schema": SCHEMA}))
        text = (folder / MARKER).read_bytes()
    try:
        found = json.loads(text)
        kinds = {name: found[name] for name in ("format", "schema")}
    except (ValueError, TypeError, KeyError):
        raise LakeError(
            f"lake {root}: {MARKER} is not JSON with `format` and `schema` ({len(text)} bytes); restore it from a copy"
        ) from None
    for name, known in (("format", FORMAT), ("schema", SCHEMA)):
        if type(kinds[name]) is not int or kinds[name] != known:
            raise LakeError(
                f"lake {root}: {name} {kinds[name]!r} found, this release reads {known}; run `runviewctl migrate` "
                "of the release that matches the newer of the two"
            )


@contextmanager
def held(root: str, name: str) -> Iterator[None]:
    """Hold the lock called `name` on this machine; a killed holder loses it.

    Delta's own conflict detection still guards against writers on other machines. The lock keeps writers here from making the
    same rows twice, and from replacing rows between another's last look and its snapshot row.
    """
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
