"""The cursor: where a run stands in its view. The same on every rank; resuming is seeking, nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from runview.canonical import digest
from runview.errors import CursorError

VERSION = 1


@dataclass(frozen=True)
class Cursor:
    """`position` packs were delivered to the whole job in `step` steps of the view `view_id`.

    schedule_id and isolation_id are the first 16 hex digits of the digests of the batch schedule and of the list of
    isolated shards: where they differ, the same step number would mean other packs. World size, micro-batch, threads
    and prefetch are not in it, so all of them may change at a resume.
    """

    view_id: str
    order: int
    position: int
    step: int
    schedule_id: str
    isolation_id: str
    v: int = VERSION

    def to_dict(self) -> dict[str, str | int]:
        """The JSON object; under 300 bytes in compact form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Parse and check types; CursorError names the field."""
        names = [field.name for field in fields(cls)]
        for name in names:
            if name not in value:
                raise CursorError(f"cursor field {name!r} is missing; was this state made by runview?")
        unknown = sorted(set(value) - set(names))
        if unknown:
            raise CursorError(f"cursor field {unknown[0]!r} is unknown; it may come from a newer runview")
        if value["v"] != VERSION:
            raise CursorError(f"cursor field 'v': {VERSION} expected, found {value['v']!r}; use the runview that wrote it")
        for name in ("order", "position", "step"):
            if type(value[name]) is not int or value[name] < 0:
                raise CursorError(f"cursor field {name!r}: an integer >= 0 expected, found {value[name]!r}")
        for name in ("view_id", "schedule_id", "isolation_id"):
            if not isinstance(value[name], str):
                raise CursorError(f"cursor field {name!r}: a hex string expected, found {type(value[name]).__name__}")
        return cls(**{name: value[name] for name in names})


def schedule_id(batch_schedule: Sequence[tuple[int, int]]) -> str:
    """The batch schedule's part of a cursor, from (from_position, global_batch) pairs."""
    return digest(["batch_schedule", [list(change) for change in batch_schedule]])[:16]


def isolation_id(shard_ids: Sequence[str]) -> str:
    """The isolated shards' part of a cursor."""
    return digest(["isolated", sorted(shard_ids)])[:16]
