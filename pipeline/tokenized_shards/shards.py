"""One component's token files: seeded order of documents, cut into shards, layout, pack index, counts.

Formats are `runview.shards`; the order of an index is `runview.order`. Nothing here depends on the order in which documents
were handed over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.errors import ContractError
from pipeline.ids import digest, sha256_hex
from pipeline.recipe import Packing
from pipeline.tokenized_shards.packing import pack
from runview import order as run_order
from runview import shards as files

Array = npt.NDArray[Any]
Put = Callable[[str, bytes], str]


@dataclass(frozen=True)
class BuiltShard:
    """One shard that was put, with its pack index; arrays are per document, in the shard's order.

    Attributes: source, where each document stood among the component's documents; start, n_tokens, n_packed_tokens,
    n_loss_tokens int64 [D]; stats uint32 [P, 4]; lost, reason -> tokens.
    """

    ordinal: int
    shard_id: str
    pack_index_id: str
    shard_blocks_sha256: str
    pack_blocks_sha256: str
    size_bytes: int
    n_packs: int
    source: Array
    start: Array
    n_tokens: Array
    n_packed_tokens: Array
    n_loss_tokens: Array
    stats: Array
    lost: dict[str, int]


def document_order(doc_ids: Array, *, seed: str, component: str) -> Array:
    """Positions of documents in the seeded order: by a keyed mix of the first 8 bytes of doc_id, ties by the whole id.

    Args: doc_ids uint8 [D, 32]. Returns: int64 [D]. Raises: ContractError when a document stands twice.
    Source of the mix: splitmix64's finaliser (Steele, Lea and Flood 2014), a bijection, so equal mixes are equal first bytes.
    """
    words = np.ascontiguousarray(doc_ids, np.uint8).view(">u8").astype(np.uint64)
    key = np.uint64(int(digest("document order", seed, component)[:16], 16))
    mixed = mix64(words[:, 0] ^ key)
    order = np.argsort(mixed, kind="stable")
    if (np.diff(mixed[order]) == 0).any():
        order = np.lexsort((words[:, 3], words[:, 2], words[:, 1], mixed))
        same = (np.diff(words[order].view(np.int64), axis=0) == 0).all(axis=1)
        if same.any():
            twice = doc_ids[order[int(np.flatnonzero(same)[0])]].tobytes().hex()
            raise ContractError(f"component {component!r}: {int(same.sum())} doc_ids stand more than once, first {twice}")
    return order


def mix64(values: Array) -> Array:
    """splitmix64's finaliser on uint64, elementwise."""
    x = values.astype(np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = x ^ (x >> np.uint64(31))
    return mixed


def shard_edges(n_tokens: Array, *, target_tokens: int, seq_len: int) -> Array:
    """Where documents in seeded order are cut: shard s holds documents [edges[s], edges[s + 1]).

    A shard is closed before the document that would take it over `target_tokens`, so a longer document makes its own; but
    never before it holds `seq_len` tokens, and a last shard with fewer joins the one before it: a shard without a full
    sequence would have no pack where the tail is dropped.
    """
    end = np.cumsum(n_tokens)
    edges = [0]
    while edges[-1] < len(n_tokens):
        begin = int(end[edges[-1] - 1]) if edges[-1] else 0
        full = int(np.searchsorted(end, begin + target_tokens, side="right"))
        enough = int(np.searchsorted(end, begin + seq_len, side="left")) + 1
        edges.append(min(max(full, enough, edges[-1] + 1), len(n_tokens)))
    if len(edges) > 2 and int(end[-1] - end[edges[-2] - 1]) < seq_len:
        del edges[-2]
    return np.array(edges, np.int64)


def build_shard(
    ordinal: int,
    *,
    header: files.ShardHeader,
    doc_ids: Array,
    slices: list[Array],
    source: Array,
    packing: Packing,
    put: Put,
) -> BuiltShard:
    """Pack, lay out, write and measure one shard.

    Args: ordinal, build order within component and split; doc_ids [D, 32] and slices (tokens of each document) in seeded
        order; source, their places among the component's documents; put, stores bytes under (kind, sha256) and, for
        `shards` and `packs`, their `.blocks` beside them.
    """
    lengths = np.array([len(tokens) for tokens in slices], np.int64)
    plan = pack(
        lengths,
        seq_len=packing.seq_len,
        policy=packing.policy,
        segment_multiple=packing.segment_multiple,
        tail_pack=packing.tail_pack,
    )
    # Documents lie in the order of their first segment; those that lie in no pack come last, in seeded order.
    first_use = np.full(len(lengths), len(plan.segment_doc), np.int64)
    np.minimum.at(first_use, plan.segment_doc, np.arange(len(plan.segment_doc)))
    layout = np.argsort(first_use, kind="stable")
    place = np.empty_like(layout)
    place[layout] = np.arange(len(layout))
    n_tokens = lengths[layout]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(n_tokens)])
    shard_data = files.shard_bytes(
        header, tokens=np.concatenate([slices[i] for i in layout.tolist()]), doc_offsets=offsets, doc_ids=doc_ids[layout]
    )
    key = run_order.keys(packing.seed, "index", header.component, ordinal)
    index = plan.reordered(run_order.permute(np.arange(plan.n_packs), max(plan.n_packs, 1), key).astype(np.int64))
    index_data = files.pack_index_bytes(
        pack_offsets=index.pack_offsets,
        segment_doc=place[index.segment_doc],
        segment_start=index.segment_start,
        segment_length=index.segment_length,
    )
    stats = files.pack_stats(
        files.Shard(shard_data), files.PackIndex(index_data), seq_len=packing.seq_len, segment_multiple=packing.segment_multiple
    )
    segment_doc = place[index.segment_doc]
    n_labels = index.segment_length - (index.segment_start + index.segment_length == n_tokens[segment_doc])
    packed, labelled = np.zeros(len(lengths), np.int64), np.zeros(len(lengths), np.int64)
    np.add.at(packed, segment_doc, index.segment_length)
    np.add.at(labelled, segment_doc, n_labels)
    return BuiltShard(
        ordinal=ordinal,
        shard_id=_put(put, "shards", shard_data),
        pack_index_id=_put(put, "packs", index_data),
        shard_blocks_sha256=sha256_hex(files.block_digests(shard_data)),
        pack_blocks_sha256=sha256_hex(files.block_digests(index_data)),
        size_bytes=len(shard_data),
        n_packs=plan.n_packs,
        source=source[layout],
        start=offsets[:-1],
        n_tokens=n_tokens,
        n_packed_tokens=packed,
        n_loss_tokens=labelled,
        stats=stats,
        lost=dict(plan.lost),
    )


def put_catalog(shards: list[BuiltShard], put: Put) -> str:
    """Write the catalog of a component and split, in build order; its sha256."""
    data = files.catalog_bytes(
        shard_id=[s.shard_id for s in shards],
        pack_index_id=[s.pack_index_id for s in shards],
        shard_blocks_sha256=[s.shard_blocks_sha256 for s in shards],
        pack_blocks_sha256=[s.pack_blocks_sha256 for s in shards],
        n_docs=np.array([len(s.n_tokens) for s in shards]),
        n_tokens=np.array([int(s.n_tokens.sum()) for s in shards]),
        n_packs=np.array([s.n_packs for s in shards]),
        size_bytes=np.array([s.size_bytes for s in shards]),
    )
    return _put(put, "catalogs", data)


def put_stats(stats: Array, put: Put) -> str:
    """Write the stats of a component and split, uint32 [n_packs, 4] in catalog, then index order; its sha256."""
    return _put(put, "stats", files.stats_bytes(stats))


def _put(put: Put, kind: str, data: bytes) -> str:
    expected, found = sha256_hex(data), put(kind, data)
    if found != expected:
        raise ContractError(f"put({kind!r}, {len(data)} bytes) must return the sha256 {expected}, returned {found!r}")
    return expected
