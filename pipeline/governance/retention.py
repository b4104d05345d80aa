"""Which versions are still needed, and by what. What nothing needs may be collected; published views always need theirs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

REASONS = ("published view", "waiting view", "sealed release", "newest of its partition", "young", "input of a needed version")
"""Why a version is needed, strongest first."""


@dataclass(frozen=True)
class Version:
    """A completed version: `partition` as canonical JSON, `parents` the versions it was made from."""

    version: str
    stage: str
    partition: str
    parents: tuple[str, ...]
    created_at: datetime


def needed(versions: Iterable[Version], *, roots: Mapping[str, Collection[str]], now: datetime, min_age: timedelta) -> dict[str, str]:
    """version -> the strongest of `REASONS` for it. Versions that are not in the result may be collected.

    Args: roots, reason -> versions it names (published views, waiting views, sealed releases); unknown versions are passed over.
    Invariant: what a needed version was made from is needed; the order of the input changes nothing.
    """
    known = {one.version: one for one in versions}
    newest: dict[tuple[str, str], Version] = {}
    for one in known.values():
        place = (one.stage, one.partition)
        if place not in newest or (one.created_at, one.version) > (newest[place].created_at, newest[place].version):
            newest[place] = one
    every = {
        **roots,
        "newest of its partition": [one.version for one in newest.values()],
        "young": [one.version for one in known.values() if now - one.created_at < min_age],
    }
    out: dict[str, str] = {}
    for reason in REASONS:
        for version in every.get(reason, ()):
            if version in known:
                out.setdefault(version, reason)
    waiting = list(out)
    while waiting:
        for parent in known[waiting.pop()].parents:
            if parent in known and parent not in out:
                out[parent] = "input of a needed version"
                waiting.append(parent)
    return out


def waiting_views(rows: Iterable[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """Of the states of run views, the candidates that wait for a decision: per name the newest, unless it is published or withdrawn.

    Args: rows, with view_id, name, status and created_at.
    """
    held: Sequence[Mapping[str, object]] = list(rows)
    done = {row["view_id"] for row in held if row["status"] != "candidate"}
    newest: dict[object, Mapping[str, object]] = {}
    for row in held:
        if row["status"] != "candidate":
            continue
        there = newest.get(row["name"])
        if there is None or (str(row["created_at"]), str(row["view_id"])) > (str(there["created_at"]), str(there["view_id"])):
            newest[row["name"]] = row
    return [row for row in newest.values() if row["view_id"] not in done]
