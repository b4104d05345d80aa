"""Packs: every token once or counted as lost, never over the sequence, best fit as a slow reference does it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.tokenized_shards.packing import pack

CASES = st.tuples(
    st.lists(st.integers(1, 100), max_size=60),
    st.sampled_from([(16, 1), (16, 4), (24, 8), (1, 1), (7, 7), (40, 2)]),
    st.sampled_from(["concat", "best_fit"]),
    st.sampled_from(["drop", "masked_pad"]),
)


def made(lengths, size, policy, tail):
    seq_len, multiple = size
    return pack(np.array(lengths, np.int64), seq_len=seq_len, policy=policy, segment_multiple=multiple, tail_pack=tail)


def room(plan, multiple):
    return np.add.reduceat(-(-plan.segment_length // multiple) * multiple, plan.pack_offsets[:-1]) if plan.n_packs else np.zeros(0, int)


def packs_of(plan):
    segments = list(zip(plan.segment_doc.tolist(), plan.segment_start.tolist(), plan.segment_length.tolist(), strict=True))
    return [segments[a:b] for a, b in zip(plan.pack_offsets[:-1], plan.pack_offsets[1:], strict=True)]


@given(CASES)
@settings(max_examples=400, deadline=None)
def test_every_token_lies_in_one_pack_or_is_counted_as_lost(case):
    lengths, (seq_len, multiple), _, tail = case
    plan = made(*case)
    covered = [np.zeros(length, int) for length in lengths]
    for doc, start, length in zip(plan.segment_doc.tolist(), plan.segment_start.tolist(), plan.segment_length.tolist(), strict=True):
        assert length >= 1
        assert start + length <= lengths[doc]
        covered[doc][start : start + length] += 1
    flat = np.concatenate([*covered, np.zeros(0, int)])
    assert flat.max(initial=0) <= 1
    assert int((flat == 0).sum()) == sum(plan.lost.values())
    assert tail == "drop" or not sum(plan.lost.values())
    assert plan.pack_offsets[0] == 0
    assert plan.pack_offsets[-1] == len(plan.segment_doc)
    assert (np.diff(plan.pack_offsets) > 0).all()
    assert (room(plan, multiple) <= seq_len).all()
    again = made(*case)
    assert all(np.array_equal(getattr(plan, name), getattr(again, name)) for name in ("pack_offsets", "segment_doc", "segment_start"))


@given(CASES)
@settings(max_examples=200, deadline=None)
def test_only_long_documents_are_split_by_best_fit(case):
    lengths, (seq_len, multiple), _, _ = case
    plan = made(lengths, (seq_len, multiple), "best_fit", "masked_pad")
    pieces = np.bincount(plan.segment_doc, minlength=len(lengths))
    assert pieces.tolist() == [-(-length // seq_len) for length in lengths]


@given(CASES)
@settings(max_examples=200, deadline=None)
def test_concat_fills_every_pack_but_the_last(case):
    lengths, (seq_len, multiple), _, _ = case
    plan = made(lengths, (seq_len, multiple), "concat", "masked_pad")
    assert (room(plan, multiple)[:-1] == seq_len).all()
    assert (np.diff(plan.segment_doc) >= 0).all()


@given(st.lists(st.integers(1, 50), max_size=60), st.sampled_from([16, 33, 50]))
@settings(max_examples=200, deadline=None)
def test_best_fit_is_best_fit_decreasing(lengths, seq_len):
    """Each item goes where the least room is left, so the multiset of pack contents is that of a slow search."""
    plan = pack(np.array(lengths, np.int64), seq_len=seq_len, policy="best_fit")
    rooms: list[int] = []
    for size in sorted((length % seq_len for length in lengths if length % seq_len), reverse=True):
        fits = [left for left in rooms if left >= size]
        left = min(fits) if fits else seq_len
        if fits:
            rooms.remove(left)
        rooms.append(left - size)
    full = sum(length // seq_len for length in lengths)
    assert sorted(seq_len - room(plan, 1)) == sorted(rooms + [0] * full)


def test_concat_by_example():
    plan = pack(np.array([5, 9, 2]), seq_len=6, policy="concat")
    assert packs_of(plan) == [[(0, 0, 5), (1, 0, 1)], [(1, 1, 6)], [(1, 7, 2), (2, 0, 2)]]
    rounded = pack(np.array([5, 9, 2]), seq_len=8, policy="concat", segment_multiple=4)
    assert packs_of(rounded) == [[(0, 0, 5)], [(1, 0, 8)], [(1, 8, 1), (2, 0, 2)]]


def test_best_fit_by_example():
    """14 = 6 + 6 + 2: the full pieces come right before the pack of the remainder, which begins with it."""
    plan = pack(np.array([3, 14, 6, 1, 12]), seq_len=6, policy="best_fit")
    assert packs_of(plan) == [[(2, 0, 6)], [(4, 0, 6)], [(4, 6, 6)], [(1, 0, 6)], [(1, 6, 6)], [(1, 12, 2), (0, 0, 3), (3, 0, 1)]]


def test_tail_is_dropped_only_when_it_is_not_full():
    assert pack(np.array([6, 6]), seq_len=6, policy="concat", tail_pack="drop").lost == {"tail_dropped": 0}
    plan = pack(np.array([6, 4]), seq_len=6, policy="concat", tail_pack="drop")
    assert (plan.n_packs, plan.lost) == (1, {"tail_dropped": 4})
    assert pack(np.zeros(0, int), seq_len=6, policy="best_fit", tail_pack="drop").n_packs == 0


@pytest.mark.parametrize("policy", ["concat", "best_fit"])
def test_nearly_all_room_is_used_on_realistic_lengths(policy):
    """99 % at 2048 on log-normal lengths, like those of web pages and code files (mean about 830 tokens)."""
    lengths = np.maximum(1, np.random.default_rng(7).lognormal(6.0, 1.2, 50_000)).astype(np.int64)
    plan = pack(lengths, seq_len=2048, policy=policy)
    assert plan.n_packed_tokens == lengths.sum()
    assert plan.n_packed_tokens / (plan.n_packs * 2048) >= 0.99


@pytest.mark.parametrize(
    ("lengths", "options"),
    [([0], {}), ([1], {"segment_multiple": 5}), ([1], {"seq_len": 0}), ([1], {"policy": "whole"}), ([1], {"tail_pack": "repeat"})],
)
def test_wrong_arguments_are_refused(lengths, options):
    with pytest.raises(ValueError, match="must"):
        pack(np.array(lengths), **{"seq_len": 16, "policy": "concat", **options})
