"""Ledgers: counts that must close, per stage, kept on the snapshot row and shown as asset metadata.

Payloads: in = parsed + empty + rejected. Documents: made = kept + sum of dropped by primary reason. Tokens of kept documents
= packed + sum of lost by reason. A missing count is an error, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.errors import LedgerError


@dataclass(frozen=True)
class Ledger:
    """`total` = sum of `parts`; a part is a count or a mapping of reasons to counts. `extra` is shown, not summed.

    Example: Ledger("documents", "made", 10, {"kept": 7, "dropped": {"language": 2, "duplicate": 1}})
    """

    unit: str
    total_name: str
    total: int
    parts: Mapping[str, int | Mapping[str, int]]
    extra: Mapping[str, int | Mapping[str, int]] = field(default_factory=dict)

    def close(self) -> Ledger:
        """Return self. Raises LedgerError, naming every count, when total and parts differ or a count is missing or negative."""
        flat = {f"{name}.{reason}" if reason else name: n for name, reason, n in self._items()}
        wrong = {name: n for name, n in {self.total_name: self.total, **flat}.items() if not _is_count(n)}
        if wrong:
            raise LedgerError(f"{self.unit} ledger: counts must be integers >= 0, found {wrong}; a missing count is never zero")
        if self.total != sum(flat.values()):
            raise LedgerError(
                f"{self.unit} ledger does not close: {self.total_name}={self.total} but parts sum to {sum(flat.values())}: {flat}"
            )
        return self

    def _items(self) -> list[tuple[str, str, int]]:
        out = []
        for name, part in self.parts.items():
            out.extend([(name, reason, n) for reason, n in part.items()] if isinstance(part, Mapping) else [(name, "", part)])
        return out

    def to_json(self) -> dict[str, object]:
        """Plain JSON: {unit, total_name, total, parts, extra}."""
        plain = {name: dict(part) if isinstance(part, Mapping) else part for name, part in self.parts.items()}
        more = {name: dict(part) if isinstance(part, Mapping) else part for name, part in self.extra.items()}
        return {"unit": self.unit, "total_name": self.total_name, "total": self.total, "parts": plain, "extra": more}

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> Ledger:
        """Inverse of `to_json`. Raises LedgerError when a key is missing."""
        try:
            return cls(value["unit"], value["total_name"], value["total"], value["parts"], value["extra"])  # type: ignore[arg-type]
        except KeyError as error:
            raise LedgerError(f"ledger without {error}: a missing count is never a default") from error

    def line(self) -> str:
        """One line for the log, the counts that add up: `made=10 kept=7 dropped={language:2 duplicate:1}`."""
        words = [f"{self.total_name}={self.total}"]
        for name, part in self.parts.items():
            if isinstance(part, Mapping):
                inner = " ".join(f"{reason}:{n}" for reason, n in sorted(part.items(), key=lambda item: (-item[1], item[0])) if n)
                words.append(f"{name}={{{inner}}}")
            else:
                words.append(f"{name}={part}")
        return " ".join(words)


def _is_count(n: object) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and n >= 0
