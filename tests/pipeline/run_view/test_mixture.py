"""Weights, lengths, counts and achieved shares: exact, by name, and equal to what the order delivers."""

import json
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import MixtureError
from pipeline.recipe import StageSpec
from pipeline.run_view.mixture import (
    WEIGHT_SUM,
    ComponentPacks,
    decimal_text,
    largest_remainder,
    loss_tokens,
    mixture_table,
    plan_stages,
    share_weights,
)
from runview.order import Order, StageGeometry

BLEND = json.loads((Path(__file__).parents[2] / "cases" / "C24" / "blend.json").read_text())


def component(name, shard_packs, labels=None, window=2):
    n_packs = sum(shard_packs)
    return ComponentPacks(name, window, tuple(shard_packs), np.full(n_packs, 100) if labels is None else np.asarray(labels))


def blend_of(sources):
    return [component(name, [rows]) for name, rows in sources.items()]


def test_case_c24_a_source_that_is_too_small_is_refused_unless_repeats_are_allowed():
    """30 rows at 0.999 of a source with 10 need it about three times."""
    parts = blend_of(BLEND["sources"])
    spec = StageSpec("blend", {name: Decimal(str(w)) for name, w in BLEND["weights"].items()}, budget_tokens=100 * BLEND["rows_wanted"])
    once = {"ko": Decimal(1), "en": Decimal(1)}
    with pytest.raises(
        MixtureError, match=r"'en' \(stages \['blend'\]\): 30 packs asked, 3 epochs of its 10; allowed 10 packs, max_epochs 1"
    ):
        plan_stages([spec], components=parts, caps=once, seed="00")
    (planned,) = plan_stages([spec], components=parts, caps={**once, "en": Decimal(3)}, seed="00")
    assert planned.length == BLEND["rows_wanted"]
    assert planned.counts == {"ko": 0, "en": 30}
    assert planned.manifest_entry()["shares"] == {"ko": "0.001", "en": "0.999"}
    assert planned.manifest_entry()["achieved_shares"] == {"ko": "0", "en": "1"}
    rows = mixture_table([planned], parts).to_pylist()
    assert [(row["component"], row["n_packs"], row["epochs"], row["n_loss_tokens"]) for row in rows] == [
        ("ko", 0, "0", 0),
        ("en", 30, "3", 3000),
    ]


def test_case_c24_all_rows_once():
    sources = {name: len(rows) for name, rows in BLEND["case_2"]["sources"].items()}
    parts = blend_of(sources)
    (planned,) = plan_stages([StageSpec("all", epochs=Decimal(1))], components=parts, caps=dict.fromkeys(sources, Decimal(1)), seed="00")
    assert planned.counts == sources
    order = Order("00", [StageGeometry("all", planned.length, planned.weights)], [part.geometry for part in parts])
    found = order.locate(np.arange(planned.length))
    rows = [BLEND["case_2"]["sources"][parts[c].name][p] for c, p in zip(found.component.tolist(), found.pack.tolist(), strict=True)]
    assert sorted(rows) == [0, 1, 2, 10, 11, 12, 13, 20, 21, 22]


def test_weights_by_example():
    """a: half the tokens in packs of 100 loss tokens; b: the other half in packs of 50, so twice as many packs."""
    parts = [component("a", [4]), component("b", [4], np.full(4, 50))]
    weights = share_weights({"a": Decimal("0.5"), "b": Decimal("0.5")}, parts)
    assert weights == {"a": 5592405, "b": 11184811}
    assert sum(weights.values()) == WEIGHT_SUM


@given(st.lists(st.fractions(min_value=Fraction(1, 10**12), max_value=10**6), min_size=1, max_size=30), st.integers(30, 2**24))
@settings(max_examples=200, deadline=None)
def test_largest_remainder_sums_and_stays_near(values, total):
    named = {f"c{i}": value for i, value in enumerate(values)}
    weights = largest_remainder(named, total)
    assert sum(weights.values()) == total
    assert min(weights.values()) >= 1
    if min(values) * total / sum(values) >= 1:
        assert all(abs(weights[name] - value * total / sum(values)) < 1 for name, value in named.items())


def test_ties_go_in_manifest_order_and_floors_come_from_the_largest():
    assert largest_remainder(dict.fromkeys("abc", Fraction(1)), 8) == {"a": 3, "b": 3, "c": 2}
    assert largest_remainder({"tiny": Fraction(1, 10**9), "small": Fraction(1, 10**9), "big": Fraction(1)}, 10) == {
        "tiny": 1,
        "small": 1,
        "big": 8,
    }
    with pytest.raises(MixtureError, match="each needs at least 1"):
        largest_remainder(dict.fromkeys("abc", Fraction(1)), 2)


