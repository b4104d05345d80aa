"""Delivery: each position once under any topology, exact resume, cursors, threads, tails, schedules."""

import json
import threading
from collections import Counter
from collections.abc import Callable
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runview import CursorError, Loader, LoaderClosedError, RunView, Topology

Row = tuple[int, bytes]  # position and a pack's ids, tokens and labels

topologies = st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(0, 3))  # dp, micro_batch, threads


def rows_of(batch: Any) -> list[Row]:
    return [
        (position, batch.pack_ids[row].tobytes() + batch.input_ids[row].tobytes() + batch.labels[row].tobytes())
        for row, position in enumerate(batch.positions.tolist())
        if position >= 0
    ]


def run_job(view: RunView, shape: tuple[int, int, int], *, state: Any = None, n_steps: int | None = None) -> tuple[list[list[Row]], Any]:
    """All ranks of a job, from a cursor for a number of steps: the rows of each step by position, and the cursor after."""
    dp, micro_batch, threads = shape
    steps: dict[int, list[Row]] = {}
    states, counts = [], []
    for rank in range(dp):
        with Loader(view, topology=Topology(dp=dp, dp_rank=rank), micro_batch=micro_batch, threads=threads) as loader:
            if state is not None:
                loader.load_state_dict(state)
            start, n_micro = loader.step, 0
            for batch in loader if n_steps != 0 else ():
                steps.setdefault(batch.step, []).extend(rows_of(batch))
                n_micro += 1
                if n_steps is not None and batch.is_last and batch.step - start + 1 == n_steps:
                    break
            states.append(json.loads(json.dumps(loader.state_dict())))
            counts.append((len(loader), n_micro))
    assert all(s == states[0] for s in states)
    assert len(set(counts)) == 1  # as many steps and micro-batches on every rank
    return [sorted(steps[step]) for step in sorted(steps)], states[0]


@pytest.fixture(scope="module")
def views(tiny: Any, helpers: Any) -> Callable[[int, str], RunView]:
    """Views over the same files by global batch and tail policy, with a change of the batch in the middle."""
    opened: dict[tuple[int, str], RunView] = {}
    stages = [(s["name"], s["length"], s["weights"]) for s in tiny.manifest["stages"]]

    def get(global_batch: int, tail_batch: str) -> RunView:
        if (global_batch, tail_batch) not in opened:
            schedule = [(0, global_batch), (global_batch * 3, global_batch + 3), (global_batch * 3 + 5 * (global_batch + 3), 4)]
            built = helpers.variant(tiny, stages=stages, schedule=schedule, tail_batch=tail_batch)
            opened[global_batch, tail_batch] = RunView.open(built.path)
        return opened[global_batch, tail_batch]

    return get


@given(topologies, st.integers(1, 17), st.sampled_from(["drop", "masked_pad"]))
@settings(max_examples=25, deadline=None)
def test_each_position_once_under_any_topology(views: Any, shape: tuple[int, int, int], global_batch: int, tail: str) -> None:
    view = views(global_batch, tail)
    steps, state = run_job(view, shape)
    positions = [position for step in steps for position, _ in step]
    end = view.feed.order.length
    last = 3 * global_batch + 5 * (global_batch + 3)
    delivered = end if tail == "masked_pad" else last + (end - last) // 4 * 4
    assert positions == list(range(delivered))
    sizes = [len(step) for step in steps]
    assert sizes[:8] == [global_batch] * 3 + [global_batch + 3] * 5
    assert set(sizes[8:-1]) <= {4}
    assert state["position"] == delivered
    assert state["step"] == len(steps)
    found = view.order.locate(np.array(positions))
    expected = np.stack([found.component, found.epoch, found.shard, found.pack], axis=1)
    assert [row[1][:32] for step in steps for row in step] == [ids.tobytes() for ids in expected]


