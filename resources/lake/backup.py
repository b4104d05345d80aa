"""A copy of a lake, taken while others write to it, that can be opened whenever the copying stops.

Writers put in place what is referred to before what refers to it: payloads, token files and data files, then a table's log entry, then
the snapshot row of the version; a view after its files, its row after the view. What is in place is never changed, and goes by
housekeeping alone. So a copy holds together when it is captured against the order of writing, and put in place in that order:

 1. note what refers, the last written first: the logs of control tables, then of the states from the last to the first, then views
 2. copy what is referred to; all of it was there before step 1 and still is
 3. put in place what was noted, the first written first: manifests, logs of the states, logs of control tables

Copying files first and logs last, or a folder in the order of its names, makes a copy whose rows name files it lacks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from pipeline.errors import LakeError
from pipeline.ids import sha256_hex
from pipeline.schemas import STATES
from resources.faults import guarded
from resources.lake.home import LOCKS, MARKER, open_home
from resources.places import Place, place_of

# Within the control tables: a release names evidence versions, a gate and an approval what they judged. Snapshots are what all point to.
LAST_CONTROL = "control/snapshots"
ORDER = ("control", *reversed(STATES))
LOG, NEWEST = "_delta_log", "_last_checkpoint"
_ENTRY = re.compile(r"(\d{20})\.(json|checkpoint.*parquet)")
_VIEW = re.compile(r"files/(candidates|views)/([0-9a-f]{64})(\.record|\.withdrawn)?\.json")
_NAMED_BY_DIGEST = re.compile(r"(?:blobs|files)/(?:[a-z]+/)?[0-9a-f]{2}/([0-9a-f]{64})(?:\.safetensors)?")
_LANDED = "landing.json"
MAX_LOOKS = 10  # at a folder whose listing has a gap because entries came while it was read


@dataclass
class Copied:
    """What a copy took: files and bytes copied now, and names of files here whose bytes are not those of their name, which were not."""

    n_files: int = 0
    size_bytes: int = 0
    damaged: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Log:
    """A table's log as it was when looked at."""

    table: str
    entries: tuple[str, ...]
    newest: bytes | None


def copy_lake(source: str, target: str) -> Copied:
    """Copy a lake into an empty place, or bring an earlier copy up to date; files that are there are not copied again.

    Raises LakeError when either is no lake of this format, when the target holds another lake, or when the storage fails. Then, and when
    the process is killed, the target is a whole copy of an earlier moment; run it again.
    """
    copied = Copied()
    for _ in copying(source, target, copied):
        pass
    return copied


def copying(source: str, target: str, copied: Copied) -> Iterator[str]:
    """`copy_lake` in its steps; yields what was just done."""
    here, there = place_of(source), place_of(target)
    if here.root == there.root or there.root.startswith(f"{here.root.rstrip('/')}/"):
        raise LakeError(f"lake {source}: a copy inside the lake itself would be part of it; choose another place")
    open_home(source)
    open_home(target)
    with guarded("copying", f"lake {source}", target):
        logs = []
        for table in _tables(here):
            logs.append(_log(here, table))
            yield f"noted {table}"
        _same_lake(here, there, logs)
        manifests = _manifests(here)
        yield "noted views"
        landed = [name for name, _ in here.files("landing") if name.endswith(f"/{_LANDED}")]
        files = [name for name, _ in here.files() if _is_content(name, landed)]
        yield "listed files"
        for log in logs:
            if log.entries[0].endswith(f"{0:020}.json"):  # it makes the table and names no file: one without a log would be no table
                _copy(here, there, log.entries[0], copied)
        for name in files:
            _copy(here, there, name, copied)
        yield "copied files"
        for name in [*landed, *manifests]:
            _copy(here, there, name, copied)
        yield "placed manifests"
        for log in reversed(logs):
            for name in log.entries:
                _copy(here, there, name, copied)
            if log.newest is not None:
                there.replace(f"{log.table}/{LOG}/{NEWEST}", log.newest)
            yield f"placed {log.table}"


def _tables(place: Place) -> list[str]:
    """Folders of Delta tables, what is written last first."""
    found = {name.split(f"/{LOG}/")[0] for state in ORDER for name, _ in place.files(state) if f"/{LOG}/" in name}
    return sorted(found, key=lambda table: (ORDER.index(table.split("/")[0]), table == LAST_CONTROL, table))


def _log(place: Place, table: str) -> _Log:
    """Entries of a table's log without a gap, the pointer to its newest checkpoint read before them."""
    newest = None
    if place.size(f"{table}/{LOG}/{NEWEST}") is not None:
        newest = place.read(f"{table}/{LOG}/{NEWEST}")
    for _ in range(MAX_LOOKS):
        names = sorted(name for name, _ in place.files(f"{table}/{LOG}") if _ENTRY.fullmatch(name.rsplit("/", 1)[1]))
        commits = [int(name.rsplit("/", 1)[1][:20]) for name in names if name.endswith(".json")]
        if commits and commits == list(range(commits[0], commits[-1] + 1)):
            return _Log(table, tuple(names), newest)
    raise LakeError(f"table {table}: its log has a gap, {len(commits)} entries found; run `runviewctl doctor`")


def _manifests(place: Place) -> list[str]:
    """Views and candidates noted at one moment, each after what was written before it: its record, then itself, then its withdrawal."""
    first = {name for name, _ in place.files("files/candidates")} | {name for name, _ in place.files("files/views")}
    seen = {match[0]: match for name in first if (match := _VIEW.fullmatch(name)) and not match[3]}
    beside = [name for folder in ("candidates", "views") for name, _ in place.files(f"files/{folder}")]
    extra = [match for name in beside if (match := _VIEW.fullmatch(name)) and match[3] and f"files/{match[1]}/{match[2]}.json" in seen]
    rank = {".record": 0, None: 1, ".withdrawn": 2}
    return [match[0] for match in sorted([*seen.values(), *extra], key=lambda match: (match[1], match[2], rank[match[3]]))]


def _is_content(name: str, landed: list[str]) -> bool:
    """Is it referred to by what was noted, and by nothing else of its own kind?"""
    if name == MARKER or name.startswith(f"{LOCKS}/") or f"/{LOG}/" in name or _VIEW.fullmatch(name):
        return False
    if name.startswith("landing/"):
        return any(name.startswith(f"{one.removesuffix(_LANDED)}files/") for one in landed)
    return name.split("/")[0] in (*ORDER, "files", "blobs")


def _same_lake(here: Place, there: Place, logs: list[_Log]) -> None:
    """Raises LakeError when the target holds rows of another lake: the first entry of a table's log names that table alone."""
    for log in logs:
        first = next(name for name in log.entries if name.endswith(".json"))
        if there.size(first) is not None and there.read(first) != here.read(first):
            raise LakeError(f"{there.root} holds another lake, or a copy that was written to: table {log.table} began differently")


def _copy(here: Place, there: Place, name: str, copied: Copied) -> None:
    """One file, unless it is there with as many bytes; records of views may change and are copied again."""
    if not name.endswith(".record.json") and there.size(name) is not None and there.size(name) == here.size(name):
        return
    data = here.read(name)
    named = _NAMED_BY_DIGEST.fullmatch(name) or _VIEW.fullmatch(name)
    if named and not (named.re is _VIEW and named[3]):
        digest = named[2] if named.re is _VIEW else named[1]
        if sha256_hex(data) != digest:
            copied.damaged.append(name)
            return
    there.replace(name, data)
    copied.n_files += 1
    copied.size_bytes += len(data)
