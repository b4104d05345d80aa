"""Quality rules: domain, sense, boundary."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from pipeline.cleaned_docs.quality import check_rules, judge
from pipeline.errors import RecipeError
from pipeline.recipe import Rule

CASES = Path(__file__).parents[2] / "cases"


def verdict(rule, value, kind="prose", language="en"):
    found = judge([rule], {rule.metric: np.array([value])}, kinds=np.array([kind]), languages=np.array([language]))[0]
    return "not_applicable" if not found.applies[0] else "fail" if found.failed[0] else "pass"


@pytest.mark.parametrize(("value", "wanted"), [(4.0, "fail"), (5.0, "pass"), (6.0, "pass"), (float("nan"), "fail")])
def test_minimum_is_inclusive_and_missing_fails(value, wanted):
    assert verdict(Rule("min_words", "n_words", Decimal(5), ("prose",)), value) == wanted


@pytest.mark.parametrize(("value", "wanted"), [(1 / 10, "pass"), (11 / 100, "fail"), (0.0, "pass"), (float("nan"), "fail")])
def test_maximum_is_inclusive_and_missing_fails(value, wanted):
    assert verdict(Rule("max_symbols", "symbol_ratio", Decimal("0.1"), ("prose",)), value) == wanted


def test_a_ratio_at_a_decimal_bound_passes_exactly():
    for n in range(1, 1000):
        bound = Decimal(n) / 1000
        assert verdict(Rule("min_r", "letter_ratio", bound, ("prose",)), n / 1000) == "pass"
        assert verdict(Rule("max_r", "letter_ratio", bound, ("prose",)), n / 1000) == "pass"


def test_outside_its_domain_a_rule_is_not_applicable():
    rule = Rule("min_words", "n_words", Decimal(5), ("prose", "chat"), ("en",))
    assert verdict(rule, 0.0, "code") == "not_applicable"
    assert verdict(rule, 0.0, "prose", "ko") == "not_applicable"
    assert verdict(rule, 0.0, "chat", "en") == "fail"


def test_unknown_metric_names_the_nearest():
    with pytest.raises(RecipeError, match=r"'n_word'.*did you mean 'n_words'"):
        check_rules([Rule("min_words", "n_word", Decimal(5), ("prose",))])


def test_sense_has_to_be_in_the_name():
    with pytest.raises(RecipeError, match="min_ or max_"):
        check_rules([Rule("words", "n_words", Decimal(5), ("prose",))])


def test_case_c10_keep_flags(run):
    rows = [json.loads(line) for line in (CASES / "C10/quality.jsonl").read_text().splitlines()]
    cleaned = run([(f"{row['id']}#0", row["text"].encode()) for row in rows])
    found = dict(zip(cleaned.documents["record_key"].to_pylist(), cleaned.documents["decision"].to_pylist(), strict=True))
    assert found == {f"{row['id']}#0": "keep" if row["keep"] else "drop" for row in rows}
    ledger = cleaned.ledgers["documents"]
    assert ledger.extra["rules_by_kind_language"] == {
        "quality.max_top_bigram_fraction_en prose/en": 1,
        "quality.max_top_bigram_fraction_ko prose/ko": 1,
        "quality.min_word_letter_ratio prose/ko": 1,
        "quality.min_words prose/ko": 1,
    }
    assert ledger.extra["not_applicable"]["quality.min_words"] == 2
