"""Bringing a lake to the format this release reads, step by step; killed at any point and started again, it goes on.

A step leads from one format and schema to the next and is registered in `STEPS`. `lake.json` says where the lake stands: while a
migration is under way it already names the new format, so that earlier releases refuse it, and beside it what is reached, so that this one
refuses it too until the migration is finished. Columns that are new and may be null need no step: rows without them are read as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipeline.errors import LakeError
from resources.faults import guarded
from resources.lake.home import CURRENT, Stand, read_stand, write_stand
from resources.places import Place, place_of

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Step:
    """One change of layout.

    Attributes:
        before, after: where it leads from and to.
        what: one line for a person.
        changes: what it would change in the lake at a place, as lines with counts. Reads only.
        apply: makes the change. Killed anywhere and called again, it ends the same; what it has done already it leaves.
    """

    before: Stand
    after: Stand
    what: str
    changes: Callable[[Place], list[str]]
    apply: Callable[[Place], None]


STEPS: tuple[Step, ...] = ()  # there is one format so far: tests/fixtures/lakes/ holds a lake of each


@dataclass(frozen=True)
class Planned:
    """A step that is to be taken, and what it would change."""

    what: str
    before: Stand
    after: Stand
    changes: tuple[str, ...]


def plan(root: str, *, steps: Sequence[Step] = STEPS, current: Stand = CURRENT) -> list[Planned]:
    """The steps from where the lake stands to `current`, none when it is there. Changes nothing.

    Raises LakeError for a lake of a newer release, and when no steps lead here.
    """
    place = place_of(root)
    # a later step cannot say what it will find; its lines are about the lake as it lies now
    return [
        Planned(step.what, step.before, step.after, tuple(step.changes(place))) for step in _path(root, read_stand(root)[0], steps, current)
    ]


def migrate(root: str, *, steps: Sequence[Step] = STEPS, current: Stand = CURRENT) -> list[Step]:
    """Take the steps; returns those taken now. The caller holds the lake alone. Raises LakeError as `plan`."""
    place = place_of(root)
    reached, _ = read_stand(root)
    taken = []
    for step in _path(root, reached, steps, current):
        write_stand(root, current, reached=step.before)
        with guarded("migrating", f"lake {root}", root):
            step.apply(place)
        log.info("lake %s: %s", root, step.what)
        taken.append(step)
        write_stand(root, current, reached=step.after)
    if taken or read_stand(root)[1]:
        write_stand(root, current)
    return taken


def _path(root: str, reached: Stand, steps: Sequence[Step], current: Stand) -> list[Step]:
    """The steps in their order."""
    by_start = {step.before: step for step in steps}
    if len(by_start) != len(steps):
        raise ValueError("steps: two begin at the same format and schema")
    out: list[Step] = []
    while reached != current:
        step = by_start.get(reached)
        if step is None or len(out) > len(steps):
            newer = reached.format > current.format or reached.schema > current.schema
            advice = "install the release that wrote it" if newer else "migrate it with an earlier release first"
            raise LakeError(f"lake {root}: no step leads from {reached} to {current}, which this release reads; {advice}")
        out.append(step)
        reached = step.after
    return out