@given(topologies, topologies, topologies, st.integers(1, 17), st.integers(0, 12), st.integers(0, 12))
@settings(max_examples=20, deadline=None)
def test_resume_equals_the_uninterrupted_run(views: Any, a: Any, b: Any, c: Any, global_batch: int, k: int, m: int) -> None:
    view = views(global_batch, "masked_pad")
    whole, _ = run_job(view, (1, 5, 0))
    first, state = run_job(view, a, n_steps=k)
    second, state = run_job(view, b, state=state, n_steps=m)
    third, _ = run_job(view, c, state=state)
    assert first + second + third == whole


@pytest.mark.parametrize("world", [1, 8, 64])
def test_same_stream_for_any_world_size(tiny: Any, world: int) -> None:
    view = RunView.open(tiny.path)
    steps, _ = run_job(view, (world, 1, 0))
    reference, _ = run_job(view, (1, 8, 1))
    assert steps == reference


def test_each_pack_of_an_epoch_exactly_once(tiny: Any, helpers: Any) -> None:
    weights = {c.name: sum(c.n_packs) * 2 for c in tiny.components}
    total = sum(weights.values())
    built = helpers.variant(tiny, stages=[("two-epochs", total, weights)], schedule=[(0, 16)], tail_batch="masked_pad")
    view = RunView.open(built.path)
    seen: Counter[tuple[int, ...]] = Counter()
    for rank in range(3):
        with Loader(view, topology=Topology(3, rank), micro_batch=2) as loader:
            seen.update(tuple(ids) for batch in loader for ids in batch.pack_ids.tolist() if ids[0] >= 0)
    assert seen == Counter(
        {
            (c, e, s, p): 1
            for c, source in enumerate(tiny.components)
            for e in range(2)
            for s, n in enumerate(source.n_packs)
            for p in range(n)
        }
    )


def test_state_at_every_micro_batch_restores_the_rest(tiny: Any) -> None:
    view = RunView.open(tiny.path)
    with Loader(view, micro_batch=3, threads=1) as loader:
        taken = []
        for batch in loader:
            taken.append((rows_of(batch), batch.step, batch.is_last, loader.state_dict(), loader.state_dict(after=batch)))
    stream = [row for rows, *_ in taken for row in rows]
    for _, step, is_last, state, after in taken[:40:3]:
        assert state == after  # nothing was fetched ahead by the consumer
        assert state["step"] == step + is_last
        assert state["position"] == 8 * (step + is_last)
        with Loader(view, micro_batch=5, threads=0) as again:
            again.load_state_dict(state)
            assert [row for batch in islice(again, 6) for row in rows_of(batch)] == stream[state["position"] :][:24]


def test_state_after_a_batch_taken_earlier(tiny: Any) -> None:
    with Loader(RunView.open(tiny.path), micro_batch=4) as loader:
        fetched = [next(loader) for _ in range(7)]
        assert [loader.state_dict(after=batch)["step"] for batch in fetched] == [0, 1, 1, 2, 2, 3, 3]
        assert loader.state_dict()["step"] == 3 == loader.step
        assert loader.position == 24


def test_iterating_again_goes_on_and_seek_moves(tiny: Any) -> None:
    view = RunView.open(tiny.path)
    with Loader(view, micro_batch=4) as loader:
        first = [batch.positions.tolist() for batch in islice(loader, 3)]
        second = [batch.positions.tolist() for batch in islice(loader, 3)]
        assert [p for rows in first + second for p in rows] == list(range(24))
        for position in (160, 0, 8, loader.schedule.end_position):
            loader.seek(position)
            assert loader.state_dict()["position"] == position
            assert [p for batch in islice(loader, 2) for p in batch.positions.tolist()] == list(
                range(position, min(position + 8, loader.schedule.end_position))
            )
        assert list(loader) == []
        loader.seek(16)
        alone = loader.batch_at(2)
        assert [rows_of(b) for b in alone] == [rows_of(next(loader)), rows_of(next(loader))]
        assert [b.is_last for b in alone] == [False, True]
        with pytest.raises(CursorError, match="'position': 17 is inside step 2; steps start at 16 and 24"):
            loader.seek(17)
        with pytest.raises(CursorError, match="outside the run"):
            loader.seek(10**9)


