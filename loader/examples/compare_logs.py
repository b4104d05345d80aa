"""Whether two training logs tell the same run: equal losses and pack ids at every step, replayed steps included.

    python loader/examples/compare_logs.py UNINTERRUPTED.jsonl RESUMED.jsonl

Exit status: 0 equal, 1 different or unreadable, 2 wrong usage.
"""

import json
import sys
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

COMPARED = ("position", "loss", "n_loss_tokens", "packs", "pack_digest")


@dataclass(frozen=True)
class Comparison:
    """`n_steps` in either log, `n_equal` of them equal in every line, `n_replayed` lines beyond one per step and log.

    `differences` names step and field, in step order; empty exactly when the logs are equal.
    """

    n_steps: int
    n_equal: int
    n_replayed: int
    differences: tuple[str, ...]

    @property
    def equal(self) -> bool:
        return not self.differences

    def __str__(self) -> str:
        verdict = "equal" if self.equal else "different"
        counts = f"{self.n_equal} of {self.n_steps} steps equal in losses and pack ids, {self.n_replayed} replayed"
        return "\n".join([f"{verdict}: {counts}", *self.differences[:20]])


def compare(log_a: str | PathLike[str], log_b: str | PathLike[str]) -> Comparison:
    """Compare two logs of train_gpt.py. Losses are compared as written, digit by digit.

    A resumed run repeats the steps after its last checkpoint: each of those lines must equal the others of its step.
    ValueError for an empty log and for a line that is not JSON or lacks a field.
    """
    logs = [_read(Path(log_a)), _read(Path(log_b))]
    steps = sorted(logs[0].keys() | logs[1].keys())
    differences, n_equal = [], 0
    for step in steps:
        found = [text for log in logs if (text := _difference(step, log.get(step), logs[0].get(step)))]
        differences += found[:1]
        n_equal += not found
    n_replayed = sum(len(lines) - 1 for log in logs for lines in log.values())
    return Comparison(len(steps), n_equal, n_replayed, tuple(differences))


def _difference(step: int, lines: list[dict[str, Any]] | None, reference: list[dict[str, Any]] | None) -> str | None:
    if lines is None or reference is None:
        return f"step {step}: in one log only"
    for line in lines:
        for field in COMPARED:
            if line[field] != reference[0][field]:
                values = "" if field == "packs" else f" ({reference[0][field]} and {line[field]})"
                return f"step {step}: {field} differs{values}"
    return None


def _read(path: Path) -> dict[int, list[dict[str, Any]]]:
    steps: dict[int, list[dict[str, Any]]] = {}
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            line = json.loads(text)
            missing = [field for field in ("step", *COMPARED) if field not in line]
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}:{number}: a JSON object expected ({type(error).__name__}); the line may be torn by a kill") from error
        if missing:
            raise ValueError(f"{path}:{number}: field {missing[0]!r} is missing; a log of train_gpt.py expected")
        steps.setdefault(line["step"], []).append(line)
    if not steps:
        raise ValueError(f"{path}: no step was logged")
    return steps


def main() -> int:
    if len(sys.argv) != 3:
        print("usage: compare_logs.py A.jsonl B.jsonl", file=sys.stderr)
        return 2
    try:
        result = compare(sys.argv[1], sys.argv[2])
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(result)
    return 0 if result.equal else 1


if __name__ == "__main__":
    sys.exit(main())
