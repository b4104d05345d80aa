"""Great Expectations judges the row rules: at their bounds, never a pass by accident, with nothing left behind and no network."""

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipeline.contracts import RULES, RowRule, Verdict, expected_checks, gate_problems
from pipeline.errors import ContractError
from resources.expectations import build_data_docs, validate

NO_NUMBER = datetime(2026, 1, 1, tzinfo=UTC)
ROOT = Path(__file__).parents[2]
ALL = [(stage, rule) for stage, rules in RULES.items() for rule in rules]


def green(stage: str, **changes: float) -> dict[str, float]:
    """A profile on which every rule of the stage holds, with room on both sides where a rule leaves room."""
    profile: dict[str, float] = {rule.evaluated: 5 for rule in RULES[stage]}
    profile |= {rule.name: rule.minimum + 4 if rule.minimum is not None else 0 for rule in RULES[stage]}
    return profile | changes


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test here leaves the folder for temporary files as it was."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield
    assert sorted(folder.rglob("*")) == []


@pytest.mark.parametrize("stage", RULES)
def test_every_rule_at_its_bounds(stage: str) -> None:
    """Inclusive: the bound itself passes, the next float beyond does not. One suite judges all rules of a stage at once."""
    rules = RULES[stage]
    for name, outward in (("minimum", -math.inf), ("maximum", math.inf)):
        bounds = {rule.name: float(getattr(rule, name)) for rule in rules if getattr(rule, name) is not None}
        at = validate(rules, green(stage) | bounds)
        assert [v.check for v in at] == expected_checks(stage)
        assert [v.observed for v in at] == [(green(stage) | bounds)[rule.name] for rule in rules]
        assert [(v.passed, v.severity, v.raised) for v in at] == [(True, rule.severity, "") for rule in rules]
        assert gate_problems(expected_checks(stage), at) == []
        beyond = validate(rules, green(stage) | {key: math.nextafter(bound, outward) for key, bound in bounds.items()})
        assert {v.check for v in beyond if not v.passed} == set(bounds)
        assert not any(v.raised for v in beyond)
        blocking = {rule.name for rule in rules if rule.name in bounds and rule.severity == "error"}
        assert blocking <= {problem.split(":")[0] for problem in gate_problems(expected_checks(stage), beyond)}