def test_plan_is_the_same_on_every_rank_and_says_who_takes_what(tiny: Any) -> None:
    view = RunView.open(tiny.path)
    loaders = [Loader(view, topology=Topology(3, rank), micro_batch=2, threads=0) for rank in range(3)]
    for step in (0, 5, len(loaders[0]) - 1):
        plans = [loader.plan(step) for loader in loaders]
        plan = plans[0]
        assert all((p.positions == plan.positions).all() and p.n_loss_tokens == plan.n_loss_tokens for p in plans)
        assert plan.positions.shape == (3, 2, 2)
        assert plan.n_micro == 2
        assert plan.n_fill == 4
        assert sorted(plan.positions[plan.positions >= 0].tolist()) == list(range(8 * step, 8 * step + 8))
        for rank, loader in enumerate(loaders):
            batches = loader.batch_at(step)
            assert [batch.positions.tolist() for batch in batches] == plan.positions[rank].tolist()
            assert all(batch.n_loss_tokens == plan.n_loss_tokens for batch in batches)
        labels = sum(int((b.labels != -100).sum()) for loader in loaders for b in loader.batch_at(step))
        assert labels == plan.n_loss_tokens
        assert [plan.component.tolist(), plan.pack.tolist()] == [
            view.order.locate(np.arange(8 * step, 8 * step + 8)).component.tolist(),
            view.order.locate(np.arange(8 * step, 8 * step + 8)).pack.tolist(),
        ]
    with pytest.raises(ValueError, match="step must lie in"):
        loaders[0].plan(len(loaders[0]))
    for loader in loaders:
        loader.close()


def test_a_global_batch_larger_than_what_is_located_at_once(tiny: Any, helpers: Any) -> None:
    stages = [("s", 20_000, {"web": 3, "code": 1, "math": 1})]
    built = helpers.variant(tiny, stages=stages, schedule=[(0, 9000)], tail_batch="masked_pad")
    view = RunView.open(built.path)
    positions: list[int] = []
    with Loader(view, topology=Topology(2, 1), micro_batch=1000, threads=0) as loader:
        assert len(loader) == 3
        for batch in loader:
            positions += [p for p in batch.positions.tolist() if p >= 0]
    expected = [p for p in range(18000) if p % 9000 // 1000 % 2 == 1] + list(range(19000, 20000))
    assert positions == expected


def test_validation_delivers_each_pack_once_in_catalog_order(tiny: Any) -> None:
    view = RunView.open(tiny.path)
    feed = view.validation("web")
    source = tiny.validation[0]
    expected = [(s, p) for s, n in enumerate(source.n_packs) for p in range(n)]
    for dp, micro_batch in ((1, 3), (4, 2)):
        rows = []
        for rank in range(dp):
            with Loader(feed, topology=Topology(dp, rank), micro_batch=micro_batch) as loader:
                rows += [
                    (p, tuple(ids[2:])) for b in loader for p, ids in zip(b.positions.tolist(), b.pack_ids.tolist(), strict=True) if p >= 0
                ]
        assert [ids for _, ids in sorted(rows)] == expected
    with Loader(feed, micro_batch=2, global_batch=4) as loader:
        state = loader.state_dict()
        assert len(loader) == -(-len(expected) // 4)
        assert state["order"] == 0
    with Loader(view, micro_batch=2) as training, pytest.raises(CursorError, match="'view_id'"):
        training.load_state_dict(state)
    with pytest.raises(ValueError, match="no validation packs named 'code'"):
        view.validation("code")


def test_cursor_is_small_and_says_nothing_of_the_world(tiny: Any) -> None:
    view = RunView.open(tiny.path)
    states = []
    for dp, micro_batch, threads in ((1, 8, 0), (4, 1, 2)):
        with Loader(view, topology=Topology(dp, dp - 1), micro_batch=micro_batch, threads=threads) as loader:
            loader.seek(160)
            states.append(loader.state_dict())
    assert states[0] == states[1]
    assert set(states[0]) == {"v", "view_id", "order", "position", "step", "schedule_id", "isolation_id"}
    assert len(json.dumps(states[0] | {"position": 2**53, "step": 2**53}, separators=(",", ":"))) < 300


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"v": 2}, "'v': 1 expected, found 2"),
        ({"view_id": "0" * 64}, "'view_id': .*does not continue"),
        ({"order": 2}, "'order': 1 expected, found 2"),
        ({"position": 9}, "'position': 9 is inside step 1"),
        ({"position": -8}, "'position': an integer >= 0"),
        ({"position": 1.0}, "'position': an integer >= 0"),
        ({"position": 10**12}, "'position': .*outside the run"),
        ({"step": 2}, "'step': position 8 starts step 1, found 2"),
        ({"schedule_id": "0" * 16}, "'schedule_id'"),
        ({"isolation_id": "0" * 16}, "'isolation_id'"),
        ({"isolation_id": None}, "'isolation_id': a hex string"),
        ({"step": "absent"}, "'step' is missing"),
        ({"colour": 1}, "'colour' is unknown"),
    ],
)
def test_cursor_refusals_name_the_field(tiny: Any, change: dict[str, Any], message: str) -> None:
    with Loader(RunView.open(tiny.path), micro_batch=2, threads=0) as loader:
        loader.seek(8)
        state = {k: v for k, v in (loader.state_dict() | change).items() if v != "absent"}
        loader.seek(24)
        with pytest.raises(CursorError, match=message):
            loader.load_state_dict(state)
        assert loader.position == 24  # a refused cursor moves nothing


