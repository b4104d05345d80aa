"""Gates: green only when every expected check ran, judged something and passed. Cases C27 and C28."""

import json
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from pipeline.contracts import RULES, Verdict, expected_checks, gate_problems, judge, require_green
from pipeline.errors import ContractError, GateError
from pipeline.profiles import Profile

CASES = Path(__file__).parents[1] / "cases"


def _verdicts(names: list[str]) -> list[Verdict]:
    return [Verdict(name, passed=True, severity="error", n_evaluated=3, observed=0.0) for name in names]


def test_green_gate() -> None:
    names = expected_checks("decisions")
    require_green("decisions", "v", names, _verdicts(names))


@pytest.mark.parametrize("change", [{"passed": False}, {"n_evaluated": 0}, {"raised": "KeyError"}])
def test_one_bad_verdict_makes_the_gate_red(change: dict[str, object]) -> None:
    verdicts = _verdicts(["a", "b"])
    verdicts[1] = replace(verdicts[1], **change)  # type: ignore[arg-type]
    with pytest.raises(GateError, match="b: "):
        require_green("stage", "v", ["a", "b"], verdicts)


def test_a_warning_does_not_block_but_must_have_judged() -> None:
    warning = Verdict("w", passed=False, severity="warn", n_evaluated=1, observed=1.0)
    assert gate_problems(["w"], [warning]) == []
    assert gate_problems(["w"], [replace(warning, n_evaluated=0)])


def test_case_c27_an_empty_result_is_no_success() -> None:
    case = json.loads((CASES / "C27" / "gate.json").read_text())
    verdicts = [Verdict(r["check"], r["success"], "error", r["evaluated"], 0.0) for r in case["results"]]
    problems = gate_problems(case["expected_checks"], verdicts)
    assert problems == [
        "not_null.text: judged nothing",
        "unique.doc_id: judged nothing",
        "row_count.min_1: expected but did not run",
        "pii.residual_zero: expected but did not run",
    ]
    assert gate_problems([], []) != []


def test_case_c27_blank_and_null_texts_are_empty() -> None:
    rows = [json.loads(line) for line in (CASES / "C27" / "whitespace.jsonl").read_text().splitlines()]
    profile = Profile()
    frame = pl.DataFrame(rows, schema={"doc_id": pl.String, "text": pl.String})
    profile.bad("blank", frame, pl.col("text").fill_null("").str.strip_chars().str.len_bytes() == 0, id_column="doc_id")
    assert profile.counts["blank"] == 3
    assert profile.examples["blank"] == ["a", "b", "c"]


def test_a_profile_that_lacks_a_count_is_an_error() -> None:
    with pytest.raises(ContractError, match="duplicate_doc_id"):
        judge(RULES["documents"], {"document_rows": 1})


def test_every_rule_names_what_it_counts() -> None:
    for stage, rules in RULES.items():
        names = [rule.name for rule in rules]
        assert len(set(names)) == len(names), stage
        assert all(rule.minimum is not None or rule.maximum is not None for rule in rules), stage
