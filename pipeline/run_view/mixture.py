"""From declared shares to integer weights, lengths and counts, in exact arithmetic; nothing is sampled or estimated.

A share is of loss tokens (tokens that carry a label), since those are what a run trains on. Positions hold packs, so the
weight of a component is share x n_packs / n_loss_tokens: its share of packs that gives its share of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.errors import MixtureError
from pipeline.recipe import StageSpec, to_json
from runview.order import ComponentGeometry, Order, StageGeometry

Array = npt.NDArray[Any]
WEIGHT_SUM = 2**24  # resolves shares to 6e-8 and leaves 2^39 positions below the limit of the order
LIMIT = 2**63
CHUNK = 2**20  # packs enumerated at once: about 100 MB of intermediate arrays
SHARE_DIGITS = 9


@dataclass(frozen=True)
class ComponentPacks:
    """What the mixture needs of one component. labels: int64 [n_packs], loss tokens of each pack in catalog, then index order."""

    name: str
    window: int
    shard_packs: tuple[int, ...]
    labels: Array

    @property
    def n_packs(self) -> int:
        return sum(self.shard_packs)

    @property
    def n_loss_tokens(self) -> int:
        return int(self.labels.sum())

    @property
    def geometry(self) -> ComponentGeometry:
        return ComponentGeometry(self.name, self.window, self.shard_packs)


@dataclass(frozen=True)
class PlannedStage:
    """One stage of the run: declared values, weights, and what it delivers exactly.

    Attributes: spec as declared; length in positions; weights and counts (packs delivered) by component; loss_tokens
        delivered by component; caps, the most epochs of each component over the whole run.
    """

    spec: StageSpec
    length: int
    weights: Mapping[str, int]
    counts: Mapping[str, int]
    loss_tokens: Mapping[str, int]
    caps: Mapping[str, Decimal]

    @property
    def achieved_shares(self) -> dict[str, Fraction]:
        """Share of the stage's loss tokens by component, exact."""
        total = sum(self.loss_tokens.values())
        return {name: Fraction(n, total) if total else Fraction(0) for name, n in self.loss_tokens.items()}

    def manifest_entry(self) -> dict[str, Any]:
        """The stage's object in the manifest."""
        return {
            "name": self.spec.name,
            "length": self.length,
            "shares": to_json(self.spec.shares) if self.spec.shares else None,
            "weights": dict(self.weights),
            "epochs": to_json(self.spec.epochs) if self.spec.epochs else None,
            "caps": to_json(dict(self.caps)),
            "counts": dict(self.counts),
            "achieved_shares": {name: decimal_text(share) for name, share in self.achieved_shares.items()},
        }


def plan_stages(
    stages: Sequence[StageSpec], *, components: Sequence[ComponentPacks], caps: Mapping[str, Decimal], seed: str
) -> list[PlannedStage]:
    """Weights, lengths, counts and achieved shares of every stage.

    Args: components in manifest order; caps, `max_epochs` by component, over the whole run.
    Raises: MixtureError, naming components and numbers, when a share is given to a component without packs or labels, a
        stage is too long for the order, or a component would be repeated beyond its cap.
    """
    by_name = {c.name: c for c in components}
    geometries = []
    for spec in stages:
        unknown = sorted(set(spec.shares) - set(by_name))
        if unknown:
            raise MixtureError(f"stage {spec.name!r} gives shares to {unknown}; components of this view are {list(by_name)}")
        weights, length = _by_epochs(spec, components) if spec.epochs else _by_shares(spec, components)
        if length * sum(weights.values()) >= LIMIT:
            raise MixtureError(
                f"stage {spec.name!r}: {length} positions x weight sum {sum(weights.values())} is 2^63 or more; make several stages of it"
            )
        geometries.append(StageGeometry(spec.name, length, weights))
    order = Order(seed, geometries, [c.geometry for c in components])
    counts = [order.counts(number, stage.length) for number, stage in enumerate(geometries)]
    _check_caps(counts, geometries, by_name, caps)
    used = dict.fromkeys(by_name, 0)
    planned = []
    for spec, stage, delivered in zip(stages, geometries, counts, strict=True):
        names = [name for name in by_name if stage.weights.get(name)]
        tokens = {}
        for name in names:
            first, last = used[name], used[name] + delivered[name]
            tokens[name] = loss_tokens(by_name[name], last, seed=seed) - loss_tokens(by_name[name], first, seed=seed)
            used[name] = last
        planned.append(
            PlannedStage(spec, stage.length, stage.weights, {n: delivered[n] for n in names}, tokens, {n: caps[n] for n in names})
        )
    return planned


