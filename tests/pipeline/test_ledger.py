"""Ledgers close, and a missing count is never zero. Case C26 feeds the run view; here its arithmetic."""

import json
from pathlib import Path

import pytest

from pipeline.errors import LedgerError
from pipeline.ledger import Ledger

CASES = Path(__file__).parents[1] / "cases"


def test_a_closed_ledger_prints_one_line_and_survives_json() -> None:
    ledger = Ledger("documents", "made", 10, {"kept": 7, "dropped": {"quality": 1, "language": 2, "pii": 0}}, {"rules": {"min_words": 4}})
    assert ledger.close() is ledger
    assert ledger.line() == "made=10 kept=7 dropped={language:2 quality:1}"
    assert Ledger.from_json(json.loads(json.dumps(ledger.to_json()))) == ledger


@pytest.mark.parametrize(
    "parts", [{"kept": 7, "dropped": {"quality": 1}}, {"kept": None, "dropped": {"quality": 10}}, {"kept": -1, "x": 11}]
)
def test_an_open_ledger_is_an_error(parts: dict[str, object]) -> None:
    with pytest.raises(LedgerError):
        Ledger("documents", "made", 10, parts).close()  # type: ignore[arg-type]


def test_case_c26_missing_totals_are_errors() -> None:
    case = json.loads((CASES / "C26" / "ledgers.json").read_text())["components"]
    closed, opened = [], []
    for name, component in case.items():
        try:
            Ledger(name, "rows", component["total"], component["shards"]).close()
            closed.append(name)
        except LedgerError:
            opened.append(name)
    assert closed == ["web_ko"]
    assert opened == ["books", "code"]


def test_a_ledger_without_a_count_cannot_be_read() -> None:
    with pytest.raises(LedgerError):
        Ledger.from_json({"unit": "documents", "total_name": "made", "parts": {}, "extra": {}})