def test_views_that_continue_accept_earlier_cursors(tiny: Any, helpers: Any) -> None:
    stages = [(s["name"], s["length"], s["weights"]) for s in tiny.manifest["stages"]]
    with Loader(RunView.open(tiny.path), micro_batch=2) as loader:
        loader.seek(80)
        state = loader.state_dict()
    for relation, schedule, up_to in (("erasure", [(0, 8)], 400), ("amendment", [(0, 8), (160, 4)], 160)):
        continues = ({"view_id": tiny.view_id, "relation": relation, "up_to_position": up_to},)
        view = RunView.open(helpers.variant(tiny, stages=stages, schedule=schedule, continues=continues).path)
        with Loader(view, micro_batch=2) as loader:
            loader.load_state_dict(state)
            assert loader.position == 80
            assert loader.continued_from == tiny.view_id == loader.metrics()["continued_from"]
            assert next(loader).positions.tolist() == [80, 81]
            own = loader.state_dict()
            assert own["view_id"] == view.view_id
            loader.load_state_dict(own)
            assert loader.continued_from is None
            with pytest.raises(CursorError, match=f"up to position {up_to}, found 408"):
                loader.load_state_dict(state | {"position": 408, "step": 51})
    continues = ({"view_id": tiny.view_id, "relation": "erasure", "up_to_position": 400},)
    view = RunView.open(helpers.variant(tiny, stages=stages, schedule=[(0, 4)], continues=continues).path)
    with Loader(view, micro_batch=2) as loader, pytest.raises(CursorError, match="'schedule_id'"):
        loader.load_state_dict(state)


def test_close_joins_threads_and_keeps_batches(tiny: Any) -> None:
    before = set(threading.enumerate())
    with Loader(RunView.open(tiny.path), micro_batch=2, threads=3) as loader:
        batch = next(loader)
        assert len(set(threading.enumerate()) - before) == 3
        ids = batch.input_ids.copy()
    assert set(threading.enumerate()) == before
    assert (batch.input_ids == ids).all()
    assert len(batch.doc_ids) == len(batch.segment_starts)
    loader.close()
    for use in (lambda: next(loader), lambda: loader.seek(0), lambda: loader.batch_at(0), lambda: loader.load_state_dict({})):
        with pytest.raises(LoaderClosedError):
            use()