@given(
    st.lists(st.tuples(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(1, 3)), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(1, 400), st.lists(st.integers(0, 50), min_size=3, max_size=3)), min_size=1, max_size=3),
    st.integers(0, 2**32),
)
@settings(max_examples=40, deadline=None)
def test_achieved_tokens_are_those_of_the_packs_the_order_delivers(shapes, stages, labels_seed):
    """Closed form plus the shorter side of a broken epoch, against a walk over every position."""
    random = np.random.default_rng(labels_seed)
    parts = [component(f"c{i}", packs, random.integers(0, 99, sum(packs)), window) for i, (packs, window) in enumerate(shapes)]
    geometries = [
        StageGeometry(f"s{m}", length, {p.name: max(w, int(i == 0)) for i, (p, w) in enumerate(zip(parts, weights, strict=False))})
        for m, (length, weights) in enumerate(stages)
    ]
    order = Order("0f", geometries, [p.geometry for p in parts])
    found = order.locate(np.arange(order.length))
    for number, part in enumerate(parts):
        first = np.concatenate([[0], np.cumsum(part.shard_packs)])
        for stage in range(1, len(stages) + 1):
            mine = (found.component == number) & (found.stage < stage)
            walked = int(part.labels[first[found.shard[mine]] + found.pack[mine]].sum())
            assert loss_tokens(part, int(mine.sum()), seed="0f") == walked


def test_budget_becomes_the_most_positions_that_do_not_pass_it():
    parts = [component("a", [10]), component("b", [10], np.full(10, 50))]
    spec = StageSpec("s", {"a": Decimal("0.5"), "b": Decimal("0.5")}, budget_tokens=999)
    (planned,) = plan_stages([spec], components=parts, caps={"a": Decimal(1), "b": Decimal(1)}, seed="00")
    assert planned.length == 14  # a third of the positions at 100, two thirds at 50: 66.7 each
    assert sum(planned.loss_tokens.values()) == 100 * planned.counts["a"] + 50 * planned.counts["b"]
    with pytest.raises(MixtureError, match="less than one position"):
        plan_stages([StageSpec("s", spec.shares, budget_tokens=60)], components=parts, caps={"a": Decimal(1), "b": Decimal(1)}, seed="00")


def test_epochs_end_exactly_also_broken_ones():
    parts = [component("a", [3, 4]), component("b", [5]), component("c", [1])]
    caps = dict.fromkeys("abc", Decimal(4))
    (whole,) = plan_stages([StageSpec("s", epochs=Decimal(3))], components=parts, caps=caps, seed="00")
    assert (whole.length, whole.counts, whole.weights) == (39, {"a": 21, "b": 15, "c": 3}, {"a": 21, "b": 15, "c": 3})
    (broken,) = plan_stages([StageSpec("s", epochs=Decimal("1.5"))], components=parts, caps=caps, seed="00")
    assert broken.length == 19
    assert broken.counts == broken.weights
    assert all(abs(broken.counts[p.name] - Fraction(3, 2) * p.n_packs) <= 1 for p in parts)


def test_caps_count_over_all_stages():
    parts = [component("a", [10]), component("b", [10])]
    stages = [StageSpec("one", epochs=Decimal(1)), StageSpec("two", {"a": Decimal(1)}, budget_tokens=600)]
    with pytest.raises(MixtureError, match=r"'a' \(stages \['one', 'two'\]\): 16 packs asked, 1\.6 epochs of its 10; allowed 15 packs"):
        plan_stages(stages, components=parts, caps={"a": Decimal("1.5"), "b": Decimal(1)}, seed="00")
    planned = plan_stages(stages, components=parts, caps={"a": Decimal("1.6"), "b": Decimal(1)}, seed="00")
    rows = {(row["stage"], row["component"]): row["epochs"] for row in mixture_table(planned, parts).to_pylist()}
    assert rows == {("one", "a"): "1", ("one", "b"): "1", ("two", "a"): "1.6"}


def test_what_cannot_be_mixed_is_refused_by_name():
    parts = [component("a", [10]), component("mute", [2], [0, 0])]
    caps = {"a": Decimal(10**9), "mute": Decimal(1)}

    def plan(spec):
        return plan_stages([spec], components=parts, caps=caps, seed="00")

    with pytest.raises(MixtureError, match=r"'mute' has a share of 0\.5 but 2 packs with 0 loss tokens"):
        plan(StageSpec("s", {"a": Decimal("0.5"), "mute": Decimal("0.5")}, budget_tokens=1000))
    with pytest.raises(MixtureError, match=r"gives shares to \['b'\]"):
        plan(StageSpec("s", {"b": Decimal(1)}, budget_tokens=1000))
    with pytest.raises(MixtureError, match=r"'s': 549755813888 positions x weight sum 16777216 is 2\^63 or more"):
        plan(StageSpec("s", {"a": Decimal(1)}, budget_tokens=2**39 * 100))


def test_decimals_are_rounded_half_to_even_without_trailing_zeros():
    values = [Fraction(1, 3), Fraction(2, 3), Fraction(1, 2), Fraction(0), Fraction(1), Fraction(5, 10**10), Fraction(15, 10**10)]
    assert [decimal_text(value) for value in values] == ["0.333333333", "0.666666667", "0.5", "0", "1", "0", "0.000000002"]
