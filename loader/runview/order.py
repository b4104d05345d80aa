"""Order version 1: which pack stands at a global position, as a pure function. README.md, "Order", states it in full.

Nothing is stored and nothing random is drawn: seeded bijections of [0, n) give the shuffles, an integer Huffman tree
gives the mixture. Everything is uint64 arithmetic with limits checked beforehand, vectorised over positions.

Legend: k global position; j position in its stage; c how many packs of the same component came before in the stage;
u the same over all stages; i place in the epoch.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from runview.canonical import canonical_json
from runview.huffman import Tree
from runview.permutation import permute_each, unpermute_each

ORDER_VERSION = 1
BLOCK = 1024  # positions shuffled together inside a stage, so that components never alias with ranks
LIMIT = 2**63

Array = np.ndarray[Any, Any]


def keys(seed: str, *parts: str | int) -> Array:
    """The six round keys, uint32 [6], of one named permutation.

    blake2b with 24 bytes over canonical JSON [seed, *parts], read little-endian. A seed is a hex string.
    """
    value = hashlib.blake2b(canonical_json([seed, *parts]), digest_size=24).digest()
    return np.frombuffer(value, "<u4").astype(np.uint32)


def permute(x: Array | int, n: int, key: Array) -> Array:
    """P(x): a keyed bijection of [0, n), elementwise over x; uint64. `key` from `keys`; 1 <= n <= 2^63.

    >>> sorted(permute(np.arange(5), 5, keys("00", "index", "web", 0)).tolist())
    [0, 1, 2, 3, 4]
    """
    values = np.atleast_1d(np.asarray(x, dtype=np.uint64))
    return permute_each(values, np.full(values.shape, n, np.uint64), np.broadcast_to(key[:, None], (6, len(values))))


def unpermute(y: Array | int, n: int, key: Array) -> Array:
    """The inverse of `permute`."""
    values = np.atleast_1d(np.asarray(y, dtype=np.uint64))
    return unpermute_each(values, np.full(values.shape, n, np.uint64), np.broadcast_to(key[:, None], (6, len(values))))


@dataclass(frozen=True)
class ComponentGeometry:
    """A component's name, shards per shuffling window, and the packs of each shard in catalog order."""

    name: str
    window: int
    n_packs: Sequence[int] | Array


@dataclass(frozen=True)
class StageGeometry:
    """A stage's name, length in positions, and integer pack weight by component (absent means 0)."""

    name: str
    length: int
    weights: Mapping[str, int]


@dataclass(frozen=True)
class Located:
    """For each position: numbers of stage and component, epoch, shard's ordinal in the catalog, pack in its index."""

    stage: Array
    component: Array
    epoch: Array
    shard: Array
    pack: Array


class _Epoch:
    """The shards of one component in the order of one epoch, with the windows they form."""

    def __init__(self, seed: str, component: ComponentGeometry, sizes: Array, epoch: int) -> None:
        n_shards = len(sizes)
        self.shard_at = permute(np.arange(n_shards), n_shards, keys(seed, "shards", component.name, epoch)).astype(np.int64)
        self.rank_of = np.empty(n_shards, np.int64)
        self.rank_of[self.shard_at] = np.arange(n_shards)
        n_windows = -(-n_shards // component.window)
        edges = np.arange(n_windows + 1, dtype=np.int64) * n_shards // n_windows
        self.first_pack = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes[self.shard_at])])  # of each rank
        self.window_start = self.first_pack[edges]
        self._keys: dict[int, Array] = {}
        self._parts = (seed, component.name, epoch)

    def windows(self, i: Array) -> tuple[Array, Array, Array]:
        """For places in the epoch: first pack and number of packs of the window each lies in, and its keys [6, n]."""
        window = np.searchsorted(self.window_start, i, side="right") - 1
        used, which = np.unique(window, return_inverse=True)
        table = np.stack([self._window_keys(int(t)) for t in used], axis=1)
        start = self.window_start[window]
        return start, self.window_start[window + 1] - start, table[:, which]

    def _window_keys(self, window: int) -> Array:
        if window not in self._keys:
            seed, name, epoch = self._parts
            self._keys[window] = keys(seed, "packs", name, epoch, window)
        return self._keys[window]


