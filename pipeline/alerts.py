"""What a person should know, as one immutable row each; its identity makes telling it twice the same alert."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Literal

import pyarrow as pa

from pipeline.ids import digest
from pipeline.schemas import ALERTS

Kind = Literal["red_check", "failed_run", "late_source", "waiting_approval"]


@dataclass(frozen=True)
class Alert:
    """One alert. Every field is an id, a name, a count or a time; text of documents never enters.

    Attributes:
        subject: asset, job, source or run view it is about.
        occasion: the version, run, newest date or view id: the same subject on the same occasion is the same alert.
        happened_at: with a time zone; in no id, as `detail`, `severity` and `run_id`.
    """

    kind: Kind
    subject: str
    occasion: str
    detail: str
    happened_at: datetime
    check: str = ""
    partition: str = ""
    severity: Literal["error", "warn"] = "error"
    run_id: str = ""

    @property
    def alert_id(self) -> str:
        """Identity, and the key by which a receiver tells a repeated delivery."""
        return digest("alert", self.kind, self.subject, self.occasion, self.check, self.partition)


def to_table(alerts: Iterable[Alert], *, now: datetime) -> pa.Table:
    """Rows of the ALERTS contract, one per id: the first of equal ones."""
    rows = {alert.alert_id: {"alert_id": alert.alert_id, **vars(alert), "created_at": now} for alert in reversed(list(alerts))}
    return pa.Table.from_pylist([rows[key] for key in sorted(rows)], schema=ALERTS.schema)


def message(row: Mapping[str, object]) -> dict[str, str]:
    """What a receiver gets of a row: its fields as strings, and `text`, one line for a person."""
    fields = {name: value.isoformat() if isinstance(value, datetime) else str(value) for name, value in row.items()}
    place = " ".join(part for part in (fields["subject"], fields["partition"], fields["check"]) if part)
    return {**fields, "text": f"{fields['kind']}: {place}: {fields['detail']}"}


def late(
    expected: Mapping[str, int],
    newest: Mapping[str, tuple[date, datetime]],
    first_seen: Mapping[str, datetime],
    *,
    now: datetime,
) -> list[Alert]:
    """An alert for each source whose next snapshot is overdue; one per source and newest date, however long it stays away.

    Args: expected, hours by source (0: nothing is expected); newest, date of the newest snapshot and when it was first complete;
        first_seen, since when a source that never arrived is waited for (a source in neither is not judged yet).
    """
    out = []
    for source, hours in sorted(expected.items()):
        day, since = newest.get(source, (None, first_seen.get(source)))
        if not hours or since is None or now <= since + timedelta(hours=hours):
            continue
        found = f"the newest is {day}, complete since {since:%Y-%m-%d %H:%M} UTC" if day else f"none since {since:%Y-%m-%d %H:%M} UTC"
        out.append(
            Alert(
                "late_source",
                source,
                day.isoformat() if day else "never",
                f"expected a snapshot every {hours} hours, {found}; look at the sender, then at `runviewctl status`",
                since + timedelta(hours=hours),
            )
        )
    return out
