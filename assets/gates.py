"""Gates: verdicts on a version, written by checks and read again by every consumer, also in a later run."""

from datetime import UTC, datetime

import pyarrow as pa

from pipeline.contracts import RULES, Verdict, expected_checks, require_green
from pipeline.ids import canonical_json
from pipeline.schemas import GATES
from resources.project import Project


def write_gate(project: Project, stage: str, version: str, verdicts: list[Verdict], *, run_id: str) -> None:
    """Record the verdicts on `version`; a later judgement of the same version replaces the earlier."""
    expected = canonical_json(expected_checks(stage)).decode()
    bounds = {rule.name: rule for rule in RULES[stage]}
    now = datetime.now(UTC)
    rows = [
        {
            "version": version,
            "check": verdict.check,
            "stage": stage,
            "passed": verdict.passed,
            "severity": verdict.severity,
            "n_evaluated": verdict.n_evaluated,
            "observed": verdict.observed,
            "minimum": bounds[verdict.check].minimum,
            "maximum": bounds[verdict.check].maximum,
            "raised": verdict.raised,
            "expected_checks": expected,
            "judged_at": now,
            "run_id": run_id,
        }
        for verdict in verdicts
    ]
    project.lake.insert(GATES, pa.Table.from_pylist(rows, schema=GATES.schema), update=True)


def read_gate(project: Project, version: str) -> list[Verdict]:
    """Verdicts on `version`, empty when it was never judged."""
    rows = project.lake.table(GATES, where={"version": version}).sort_by("check").to_pylist()
    return [Verdict(row["check"], row["passed"], row["severity"], row["n_evaluated"], row["observed"], row["raised"]) for row in rows]


def require_gate(project: Project, stage: str, version: str) -> None:
    """Raises GateError unless every expected check of `stage` judged `version` and none failed."""
    require_green(stage, version, expected_checks(stage), read_gate(project, version))
