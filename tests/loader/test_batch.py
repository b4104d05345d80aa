"""One micro-batch: labels and segments by literal example, and against the sources token by token."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runview import Loader, RunView
from runview.batch import BufferPool


def literal_view(helpers: Any, root: Path, **options: Any) -> Any:
    """Four documents of 6, 3, 5 and 2 tokens, the third erased, cut at 8: two packs.

    pack 0: A0-A5 B0 B1 | pack 1: B2 (C erased: 5) D0 D1. Documents A=10.., B=20.., C=30.., D=40...
    """
    documents = [(bytes([n]) * 32, np.arange(10 * n, 10 * n + size), n == 3) for n, size in ((1, 6), (2, 3), (3, 5), (4, 2))]
    source = helpers.ShardSource(documents, helpers.cut(documents, 8, keep_tail=True))
    assert source.packs == [[(0, 0, 6), (1, 0, 2)], [(1, 2, 1), (2, 0, 5), (3, 0, 2)]]
    component = helpers.ComponentSource("web", 1, [source])
    helpers.write_component(root, component, seq_len=8, multiple=1)
    manifest = helpers.make_manifest(
        [component], [component], seq_len=8, stages=[("s", 2, {"web": 1})], schedule=[(0, 3)], tail_batch="masked_pad", **options
    )
    path, view_id = helpers.publish(root, manifest)
    return helpers.BuiltView(root, path, view_id, manifest, [component], [component])


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_labels_and_segments_by_literal_example(helpers: Any, tmp_path: Path, dtype: str) -> None:
    built = literal_view(helpers, tmp_path)
    with Loader(RunView.open(built.path).validation("web"), micro_batch=3, dtype=dtype, threads=0) as loader:
        (batch,) = list(loader)
    assert batch.input_ids.tolist() == [
        [10, 11, 12, 13, 14, 15, 20, 21],
        [22, 2, 2, 2, 2, 2, 40, 41],  # fill_id where a document was erased
        [0] * 8,  # a fill row is pad throughout
    ]
    assert batch.labels.tolist() == [
        [11, 12, 13, 14, 15, -100, 21, 22],  # 22 lies one past the segment: document B goes on in the next pack
        [-100, -100, -100, -100, -100, -100, 41, -100],
        [-100] * 8,
    ]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4, 5, 0, 1], [0, 0, 1, 2, 3, 4, 0, 1], list(range(8))]
    assert batch.cu_seqlens.tolist() == [0, 6, 8, 9, 14, 16, 24]
    assert batch.cu_seqlens.dtype == np.int32
    assert batch.max_seqlen == 8
    assert batch.segment_starts.tolist() == [0, 6, 8, 9, 14]
    assert [row.tobytes() for row in batch.doc_ids] == [bytes([n]) * 32 for n in (1, 2, 2, 0, 4)]
    assert batch.positions.tolist() == [0, 1, -1]
    assert batch.pack_ids.tolist() == [[0, 0, 0, 0], [0, 0, 0, 1], [-1] * 4]
    assert (batch.n_loss_tokens, batch.n_loss_samples, batch.n_fill, batch.loss_weight) == (8, 3, 1, None)
    assert batch.input_ids.dtype == batch.labels.dtype == batch.position_ids.dtype == np.dtype(dtype)


def test_full_attention_joins_documents_but_not_erased_ones_or_padding(helpers: Any, tmp_path: Path) -> None:
    built = literal_view(helpers, tmp_path, attention="full")
    with Loader(RunView.open(built.path).validation("web"), micro_batch=3, threads=0) as loader:
        (batch,) = list(loader)
    assert batch.cu_seqlens.tolist() == [0, 8, 9, 14, 16, 24]
    assert batch.position_ids[1].tolist() == [0, 0, 1, 2, 3, 4, 0, 1]
    assert batch.labels[0].tolist() == [11, 12, 13, 14, 15, -100, 21, 22]  # attention does not change the labels


def check_against_sources(built: Any, loader: Loader, *, full: bool = False) -> int:
    """Every row equals the one made token by token from the sources; returns how many rows were checked."""
    seq_len, n_rows = built.manifest["seq_len"], 0
    pad = built.manifest["tokenizer"]["pad"]
    loss_by_step: dict[int, int] = {}
    declared: dict[int, int] = {}
    for batch in loader:
        edges = batch.cu_seqlens.tolist()
        assert edges[0] == 0
        assert edges[-1] == batch.input_ids.size
        assert all(a < b for a, b in itertools.pairwise(edges))
        assert batch.max_seqlen == max(b - a for a, b in itertools.pairwise(edges))
        assert batch.position_ids.ravel().tolist() == [at - a for a, b in itertools.pairwise(edges) for at in range(a, b)]
        expected_edges: list[int] = []
        expected_docs: list[bytes] = []
        for row, (position, ids) in enumerate(zip(batch.positions.tolist(), batch.pack_ids.tolist(), strict=True)):
            if position < 0:
                assert (batch.input_ids[row] == pad).all()
                assert (batch.labels[row] == -100).all()
                assert ids == [-1] * 4
                lengths = [seq_len]
            else:
                component, _, shard, pack = ids
                tokens, labels, lengths = built.expected_row(component, shard, pack)
                assert batch.input_ids[row].tolist() == tokens
                assert batch.labels[row].tolist() == labels
                source = built.components[component].shards[shard]
                expected_docs += [bytes(32) if source.documents[d][2] else source.documents[d][0] for d, _, _ in source.packs[pack]]
                n_rows += 1
            expected_edges += [row * seq_len + at for at in np.cumsum([0, *lengths[:-1]]).tolist()]
        if not full:
            assert edges[:-1] == expected_edges
        assert [row.tobytes() for row in batch.doc_ids] == expected_docs
        assert len(batch.segment_starts) == len(expected_docs)
        loss_by_step[batch.step] = loss_by_step.get(batch.step, 0) + int((batch.labels != -100).sum())
        declared[batch.step] = batch.n_loss_tokens
    assert loss_by_step == declared
    return n_rows


@pytest.mark.parametrize("multiple", [1, 4])
@pytest.mark.parametrize("attention", ["intra_document", "full"])
def test_every_row_equals_the_sources(fresh: Callable[..., Any], multiple: int, attention: str) -> None:
    built = fresh(multiple=multiple, attention=attention, tail_batch="masked_pad", schedule=[(0, 7)], epochs=1.0)
    with Loader(RunView.open(built.path), micro_batch=3) as loader:
        n_rows = check_against_sources(built, loader, full=attention == "full")
        assert n_rows == sum(stage["length"] for stage in built.manifest["stages"]) == loader.metrics()["packs"]


def test_long_sequences_and_no_erasure(fresh: Callable[..., Any]) -> None:
    built = fresh(seq_len=512, erase=0.0, n_docs=60, rng_seed=3)
    with Loader(RunView.open(built.path), micro_batch=4) as loader:
        assert check_against_sources(built, loader) > 50


def test_held_batches_are_never_written_again(tiny: Any) -> None:
    with Loader(RunView.open(tiny.path), micro_batch=2, prefetch=2) as loader:
        held = [next(loader) for _ in range(20)]
        copies = [(b.input_ids.copy(), b.labels.copy(), b.position_ids.copy()) for b in held]
        parts = [next(loader).labels[0] for _ in range(20)]  # a view of a part keeps the memory as well
        part_copies = [part.copy() for part in parts]
        for _ in zip(range(60), loader, strict=False):
            pass
        for batch, (ids, labels, positions) in zip(held, copies, strict=True):
            assert (batch.input_ids == ids).all()
            assert (batch.labels == labels).all()
            assert (batch.position_ids == positions).all()
        assert all((part == copy).all() for part, copy in zip(parts, part_copies, strict=True))


def test_buffers_are_used_again_once_let_go() -> None:
    pool = BufferPool((3, 8), np.dtype(np.int64), 3)
    addresses = set()
    for _ in range(20):
        buffer = pool.take()
        rows = buffer[1].reshape(2, 4)
        addresses.add(buffer.__array_interface__["data"][0])
        del buffer
        again = pool.take()
        assert not np.shares_memory(again, rows)
        addresses.add(again.__array_interface__["data"][0])
        del again, rows
    assert len(addresses) <= 3
    held = [pool.take() for _ in range(9)]
    assert len({buffer.__array_interface__["data"][0] for buffer in held}) == 9


def test_too_large_for_int32_offsets_is_refused(tiny: Any) -> None:
    with pytest.raises(ValueError, match="does not fit cu_seqlens"):
        Loader(RunView.open(tiny.path), micro_batch=2**31 // 16)
