"""Language: gates before the model, `und` rather than a guess, and our arithmetic against the library's."""

from __future__ import annotations

import dataclasses
import json
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from pipeline.cleaned_docs.language import identify, model_digest, scores
from pipeline.recipe import Language

CASES = Path(__file__).parents[2] / "cases"
CONFIG = Language(min_chars=10, min_score=Decimal("0.5"), accept=("en", "ko"), max_chars=2000)
ENGLISH = "The committee met in the morning and decided to put the question to the members before the end of the week."


def one(text, kind="prose", config=CONFIG):
    return identify(pl.Series([text]), pl.Series([kind]), config=config).row(0, named=True)


def test_code_has_no_language_and_no_score():
    assert one(ENGLISH, "code") == {
        "language": "zxx",
        "language_score": None,
        "language_runner_up": None,
        "language_runner_up_score": None,
    }


@pytest.mark.parametrize(("id_", "wanted"), [("l1", "und"), ("l2", "ko"), ("l3", "und"), ("l6", "ko"), ("l7", "ko")])
def test_case_c09(id_, wanted):
    rows = {row["id"]: row for row in map(json.loads, (CASES / "C09/lang.jsonl").read_text().splitlines())}
    assert one(rows[id_]["text"])["language"] == wanted


def test_unsure_answer_is_und_with_the_guess_for_review():
    found = one("PROJECT TAGGING CRITERIA")
    assert found["language"] == "und"
    assert found["language_runner_up"] == "en"
    assert found["language_score"] == found["language_runner_up_score"] < 0.5


def test_score_at_the_threshold_passes_and_just_above_does_not():
    score = Decimal(str(one(ENGLISH)["language_score"]))
    assert 0.9 < score <= 1
    assert one(ENGLISH, config=dataclasses.replace(CONFIG, min_score=score))["language"] == "en"
    assert one(ENGLISH, config=dataclasses.replace(CONFIG, min_score=score + Decimal("0.001")))["language"] == "und"


def test_letters_are_counted_not_characters():
    assert one("가나다라마바사아자")["language"] == "und"  # nine
    assert one("가나다라마바사아자차")["language"] == "ko"
    assert one("1234567890 " * 20)["language"] == "und"


def test_line_breaks_change_nothing():
    broken = ENGLISH.replace(" ", "\n")
    assert one(broken) == one(ENGLISH)


def test_latex_and_turn_headers_are_not_read():
    formula = "$\\frac{\\alpha}{\\beta} = \\sum_{i=0}^{\\infty} \\text{something} x_i$ "
    assert one(formula * 20, "math")["language"] == "und"
    assert one(formula * 5 + "이 식은 수렴하는 급수의 합을 나타낸다", "math")["language"] == "ko"
    assert one("### user\n네 맞아요 그렇습니다\n\n### assistant\n아 네 알겠습니다", "chat")["language"] == "ko"


def test_only_the_beginning_is_read():
    config = dataclasses.replace(CONFIG, max_chars=100)
    assert one(ENGLISH + " " + "한국어 문장이 길게 이어진다. " * 50, config=config)["language"] == "en"


def test_scores_agree_with_the_library():
    rows = [json.loads(line) for name in ("C09/lang.jsonl", "C10/quality.jsonl") for line in (CASES / name).read_text().splitlines()]
    texts = [row["text"].replace("\n", " ") for row in rows] + [ENGLISH, "Il était une fois une petite fille", "日本語の文章です。", ""]
    labels, found = scores(pl.Series(texts))
    library = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    for text, row in zip(texts, found, strict=True):
        ours = {label: p for label, p in zip(labels, row.tolist(), strict=True) if p}
        for label, p in library.rank(text)[:10]:
            assert ours[label] == pytest.approx(p, abs=2e-4)


def test_model_digest_is_of_the_models_bytes():
    assert len(model_digest()) == 64
