"""Small and middle-sized run views of synthetic tokens, written with the loader's public writers, for benchmarks and tests.

Documents are cut into packs as `concat` does: equal cuts, a document continues in the next pack.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from runview import shards
from runview.manifest import geometry_digest
from runview.order import ComponentGeometry, Order, StageGeometry

Array = np.ndarray[Any, Any]
TOKENIZER_ID = hashlib.sha256(b"synthetic").hexdigest()


@dataclass(frozen=True)
class TokenShard:
    """The tokens of one shard (uint16 or uint32 [N]) and its document boundaries (int64 [D+1])."""

    tokens: Array
    doc_offsets: Array


def random_shard(rng: np.random.Generator, *, n_tokens: int, vocab_size: int, mean_length: int = 900) -> TokenShard:
    """Exactly `n_tokens` tokens: lognormal document lengths (sigma 1.1, as web text has), Zipf-like ids."""
    mu = np.log(mean_length) - 1.1**2 / 2
    lengths = np.maximum(rng.lognormal(mu, 1.1, 2 * n_tokens // mean_length + 64).astype(np.int64), 8)
    while int(lengths.sum()) < n_tokens:
        lengths = np.concatenate([lengths, lengths])
    inner = np.cumsum(lengths)
    offsets = np.concatenate([[0], inner[inner < n_tokens], [n_tokens]]).astype(np.int64)
    dtype = np.uint16 if vocab_size <= 65536 else np.uint32
    tokens = (vocab_size * rng.random(n_tokens, dtype=np.float32) ** 3).astype(dtype)
    return TokenShard(np.minimum(tokens, vocab_size - 1), offsets)


def concat_segments(doc_offsets: Array, seq_len: int, *, keep_tail: bool) -> dict[str, Array]:
    """The pack index of one shard under equal cuts; a tail shorter than `seq_len` becomes a short pack or is dropped."""
    n_tokens = int(doc_offsets[-1])
    cuts = np.arange(0, n_tokens + 1, seq_len, dtype=np.int64)
    if keep_tail and int(cuts[-1]) < n_tokens:
        cuts = np.append(cuts, n_tokens)
    edges = np.unique(np.concatenate([cuts, doc_offsets[doc_offsets < cuts[-1]]]))
    doc = np.searchsorted(doc_offsets, edges[:-1], side="right") - 1
    return {
        "pack_offsets": np.searchsorted(edges, cuts),
        "segment_doc": doc,
        "segment_start": edges[:-1] - doc_offsets[doc],
        "segment_length": np.diff(edges),
    }


def write_view(
    root: Path,
    components: Mapping[str, Sequence[TokenShard]],
    *,
    seq_len: int,
    global_batch: int,
    vocab_size: int,
    epochs: int = 1,
    seed: str = "5eed",
    window: int = 4,
    keep_tail: bool = False,
) -> Path:
    """Write every file of a view below `root` and return the path of `views/<view_id>.json`.

    One stage of whole epochs. Token 0 is the fill; there is no bos, eos or pad.
    """
    entries, geometries = [], []
    for name, parts in components.items():
        entry, n_packs = _write_component(root, name, parts, seq_len=seq_len, keep_tail=keep_tail)
        entries.append({**entry, "window": window, "licences": {"CC0-1.0": entry["n_docs"]}})
        geometries.append(ComponentGeometry(name, window, n_packs))
    weights = {geometry.name: int(np.sum(geometry.n_packs)) * epochs for geometry in geometries}
    stages = [StageGeometry("main", sum(weights.values()), weights)]
    counts = Order(seed, stages, geometries).counts(0, stages[0].length)
    loss_tokens = {entry["name"]: entry["n_loss_tokens"] for entry in entries}
    shares = {name: f"{n / max(1, sum(loss_tokens.values())):.6f}" for name, n in loss_tokens.items()}
    manifest = {
        "format": 1,
        "name": "synthetic",
        "recipe": {"recipe_id": hashlib.sha256(b"recipe").hexdigest(), "text": ""},
        "release": {"name": "synthetic", "release_id": hashlib.sha256(b"release").hexdigest()},
        "stage_versions": {},
        "tokenizer": {"tokenizer_id": TOKENIZER_ID, "vocab_size": vocab_size, "bos": None, "eos": None, "pad": None, "fill_id": 0},
        "components": entries,
        "stages": [
            {
                "name": "main",
                "length": stages[0].length,
                "shares": None,
                "weights": weights,
                "epochs": str(epochs),
                "caps": {},
                "counts": counts,
                "achieved_shares": shares,
            }
        ],
        "seq_len": seq_len,
        "packing": {"policy": "concat", "segment_multiple": 1, "tail_pack": "masked_pad" if keep_tail else "drop", "min_fill": "0"},
        "attention": "intra_document",
        "label_policy": "all",
        "loss_normalisation": "token",
        "tail_batch": "drop",
        "seed": seed,
        "order": 1,
        "batch_schedule": [{"from_position": 0, "global_batch": global_batch}],
        "split": "train",
        "validation": [],
        "quarantine": None,
        "duplicates": None,
        "ledgers": None,
        "continues": [],
        "geometry": geometry_digest(
            seed=seed, order=1, seq_len=seq_len, batch_schedule=[(0, global_batch)], stages=stages, components=geometries
        ),
    }
    data = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode("ascii")
    path = root / "views" / f"{hashlib.sha256(data).hexdigest()}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def _write_component(
    root: Path, name: str, parts: Sequence[TokenShard], *, seq_len: int, keep_tail: bool
) -> tuple[dict[str, Any], list[int]]:
    header = shards.ShardHeader(tokenizer_id=TOKENIZER_ID, fill_id=0, component=name)
    digests: dict[str, list[str]] = {"shard_id": [], "pack_index_id": [], "shard_blocks_sha256": [], "pack_blocks_sha256": []}
    counts: dict[str, list[int]] = {"n_docs": [], "n_tokens": [], "n_packs": [], "size_bytes": []}
    stats = []
    for ordinal, part in enumerate(parts):
        n_docs = len(part.doc_offsets) - 1
        ids = [hashlib.sha256(f"{name}/{ordinal}/{doc}".encode()).digest() for doc in range(n_docs)]
        shard_data = shards.shard_bytes(
            header, tokens=part.tokens, doc_offsets=part.doc_offsets, doc_ids=np.frombuffer(b"".join(ids), np.uint8).reshape(-1, 32)
        )
        pack_data = shards.pack_index_bytes(**concat_segments(part.doc_offsets, seq_len, keep_tail=keep_tail))
        packs = shards.PackIndex(pack_data)
        stats.append(shards.pack_stats(shards.Shard(shard_data), packs, seq_len=seq_len))
        for kind, data, names in (
            ("shards", shard_data, ("shard_id", "shard_blocks_sha256")),
            ("packs", pack_data, ("pack_index_id", "pack_blocks_sha256")),
        ):
            for key, value in zip(names, _write(root, kind, data, blocks=True), strict=True):
                digests[key].append(value)
        for key, count in zip(counts, (n_docs, len(part.tokens), packs.n_packs, len(shard_data)), strict=True):
            counts[key].append(count)
    table = np.concatenate(stats)
    columns: dict[str, Any] = {**digests, **{key: np.array(values, np.int64) for key, values in counts.items()}}
    catalog_id, _ = _write(root, "catalogs", shards.catalog_bytes(**columns))
    stats_id, _ = _write(root, "stats", shards.stats_bytes(table))
    totals = {key: sum(counts[key]) for key in ("n_docs", "n_tokens", "n_packs")}
    entry = {
        "name": name,
        "catalog": catalog_id,
        "stats": stats_id,
        **totals,
        "n_loss_tokens": int(table[:, 1].sum(dtype=np.int64)) // 1000,
    }
    return entry, counts["n_packs"]


def _write(root: Path, kind: str, data: bytes, *, blocks: bool = False) -> tuple[str, str]:
    file_id = hashlib.sha256(data).hexdigest()
    path = root / shards.relative_path(kind, file_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    digests = shards.block_digests(data) if blocks else b""
    if blocks:
        path.with_suffix(".blocks").write_bytes(digests)
    return file_id, hashlib.sha256(digests).hexdigest()