def share_weights(shares: Mapping[str, Decimal], components: Sequence[ComponentPacks]) -> dict[str, int]:
    """Integer pack weights of sum 2^24: share x n_packs / n_loss_tokens, by largest remainder, ties in manifest order.

    A non-zero share never gets less than 1; what such floors take beyond the sum is taken from the largest weights.
    """
    exact: dict[str, Fraction] = {}
    for component in components:
        share = Fraction(shares.get(component.name, Decimal(0)))
        if share < 0:
            raise MixtureError(f"share of component {component.name!r} must be 0 or more, found {shares[component.name]}")
        if share:
            if not component.n_packs or not component.n_loss_tokens:
                raise MixtureError(
                    f"component {component.name!r} has a share of {shares[component.name]} but {component.n_packs} packs "
                    f"with {component.n_loss_tokens} loss tokens"
                )
            exact[component.name] = share * component.n_packs / component.n_loss_tokens
    return largest_remainder(exact, WEIGHT_SUM)


def largest_remainder(values: Mapping[str, Fraction], total: int) -> dict[str, int]:
    """Integers >= 1 in proportion to positive values, of the given sum. Ties go to the earlier name."""
    if not values or total < len(values):
        raise MixtureError(f"{len(values)} weights of sum {total} are not possible; each needs at least 1")
    scale = total / sum(values.values())
    quotas = {name: value * scale for name, value in values.items()}
    weights = {name: max(1, int(quota)) for name, quota in quotas.items()}
    by_remainder = sorted(quotas, key=lambda name: weights[name] - quotas[name])  # stable: ties stay in manifest order
    for name in by_remainder[: max(0, total - sum(weights.values()))]:
        weights[name] += 1
    while sum(weights.values()) > total:
        weights[max(weights, key=lambda name: weights[name])] -= 1
    return weights


def loss_tokens(component: ComponentPacks, n_delivered: int, *, seed: str) -> int:
    """Loss tokens of the first `n_delivered` packs of a component, counted over the whole run. Exact.

    Whole epochs come from the total; of a broken epoch, the shorter side is enumerated through the order.
    """
    epochs, rest = divmod(n_delivered, component.n_packs) if component.n_packs else (0, 0)
    whole = epochs * component.n_loss_tokens
    if not rest:
        return whole
    start = epochs * component.n_packs
    if 2 * rest <= component.n_packs:
        return whole + _enumerated(component, start, start + rest, seed)
    return whole + component.n_loss_tokens - _enumerated(component, start + rest, start + component.n_packs, seed)


def mixture_table(planned: Sequence[PlannedStage], components: Sequence[ComponentPacks]) -> pa.Table:
    """For people: per stage and component declared and achieved share, packs, epochs (over the run so far), loss tokens, cap."""
    rows, used = [], dict.fromkeys((c.name for c in components), 0)
    size = {c.name: c.n_packs for c in components}
    for stage in planned:
        achieved = stage.achieved_shares
        for name, n_packs in stage.counts.items():
            used[name] += n_packs
            declared = stage.spec.shares.get(name)
            rows.append(
                {
                    "stage": stage.spec.name,
                    "component": name,
                    "declared_share": None if declared is None else str(to_json(declared)),
                    "achieved_share": decimal_text(achieved[name]),
                    "n_packs": n_packs,
                    "epochs": decimal_text(Fraction(used[name], size[name])),
                    "max_epochs": str(to_json(stage.caps[name])),
                    "n_loss_tokens": stage.loss_tokens[name],
                }
            )
    text, count = pa.string(), pa.int64()
    kinds = {"stage": text, "component": text, "declared_share": text, "achieved_share": text, "n_packs": count}
    return pa.Table.from_pylist(rows, schema=pa.schema({**kinds, "epochs": text, "max_epochs": text, "n_loss_tokens": count}))


