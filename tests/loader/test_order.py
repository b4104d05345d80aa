"""Order version 1: golden vectors, a second implementation in plain integers, bijections, inverses, statistics."""

import hashlib
import json
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runview.huffman import Tree
from runview.order import ComponentGeometry, Order, StageGeometry, keys, permute, unpermute

SEED = "00112233445566778899aabbccddeeff"


# A second implementation, from the text of the format alone: plain integers, one position at a time.


def ref_keys(*parts: Any) -> list[int]:
    text = json.dumps(list(parts), separators=(",", ":"))
    raw = hashlib.blake2b(text.encode(), digest_size=24).digest()
    return [int.from_bytes(raw[4 * i : 4 * i + 4], "little") for i in range(6)]


def ref_fmix32(h: int) -> int:
    h ^= h >> 16
    h = h * 0x85EBCA6B % 2**32
    h ^= h >> 13
    h = h * 0xC2B2AE35 % 2**32
    return h ^ (h >> 16)


def ref_permute(x: int, n: int, *parts: Any) -> int:
    if n == 1:
        return 0
    bits = 2
    while 2**bits < n:
        bits += 2
    h = bits // 2
    while True:
        left, right = x >> h, x % 2**h
        for key in ref_keys(*parts):
            left, right = right, left ^ (ref_fmix32(right ^ key) % 2**h)
        x = left * 2**h + right
        if x < n:
            return x


def ref_tree(weights: list[int]) -> Any:
    nodes: list[Any] = [(w, number, name) for number, (name, w) in enumerate((c, w) for c, w in enumerate(weights) if w)]
    queue, created = list(nodes), len(nodes)
    while len(queue) > 1:
        queue.sort(key=lambda node: node[:2])
        left, right, *queue = queue
        queue.append((left[0] + right[0], created, (left, right)))
        created += 1
    return queue[0]


