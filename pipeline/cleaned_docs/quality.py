"""Quality rules: each judges one metric, only in its domain of kinds and languages; elsewhere it is not applicable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.cleaned_docs.measure import METRICS
from pipeline.cleaned_docs.reasons import nearest
from pipeline.errors import RecipeError
from pipeline.recipe import Rule


@dataclass(frozen=True)
class Verdict:
    """One rule over a column: where it applies, where it failed, and the value it read (NaN where not measured)."""

    rule: Rule
    applies: NDArray[np.bool_]
    failed: NDArray[np.bool_]
    value: NDArray[np.float64]


def check_rules(rules: Sequence[Rule]) -> None:
    """Raises RecipeError for a rule on a metric that nothing measures, or without a sense in its name."""
    for rule in rules:
        if rule.metric not in METRICS:
            raise RecipeError(f"cleaning.rules: rule {rule.name!r} asks for metric {rule.metric!r}{nearest(rule.metric, METRICS)}")
        if not rule.name.startswith(("min_", "max_")):
            raise RecipeError(f"cleaning.rules: rule {rule.name!r} must start with min_ or max_, so that its sense is in its name")


def judge(
    rules: Sequence[Rule], metrics: Mapping[str, NDArray[np.float64]], *, kinds: NDArray[np.str_], languages: NDArray[np.str_]
) -> list[Verdict]:
    """Verdict of every rule on every document.

    A value equal to the bound passes. A metric that could not be measured fails where the rule applies; it never passes.
    Args: kinds, languages, one string per document.
    """
    verdicts = []
    for rule in rules:
        applies = np.isin(kinds, rule.kinds)
        if rule.languages:
            applies &= np.isin(languages, rule.languages)
        value, bound = metrics[rule.metric], float(rule.bound)
        passes = value >= bound if rule.name.startswith("min_") else value <= bound  # NaN passes neither
        verdicts.append(Verdict(rule, applies, applies & ~passes, value))
    return verdicts