def decimal_text(value: Fraction) -> str:
    """A fraction as decimal string, rounded half to even at nine places, without trailing zeros."""
    context = Context(prec=60)
    exact = context.divide(Decimal(value.numerator), Decimal(value.denominator))
    return str(to_json(exact.quantize(Decimal(1).scaleb(-SHARE_DIGITS), rounding=ROUND_HALF_EVEN, context=context)))


def _by_epochs(spec: StageSpec, components: Sequence[ComponentPacks]) -> tuple[dict[str, int], int]:
    """Weights n_packs x epochs and their sum as length, so every component ends exactly; a broken epoch by largest remainder."""
    exact = {c.name: c.n_packs * Fraction(spec.epochs) for c in components}
    empty = sorted(name for name, packs in exact.items() if not packs)
    if empty:
        raise MixtureError(f"stage {spec.name!r}: {empty} have no packs, so {spec.epochs} epochs of them do not exist")
    length = int(sum(exact.values()))
    return largest_remainder(exact, length), length


def _by_shares(spec: StageSpec, components: Sequence[ComponentPacks]) -> tuple[dict[str, int], int]:
    """Length = floor(budget_tokens / mean loss tokens of a position), the mean being taken under the integer weights."""
    weights = share_weights(spec.shares, components)
    mean = sum(Fraction(weights[c.name] * c.n_loss_tokens, c.n_packs) for c in components if c.name in weights) / sum(weights.values())
    length = int(spec.budget_tokens / mean)
    if length < 1:
        raise MixtureError(
            f"stage {spec.name!r}: budget_tokens {spec.budget_tokens} is less than one position, {float(mean):.1f} loss tokens"
        )
    return weights, length


def _check_caps(
    counts: Sequence[Mapping[str, int]],
    stages: Sequence[StageGeometry],
    components: Mapping[str, ComponentPacks],
    caps: Mapping[str, Decimal],
) -> None:
    problems = []
    for name, component in components.items():
        asked = sum(delivered[name] for delivered in counts)
        allowed = Fraction(caps[name]) * component.n_packs
        if asked > allowed:
            where = [stage.name for stage in stages if stage.weights.get(name)]
            problems.append(
                f"component {name!r} (stages {where}): {asked} packs asked, {float(Fraction(asked, component.n_packs)):.4g} epochs of its "
                f"{component.n_packs}; allowed {int(allowed)} packs, max_epochs {to_json(caps[name])}"
            )
    if problems:
        raise MixtureError(
            "repeats beyond the stated cap: " + "; ".join(problems) + ". Lower the share or budget_tokens, add data, or raise max_epochs"
        )


def _enumerated(component: ComponentPacks, first: int, last: int, seed: str) -> int:
    """Loss tokens of the component's packs number first..last - 1, from the order itself.

    The order of a component's packs depends on seed, name and epoch alone, so a run of this one component, in two stages that
    part at `first`, delivers exactly these packs in the second.
    """
    weight = {component.name: 1}
    order = Order(seed, [StageGeometry("before", first, weight), StageGeometry("here", last - first, weight)], [component.geometry])
    shard_start = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.array(component.shard_packs, np.int64))])
    total = 0
    for begin in range(first, last, CHUNK):
        found = order.locate(np.arange(begin, min(begin + CHUNK, last)))
        total += int(component.labels[shard_start[found.shard] + found.pack].sum())
    return total