def ref_split(tree: Any, x: int) -> tuple[int, int]:
    while isinstance(tree[2], tuple):
        left, right = tree[2]
        total = tree[0]
        below, above = (x * left[0] + total // 2) // total, ((x + 1) * left[0] + total // 2) // total
        tree, x = (left, below) if above > below else (right, x - below)
    return tree[2], x


def ref_locate(seed: str, stages: list[Any], components: list[Any], k: int) -> tuple[int, int, int, int, int]:
    start, used = 0, [0] * len(components)
    for m, (_, length, weights) in enumerate(stages):
        tree = ref_tree([weights.get(name, 0) for name, _, _ in components])
        if k < start + length:
            b, s = divmod(k - start, 1024)
            slot = 1024 * b + ref_permute(s, min(1024, length - 1024 * b), seed, "block", m, b)
            comp, c = ref_split(tree, slot)
            name, window, sizes = components[comp]
            epoch, i = divmod(used[comp] + c, sum(sizes))
            n = len(sizes)
            by_rank = [ref_permute(r, n, seed, "shards", name, epoch) for r in range(n)]
            q = -(-n // window)
            for t in range(q):
                members = by_rank[t * n // q : (t + 1) * n // q]
                packs = [(shard, p) for shard in members for p in range(sizes[shard])]
                if i < len(packs):
                    shard, pack = packs[ref_permute(i, len(packs), seed, "packs", name, epoch, t)]
                    return m, comp, epoch, shard, pack
                i -= len(packs)
        for x in range(length):
            used[ref_split(tree, x)[0]] += 1
        start += length
    raise AssertionError("past the end")


STAGES = [("base", 2500, {"web": 11, "code": 4, "math": 1}), ("anneal", 1100, {"code": 1, "math": 3})]
COMPONENTS = [("web", 2, [300, 0, 120, 77, 5]), ("code", 1, [90, 91]), ("math", 3, [64, 64, 1, 200])]


def make_order(seed: str = SEED) -> Order:
    return Order(seed, [StageGeometry(*s) for s in STAGES], [ComponentGeometry(*c) for c in COMPONENTS])


def test_golden_keys_and_permutations() -> None:
    assert keys(SEED, "packs", "web", 0, 3).tolist() == GOLDEN["keys"]
    for n, expected in GOLDEN["permute"].items():
        assert permute(np.arange(min(n, 8)), n, keys(SEED, "index", "web", 0)).tolist() == expected


def test_golden_tree_and_locate() -> None:
    component, count = Tree([5, 0, 2, 1]).split(np.arange(12))
    assert list(zip(component.tolist(), count.tolist(), strict=True)) == GOLDEN["tree"]
    found = make_order().locate(np.array([0, 1, 1023, 1024, 2047, 2499, 2500, 3599]))
    columns = (found.stage, found.component, found.epoch, found.shard, found.pack)
    assert list(zip(*(c.tolist() for c in columns), strict=True)) == GOLDEN["locate"]


def test_golden_digest_of_a_whole_order() -> None:
    order = make_order()
    found = order.locate(np.arange(order.length))
    table = np.stack([found.stage, found.component, found.epoch, found.shard, found.pack], axis=1).astype("<i8")
    assert hashlib.sha256(table.tobytes()).hexdigest() == GOLDEN["order_sha256"]


def test_second_implementation_agrees() -> None:
    order = make_order()
    some = [0, 1, 5, 1000, 1023, 1024, 1500, 2047, 2048, 2300, 2499, 2500, 2501, 3000, 3523, 3524, 3598, 3599]
    found = order.locate(np.array(some))
    columns = (found.stage, found.component, found.epoch, found.shard, found.pack)
    assert list(zip(*(c.tolist() for c in columns), strict=True)) == [ref_locate(SEED, STAGES, COMPONENTS, k) for k in some]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 16, 17, 4095, 4096, 4097, 99991, 2**20 - 1, 2**20, 2**20 + 1])
def test_permute_is_a_bijection_with_an_inverse(n: int) -> None:
    key = keys(SEED, "index", "web", n)
    image = permute(np.arange(n), n, key)
    assert (np.bincount(image.astype(np.int64), minlength=n) == 1).all()
    assert (unpermute(image, n, key) == np.arange(n, dtype=np.uint64)).all()
    some = range(0, n, max(1, n // 7))
    assert [int(image[x]) for x in some] == [ref_permute(x, n, SEED, "index", "web", n) for x in some]


@pytest.mark.parametrize("n", [3_000_000_000, 3_000_000_019, 2**40 + 1, 2**62 + 1, 2**63])
def test_permute_inverse_on_numbers_too_large_to_list(n: int) -> None:
    key = keys(SEED, "index", "web", 0)
    x = np.random.default_rng(n).integers(0, n, 2000, dtype=np.uint64)
    image = permute(x, n, key)
    assert int(image.max()) < n
    assert len(np.unique(image)) == len(np.unique(x))
    assert (unpermute(image, n, key) == x).all()
    assert [int(v) for v in image[:3]] == [ref_permute(int(v), n, SEED, "index", "web", 0) for v in x[:3]]


def test_permute_refuses_what_is_outside() -> None:
    with pytest.raises(ValueError, match=r"5 is outside \[0, 5\)"):
        permute(np.array([5]), 5, keys(SEED, "x"))


def variance_ratio(flags: np.ndarray, window: int = 1024) -> float:
    """Variance of a property's count over windows, against sampling without replacement."""
    n = len(flags) // window * window
    counts = flags[:n].reshape(-1, window).sum(axis=1)
    p, size = flags.mean(), len(flags)
    return float(counts.var() / (window * p * (1 - p) * (size - window) / (size - 1)))


def pair_z(a: np.ndarray, b: np.ndarray, n: int) -> float:
    """z of the 32 x 32 chi-squared test of independence of two equally long series over [0, n)."""
    cells = np.bincount((a * 32 // n) * 32 + b * 32 // n, minlength=1024)
    expected = len(a) / 1024
    chi = float(((cells - expected) ** 2 / expected).sum())
    return (chi - 961) / math.sqrt(2 * 961)


def test_order_quality_statistics() -> None:
    n = 2_000_003
    epochs = [permute(np.arange(n), n, keys(SEED, "packs", "web", e, 0)).astype(np.int64) for e in (0, 1)]
    image = epochs[0]
    for flags in (image % 2 == 0, image % 8 == 3, image < n // 8, image // 15625 == 40):
        assert 0.9 < variance_ratio(flags) < 1.1
    assert abs(pair_z(image[:-1], image[1:], n)) < 4
    assert abs(pair_z(epochs[0], epochs[1], n)) < 4
    assert len(np.unique(np.diff(image))) > 0.6 * n  # 1 - 1/e would be all distinct draws; a linear map has one


def test_number_of_cycles_is_that_of_a_random_permutation() -> None:
    n, counts = 20_011, []
    for epoch in range(20):
        image = permute(np.arange(n), n, keys(SEED, "packs", "web", epoch, 0)).tolist()
        seen, cycles = bytearray(n), 0
        for start in range(n):
            if not seen[start]:
                cycles += 1
                while not seen[start]:
                    seen[start] = 1
                    start = image[start]
        counts.append(cycles)
    expected = math.log(n) + 0.5772
    assert abs(sum(counts) / 20 - expected) < 4 * math.sqrt(expected / 20)


@pytest.mark.parametrize("n_components", [1, 2, 5, 30, 306])
def test_mixture_discrepancy_at_any_prefix(n_components: int) -> None:
    rng = np.random.default_rng(n_components)
    shares = rng.dirichlet(np.full(n_components, 0.3))
    weights = np.maximum(1, (shares * 2**24).astype(np.int64)).tolist()
    tree, total = Tree(weights), sum(weights)
    for t in rng.integers(0, 10**10, 800).tolist():
        counts = tree.counts(t)
        assert int(counts.sum()) == t
        worst = max(abs(int(c) * total - t * w) for c, w in zip(counts.tolist(), weights, strict=True))
        assert worst <= 1.5 * total


@given(st.lists(st.integers(0, 2**24), min_size=1, max_size=12).filter(any), st.integers(0, 5000))
@settings(max_examples=80, deadline=None)
def test_tree_splits_exactly_and_joins_back(weights: list[int], length: int) -> None:
    tree = Tree(weights)
    component, count = tree.split(np.arange(length))
    assert np.bincount(component, minlength=len(weights)).tolist() == tree.counts(length).tolist()
    for number, weight in enumerate(weights):
        mine = np.flatnonzero(component == number)
        assert count[mine].tolist() == list(range(len(mine)))
        if weight:
            assert tree.join(number, count[mine]).tolist() == mine.tolist()
        else:
            assert not len(mine)


def test_tree_at_the_limit_of_64_bits() -> None:
    weights = [2**24 - 3, 2, 1]
    tree, length = Tree(weights), (2**63 - 1) // 2**24
    slots = np.array([0, 1, length - 2, length - 1])
    component, count = tree.split(slots)
    assert [ref_split(ref_tree(weights), int(x)) for x in slots] == list(zip(component.tolist(), count.tolist(), strict=True))
    for number in np.unique(component).tolist():
        at = component == number
        assert tree.join(number, count[at]).tolist() == slots[at].tolist()
    with pytest.raises(ValueError, match=r"below 2\^63"):
        Order("aa", [StageGeometry("s", 2**39, {"a": 2**24})], [ComponentGeometry("a", 1, [5])])


geometries = st.lists(
    st.tuples(st.integers(1, 6), st.lists(st.integers(0, 40), min_size=1, max_size=7).filter(any)), min_size=1, max_size=4
)


@given(geometries, st.lists(st.tuples(st.integers(1, 2600), st.integers(0, 10**9)), min_size=1, max_size=3), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_positions_and_packs_correspond(shapes: list[Any], stages: list[tuple[int, int]], seed: int) -> None:
    components = [ComponentGeometry(f"c{n}", window, sizes) for n, (window, sizes) in enumerate(shapes)]
    rng = np.random.default_rng(seed)
    declared = []
    for n, (length, weight) in enumerate(stages):
        weights = {c.name: int(rng.integers(0, 50)) for c in components}
        weights["c0"] = max(weights["c0"], weight % 50, 1)
        declared.append(StageGeometry(f"s{n}", length, weights))
    order = Order(f"{seed:02x}", declared, components)
    everything = np.arange(order.length)
    found = order.locate(everything)
    assert (order.positions(found.component, found.epoch, found.shard, found.pack) == everything).all()
    for number, component in enumerate(components):  # every epoch but the last is complete, the last is a part of one
        mine = found.component == number
        last = int(found.epoch[mine].max()) if mine.any() else 0
        for epoch in range(last + 1):
            at = mine & (found.epoch == epoch)
            packs = set(zip(found.shard[at].tolist(), found.pack[at].tolist(), strict=True))
            assert len(packs) == at.sum()
            if epoch < last:
                assert packs == {(s, p) for s, size in enumerate(component.n_packs) for p in range(size)}
    for number, stage in enumerate(declared):
        start = sum(s.length for s in declared[:number])
        for length in {0, 1, min(1024, stage.length), int(rng.integers(0, stage.length + 1)), stage.length}:
            counts = np.bincount(found.component[start : start + length], minlength=len(components))
            assert list(order.counts(number, length).values()) == counts.tolist()


def test_what_a_view_never_reaches_has_no_position() -> None:
    order = make_order()
    everything = order.locate(np.arange(order.length))
    last = int(everything.epoch[everything.component == 0].max())
    reached = {
        (s, p)
        for c, e, s, p in zip(
            everything.component.tolist(), everything.epoch.tolist(), everything.shard.tolist(), everything.pack.tolist(), strict=True
        )
        if (c, e) == (0, last)
    }
    missing = next((s, p) for s, size in enumerate(COMPONENTS[0][2]) for p in range(size) if (s, p) not in reached)
    result = order.positions(np.array([0, 0]), np.array([last, last + 7]), np.array([missing[0], 0]), np.array([missing[1], 0]))
    assert result.tolist() == [-1, -1]


def test_mixture_deviates_by_less_than_two_packs_at_block_boundaries() -> None:
    weights = {"web": 2**24 - 4_000_001, "code": 3_000_000, "math": 1_000_000, "rare": 1}
    order = Order(SEED, [StageGeometry("s", 100 * 1024, weights)], [ComponentGeometry(n, 4, [1000] * 9) for n in weights])
    found = order.locate(np.arange(order.length))
    total = sum(weights.values())
    for t in range(0, order.length + 1, 1024):
        counts = np.bincount(found.component[:t], minlength=4).tolist()
        assert counts == list(order.counts(0, t).values())
        assert all(abs(c - t * w / total) < 2 for c, w in zip(counts, weights.values(), strict=True))


def test_components_do_not_alias_with_ranks() -> None:
    order = Order(SEED, [StageGeometry("s", 64 * 1024, {"a": 1, "b": 1})], [ComponentGeometry(n, 4, [1000] * 9) for n in "ab"])
    component = order.locate(np.arange(order.length)).component
    for ranks in (2, 8, 64):
        shares = [component[rank::ranks].mean() for rank in range(ranks)]
        assert max(abs(share - 0.5) for share in shares) < 4 * 0.5 / math.sqrt(order.length / ranks)


def test_a_stage_by_epochs_ends_every_component_exactly() -> None:
    sizes = {"a": [7, 9], "b": [100], "c": [3, 3, 3]}
    weights = {name: sum(size) * 3 for name, size in sizes.items()}
    order = Order(
        SEED, [StageGeometry("s", sum(weights.values()), weights)], [ComponentGeometry(name, 2, size) for name, size in sizes.items()]
    )
    assert order.counts(0, order.length) == weights


def test_order_depends_on_each_of_its_inputs_and_on_nothing_else() -> None:
    base = make_order().locate(np.arange(3600))
    other = make_order("ff" * 16).locate(np.arange(3600))
    assert (base.pack != other.pack).mean() > 0.5
    backwards = make_order().locate(np.arange(3600)[::-1])
    for name in ("stage", "component", "epoch", "shard", "pack"):
        assert (getattr(backwards, name)[::-1] == getattr(base, name)).all()
    pieces = [make_order().locate(np.arange(a, b)).pack for a, b in pairwise([0, 1, 1000, 2500, 3600])]
    assert (np.concatenate(pieces) == base.pack).all()


def test_window_bounds_the_shards_in_use() -> None:
    order = Order(SEED, [StageGeometry("s", 40_960, {"a": 1})], [ComponentGeometry("a", 4, [1024] * 40)])
    shard = order.locate(np.arange(order.length)).shard
    blocks = shard.reshape(-1, 1024)
    assert all(len(np.unique(block)) == 4 for block in blocks)  # each block lies in one window here, of four shards
    assert len(np.unique(shard)) == 40
    assert all(len(np.unique(blocks[start : start + 4])) == 4 for start in range(0, 40, 4))


@pytest.mark.parametrize(
    ("seed", "stages", "components", "message"),
    [
        ("", [], [], "hex"),
        ("XY", [], [], "hex"),
        ("aa", [StageGeometry("s", 1, {"a": 1})], [ComponentGeometry("a", 1, [0, 0])], "no packs"),
        ("aa", [StageGeometry("s", 1, {"b": 1})], [ComponentGeometry("a", 1, [1])], "no components"),
        ("aa", [StageGeometry("s", 1, {"a": 0})], [ComponentGeometry("a", 1, [1])], "one above 0"),
        ("aa", [], [ComponentGeometry("a", 0, [1])], "window"),
        ("aa", [], [ComponentGeometry("a", 1, [1]), ComponentGeometry("a", 1, [1])], "unique"),
    ],
)
def test_order_refuses(seed: str, stages: Any, components: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Order(seed, stages, components)


GOLDEN: dict[str, Any] = {
    "keys": [1349261854, 4247939295, 2608897781, 1504969676, 1275261283, 63878944],
    "permute": {
        1: [0],
        2: [0, 1],
        3: [0, 2, 1],
        5: [0, 4, 3, 1, 2],
        4096: [3354, 2980, 2622, 2702, 3085, 925, 2786, 3773],
        99991: [25801, 67151, 61193, 12324, 90488, 44374, 58321, 72257],
        3000000000: [544381556, 1353392659, 678533469, 2128417172, 1808822713, 2371914439, 854409935, 273014951],
    },
    "tree": [(0, 0), (2, 0), (0, 1), (3, 0), (0, 2), (0, 3), (2, 1), (0, 4), (0, 5), (2, 2), (0, 6), (3, 1)],
    "locate": [
        (0, 0, 0, 0, 55),
        (0, 0, 0, 0, 255),
        (0, 1, 1, 0, 24),
        (0, 0, 1, 2, 55),
        (0, 0, 1, 0, 240),
        (0, 0, 3, 3, 22),
        (1, 1, 4, 1, 38),
        (1, 2, 2, 0, 21),
    ],
    "order_sha256": "ae01f70088feeae2ea88c4716bddd3b347b343321e13df9fccd63a2eac56d2d7",
}