def test_results_are_matched_by_name() -> None:
    """One rule fails, whatever the order of the rules and of what comes back."""
    rules = RULES["documents"]
    for order in (rules, rules[::-1], rules[5:] + rules[:5]):
        verdicts = validate(order, green("documents", kept_with_reason=3))
        assert [v.check for v in verdicts] == [r.name for r in order]
        assert [(v.check, v.observed) for v in verdicts if not v.passed] == [("kept_with_reason", 3)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_finite_number_is_an_error_never_a_pass(value: float) -> None:
    rules = [RowRule("low", "w", "n", minimum=0), RowRule("high", "w", "n", maximum=0, severity="warn")]
    verdicts = validate(rules, {"low": value, "high": value, "n": 1})
    assert [(v.passed, v.severity, v.raised) for v in verdicts] == [(False, "error", "not a finite number")] * 2
    assert len(gate_problems(["low", "high"], verdicts)) == 2


def test_an_expectation_that_raises_is_an_error_whatever_its_severity() -> None:
    """A bound of another type makes the real library raise inside the metric; the other rule is still judged."""
    rules = [RowRule("a", "w", "n", maximum=NO_NUMBER, severity="warn"), RowRule("b", "w", "n", maximum=0)]  # type: ignore[arg-type]
    raised, judged = validate(rules, {"a": 0, "b": 0, "n": 1})
    assert raised == Verdict("a", passed=False, severity="error", n_evaluated=1, observed=0.0, raised="expectation error")
    assert judged == Verdict("b", passed=True, severity="error", n_evaluated=1, observed=0.0)
    assert gate_problems(["a", "b"], [raised, judged]) == ["a: raised expectation error"]


@pytest.mark.parametrize("stage", RULES)
def test_a_column_that_is_missing_is_an_error_never_a_default(stage: str) -> None:
    for name in green(stage):
        profile = green(stage)
        del profile[name]
        with pytest.raises(ContractError, match=rf"profile lacks \['{name}'\]"):
            validate(RULES[stage], profile)
        with pytest.raises(ContractError, match=rf"profile lacks \['{name}'\]"):
            validate(RULES[stage], green(stage) | {name: None})  # type: ignore[dict-item]


@pytest.mark.parametrize("stage", ["documents", "shards"])
def test_what_judged_nothing_is_not_green(stage: str) -> None:
    counters = {rule.evaluated for rule in RULES[stage]}
    verdicts = validate(RULES[stage], green(stage) | dict.fromkeys(counters, 0))
    assert gate_problems(expected_checks(stage), verdicts) == [f"{name}: judged nothing" for name in expected_checks(stage)]


def test_no_rules_no_green() -> None:
    assert gate_problems([], validate([], {})) == ["no checks expected: an empty gate proves nothing"]


PROGRAM = """
import json, os, sys
calls = []
sys.addaudithook(lambda event, args: calls.append(f"{event} {args[1:]}") if event in ("socket.connect", "socket.getaddrinfo") else None)
from pathlib import Path
from pipeline.contracts import RULES
from resources.expectations import build_data_docs, validate
rules, profile = RULES["clusters"][:2], {"cluster_rows": 1, "document_without_cluster": 0, "members": 1}
verdicts = validate(rules, profile)
build_data_docs(Path(sys.argv[1]), {"clusters": (rules, profile)})
print(json.dumps({"calls": calls, "setting": os.environ["GX_ANALYTICS_ENABLED"], "passed": [v.passed for v in verdicts]}))
"""


@pytest.fixture(scope="module", autouse=True)
def other_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that judges and builds Data Docs; it starts first and is read last, since its imports take seconds."""
    folder = tmp_path_factory.mktemp("process")
    for name in ("temporary", "home"):
        (folder / name).mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "GX_ANALYTICS_ENABLED"}
    paths = {"TMPDIR": str(folder / "temporary"), "HOME": str(folder / "home"), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'loader'}"}
    words = [sys.executable, "-c", PROGRAM, str(folder / "site")]
    with subprocess.Popen(words, env=environment | paths, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        yield process, folder


def test_data_docs_twice_into_the_same_folder(tmp_path: Path) -> None:
    rules, folder = RULES["clusters"], tmp_path / "site"
    first = build_data_docs(folder, {"clusters 2026": (rules, green("clusters"))})
    assert first.is_relative_to(folder)
    page = "clusters 2026"
    assert page in first.read_text()
    second = build_data_docs(folder, {page: (rules, green("clusters", cluster_across_splits=7)), "other": (rules[:1], green("clusters"))})
    assert second == first
    assert "other" in second.read_text()
    suite = json.loads((folder / "gx" / "expectations" / f"{page}.json").read_text())
    assert sorted(item["kwargs"]["column"] for item in suite["expectations"]) == sorted(expected_checks("clusters"))
    results = [json.loads(path.read_text()) for path in sorted((folder / "gx" / "uncommitted" / "validations" / page).rglob("*.json"))]
    assert sorted(result["success"] for result in results) == [False, True], "the second build judged the second profile"
    assert any("cluster_across_splits" in path.read_text() for path in first.parent.rglob("expectations/*.html"))


def test_data_docs_of_a_profile_that_lacks_a_count(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="profile lacks"):
        build_data_docs(tmp_path / "site", {"clusters": (RULES["clusters"], {})})


def test_no_network_and_nothing_left_by_a_process_that_has_ended(other_process: tuple[subprocess.Popen[str], Path]) -> None:
    process, folder = other_process
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert json.loads(out.splitlines()[-1]) == {"calls": [], "setting": "false", "passed": [True, True]}
    assert sorted((folder / "temporary").rglob("*")) == []
    assert not any("great_expectations" in path.name for path in (folder / "home").rglob("*"))