class Order:
    """The order of a run view. Needs only geometry, no file.

    Raises ValueError when a weighted component has no pack, a weight names no component, or a stage's length times
    its weight sum, or the packs any component delivers, could reach 2^63.
    Invariant: position -> (component, epoch, shard, pack) is injective; every epoch but a component's last is complete.
    """

    def __init__(self, seed: str, stages: Sequence[StageGeometry], components: Sequence[ComponentGeometry]) -> None:
        if not seed or not set(seed) <= set("0123456789abcdef"):
            raise ValueError("seed must be a lower-case hex string")
        self.seed, self.stages, self.components = seed, tuple(stages), tuple(components)
        self.names = [component.name for component in components]
        if len(set(self.names)) != len(self.names):
            raise ValueError("component names must be unique")
        self._sizes = [np.asarray(component.n_packs, dtype=np.int64) for component in components]
        for component, sizes in zip(components, self._sizes, strict=True):
            if component.window < 1 or (sizes < 0).any():
                raise ValueError(f"component {component.name!r} needs window >= 1 and non-negative pack counts")
        self.n_packs = np.array([int(sizes.sum()) for sizes in self._sizes], np.int64)
        self._trees = [self._tree(stage) for stage in self.stages]
        self._starts = [0]
        for stage in self.stages:
            self._starts.append(self._starts[-1] + stage.length)
        self.length = self._starts[-1]
        if self.length >= LIMIT:
            raise ValueError(f"the stages hold {self.length} positions, fewer than 2^63 expected")
        bases = [[0] * len(self.names)]
        for number, stage in enumerate(self.stages):
            counts = self.counts(number, stage.length)
            bases.append([base + counts[name] for base, name in zip(bases[-1], self.names, strict=True)])
        self._bases = np.array(bases, np.int64).reshape(len(bases), len(self.names))
        self._epochs: OrderedDict[tuple[int, int], _Epoch] = OrderedDict()
        self._block_keys: OrderedDict[tuple[int, int], Array] = OrderedDict()

    def locate(self, positions: Array) -> Located:
        """What stands at each global position; ValueError for one outside [0, length)."""
        k = np.atleast_1d(np.asarray(positions, np.int64))
        if k.size and (int(k.min()) < 0 or int(k.max()) >= self.length):
            raise ValueError(f"positions must lie in [0, {self.length}), found {int(k.min())} to {int(k.max())}")
        stage = np.searchsorted(np.array(self._starts[1:], np.int64), k, side="right")
        component, u = np.zeros_like(k), np.zeros_like(k)
        for number in np.unique(stage).tolist():
            at = np.flatnonzero(stage == number)
            slot = self._block_shuffle(number, k[at] - self._starts[number])
            component[at], count = self._trees[number].split(slot)
            u[at] = self._bases[number][component[at]] + count
        packs = self.n_packs[component]
        epoch = u // packs
        groups = _groups(component, epoch)
        rank_pack = self._shuffle(groups, u - epoch * packs)
        shard, pack = np.zeros_like(k), np.zeros_like(k)
        for group, at in groups:
            table = self._epoch(*group)
            rank = np.searchsorted(table.first_pack, rank_pack[at], side="right") - 1
            shard[at], pack[at] = table.shard_at[rank], rank_pack[at] - table.first_pack[rank]
        return Located(stage, component, epoch, shard, pack)

    def counts(self, stage: int, length: int) -> dict[str, int]:
        """Packs of each component among the first `length` positions of a stage.

        Closed form, O(components), plus at most one block of 1024 when `length` cuts a block.
        """
        whole = self.stages[stage].length
        if not 0 <= length <= whole:
            raise ValueError(f"length must lie in [0, {whole}], found {length}")
        edge = length if length == whole else length - length % BLOCK
        counts = self._trees[stage].counts(edge)
        if edge < length:
            part, _ = self._trees[stage].split(self._block_shuffle(stage, np.arange(edge, length, dtype=np.int64)))
            counts += np.bincount(part, minlength=len(self.names))
        return dict(zip(self.names, counts.tolist(), strict=True))

    def positions(self, component: Array, epoch: Array, shard: Array, pack: Array) -> Array:
        """The inverse of `locate`: the position of each (component, epoch, shard, pack), -1 where never reached."""
        component, epoch, shard, pack = (np.atleast_1d(np.asarray(a, np.int64)) for a in (component, epoch, shard, pack))
        result = np.full(component.shape, -1, np.int64)
        for (number, round_), at in _groups(component, epoch):
            if not 0 <= number < len(self.names) or round_ < 0:
                raise ValueError(f"component {number} or epoch {round_} does not exist")
            sizes = self._sizes[number]
            if ((shard[at] < 0) | (shard[at] >= len(sizes))).any() or (
                (pack[at] < 0) | (pack[at] >= sizes[np.clip(shard[at], 0, len(sizes) - 1)])
            ).any():
                raise ValueError(f"component {self.names[number]!r} has no such shard or pack")
            if round_ * int(self.n_packs[number]) >= int(self._bases[-1][number]):
                continue
            table = self._epoch(number, round_)
            rank_pack = table.first_pack[table.rank_of[shard[at]]] + pack[at]
            whole = [((number, round_), np.arange(len(at)))]
            u = round_ * int(self.n_packs[number]) + self._shuffle(whole, rank_pack, inverse=True)
            stage = np.searchsorted(self._bases[1:, number], u, side="right")
            for stage_number in np.unique(stage[u < self._bases[-1][number]]).tolist():
                here = np.flatnonzero(stage == stage_number)
                slot = self._trees[stage_number].join(number, u[here] - int(self._bases[stage_number][number]))
                j = self._block_shuffle(stage_number, slot, inverse=True)
                result[at[here]] = self._starts[stage_number] + j
        return result

    def _shuffle(self, groups: "list[tuple[tuple[int, int], Array]]", i: Array, *, inverse: bool = False) -> Array:
        """Place in the epoch -> place in rank order (or back), by the permutations of the windows; all groups at once,
        since walking back into range takes some thirty rounds of numpy calls, however few the elements."""
        start, size, key = np.zeros_like(i), np.ones_like(i), np.zeros((6, len(i)), np.uint32)
        for group, at in groups:
            start[at], size[at], key[:, at] = self._epoch(*group).windows(i[at])
        function = unpermute_each if inverse else permute_each
        shuffled: Array = start + function((i - start).astype(np.uint64), size.astype(np.uint64), key).astype(np.int64)
        return shuffled

    def _tree(self, stage: StageGeometry) -> Tree:
        unknown = set(stage.weights) - set(self.names)
        if unknown:
            raise ValueError(f"stage {stage.name!r} weighs {sorted(unknown)}, which are no components")
        weights = [stage.weights.get(name, 0) for name in self.names]
        if stage.length < 0 or min(weights, default=0) < 0 or (stage.length and not sum(weights)):
            raise ValueError(f"stage {stage.name!r} needs a length >= 0, weights >= 0 and one above 0")
        if stage.length * sum(weights) >= LIMIT:
            raise ValueError(f"stage {stage.name!r}: length x weight sum = {stage.length * sum(weights)}, below 2^63 expected")
        for name, weight, packs in zip(self.names, weights, self.n_packs.tolist(), strict=True):
            if stage.length and weight and not packs:
                raise ValueError(f"stage {stage.name!r} weighs component {name!r}, which has no packs")
        return Tree(weights)

    def _block_shuffle(self, stage: int, j: Array, *, inverse: bool = False) -> Array:
        block, offset = np.divmod(j, BLOCK)
        used, which = np.unique(block, return_inverse=True)
        table = np.stack([self._block_key(stage, int(b)) for b in used], axis=1) if len(used) else np.zeros((6, 0), np.uint32)
        size = np.minimum(BLOCK, self.stages[stage].length - block * BLOCK).astype(np.uint64)
        function = unpermute_each if inverse else permute_each
        shuffled: Array = block * BLOCK + function(offset.astype(np.uint64), size, table[:, which]).astype(np.int64)
        return shuffled

    def _block_key(self, stage: int, block: int) -> Array:
        key = self._block_keys.get((stage, block))
        if key is None:
            key = self._block_keys[stage, block] = keys(self.seed, "block", stage, block)
            if len(self._block_keys) > 4096:
                self._block_keys.popitem(last=False)
        return key

    def _epoch(self, component: int, epoch: int) -> _Epoch:
        table = self._epochs.get((component, epoch))
        if table is None:
            table = _Epoch(self.seed, self.components[component], self._sizes[component], epoch)
            self._epochs[component, epoch] = table
            if len(self._epochs) > 4 * len(self.names) + 16:
                self._epochs.popitem(last=False)
        return table


def _groups(component: Array, epoch: Array) -> list[tuple[tuple[int, int], Array]]:
    """Indices grouped by (component, epoch), in the order of first appearance after a stable sort."""
    if not len(component):
        return []
    by = np.lexsort((epoch, component))
    cut = np.flatnonzero((np.diff(component[by]) != 0) | (np.diff(epoch[by]) != 0)) + 1
    return [((int(component[at[0]]), int(epoch[at[0]])), at) for at in np.split(by, cut)]