def test_a_forgotten_loader_leaves_no_thread(tiny: Any) -> None:
    before = set(threading.enumerate())
    loader = Loader(RunView.open(tiny.path), micro_batch=2, threads=2)
    next(loader)
    del loader
    assert set(threading.enumerate()) == before


def test_open_shards_are_bounded(tiny: Any) -> None:
    view = RunView.open(tiny.path)
    with Loader(view, micro_batch=2, max_open_shards=2) as bounded, Loader(view, micro_batch=2) as free:
        most = 0
        for a, b in zip(bounded, free, strict=True):
            assert rows_of(a) == rows_of(b)
            most = max(most, int(bounded.metrics()["shards_open"] or 0))
        assert most == 2
        assert bounded.metrics()["shards_opened"] > free.metrics()["shards_opened"] == 10
        assert free.metrics()["blocks_verified"] == 20


def test_metrics_add_up(tiny: Any) -> None:
    with Loader(RunView.open(tiny.path), topology=Topology(3, 2), micro_batch=2) as loader:
        n_batches = sum(1 for _ in loader)
        metrics = loader.metrics()
    assert metrics["micro_batches"] == n_batches == 2 * len(loader)
    assert metrics["steps"] == len(loader)
    assert metrics["packs"] + metrics["fill_packs"] == 2 * n_batches
    assert metrics["positions"] == 2 * n_batches * 16
    assert 0 <= metrics["wait_ratio"] <= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"micro_batch": 0}, "micro_batch >= 1"),
        ({"micro_batch": 1, "threads": -1}, "threads >= 0"),
        ({"micro_batch": 1, "prefetch": 0}, "prefetch >= 1"),
        ({"micro_batch": 1, "device": "cuda"}, "'cuda'"),
        ({"micro_batch": 1, "dtype": "float32"}, "float32"),
        ({"micro_batch": 1, "global_batch": 4}, "batch schedule"),
        ({"micro_batch": 1, "max_open_shards": 0}, "capacity"),
    ],
)
def test_wrong_arguments(tiny: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Loader(RunView.open(tiny.path), **options)


@pytest.mark.parametrize("sizes", [{"dp": 0}, {"dp": 2, "dp_rank": 2}, {"dp_rank": -1}, {"cp": 2}, {"tp": 2}, {"pp": 2}])
def test_topology_refuses(sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(sizes))):
        Topology(**sizes)


def test_more_ranks_than_packs_still_deliver_all_rows_once(tiny: Any, helpers: Any) -> None:
    """Five rows, eight ranks: all ranks have as many steps, all five rows come once, the fill is counted."""
    built = helpers.variant(tiny, stages=[("s", 5, {"web": 1})], schedule=[(0, 5)], tail_batch="masked_pad")
    steps, _ = run_job(RunView.open(built.path), (8, 1, 1))
    assert [len(step) for step in steps] == [5]
    with Loader(RunView.open(built.path), topology=Topology(8, 7), micro_batch=1) as loader:
        assert loader.plan(0).n_fill == 3
        assert len(loader) == 1
        (batch,) = list(loader)
        assert batch.positions.tolist() == [-1]
        assert batch.cu_seqlens.tolist() == [0, 16]
    dropped = helpers.variant(tiny, stages=[("s", 5, {"web": 1})], schedule=[(0, 6)], tail_batch="drop")
    with Loader(RunView.open(dropped.path), micro_batch=1) as loader:
        assert len(loader) == 0
        assert list(loader) == []
        assert loader.state_dict()["position"] == 0


def test_schedule_edges_are_steps(views: Any) -> None:
    view = views(5, "masked_pad")
    with Loader(view, micro_batch=2, threads=0) as loader:
        starts = [loader.plan(step).position for step in range(len(loader))]
        assert starts[:10] == [0, 5, 10, 15, 23, 31, 39, 47, 55, 59]
        assert all(loader.schedule.step(p) == step for step, p in enumerate(starts))
        assert all(b - a == loader.plan(step).global_batch for step, (a, b) in enumerate(pairwise(starts)))
