"""Small but complete views on disk, made with the public writers: several components, shards, split and erased documents."""

import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runview import shards
from runview.manifest import geometry_digest
from runview.order import ComponentGeometry, Order, StageGeometry

TOKENIZER_ID = "70" * 32
VOCAB = 60000
PAD, EOS, FILL = 0, 1, 2
Document = tuple[bytes, np.ndarray, bool]  # doc_id, tokens, erased


def canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass
class ShardSource:
    """One shard before it is written: its documents, and its packs as lists of (document, start, length)."""

    documents: list[Document]
    packs: list[list[tuple[int, int, int]]]


@dataclass
class ComponentSource:
    name: str
    window: int
    shards: list[ShardSource]
    dtype: str = "uint16"
    catalog: str = ""
    stats: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    shard_ids: list[str] = field(default_factory=list)
    pack_ids: list[str] = field(default_factory=list)
    n_packs: list[int] = field(default_factory=list)


@dataclass
class BuiltView:
    """A view on disk, and what it was made of, as the tests' own truth."""

    root: Path
    path: Path
    view_id: str
    manifest: dict[str, Any]
    components: list[ComponentSource]
    validation: list[ComponentSource]

    def expected_row(self, component: int, shard: int, pack: int) -> tuple[list[int], list[int], list[int]]:
        """input_ids, labels and segment lengths of one pack, token by token from the sources, by another way than the loader."""
        source = self.components[component].shards[shard]
        multiple = self.manifest["packing"]["segment_multiple"]
        pad = self.manifest["tokenizer"]["pad"]
        ids: list[int] = []
        labels: list[int] = []
        lengths: list[int] = []
        for doc, start, length in source.packs[pack]:
            _, tokens, erased = source.documents[doc]
            for at in range(start, start + length):
                ids.append(FILL if erased else int(tokens[at]))
                labels.append(-100 if erased or at + 1 >= len(tokens) else int(tokens[at + 1]))
            fill = -length % multiple
            ids += [pad] * fill
            labels += [-100] * fill
            lengths.append(length + fill)
        tail = self.manifest["seq_len"] - len(ids)
        if tail:
            lengths.append(tail)
        return ids + [pad] * tail, labels + [-100] * tail, lengths


def cut(documents: list[Document], seq_len: int, *, keep_tail: bool) -> list[list[tuple[int, int, int]]]:
    """The `concat` packing: documents one after the other, cut at every seq_len; a short last pack is kept if asked."""
    packs: list[list[tuple[int, int, int]]] = [[]]
    room = seq_len
    for number, (_, tokens, _) in enumerate(documents):
        start = 0
        while start < len(tokens):
            length = min(room, len(tokens) - start)
            packs[-1].append((number, start, length))
            start, room = start + length, room - length
            if room == 0:
                packs.append([])
                room = seq_len
    if not packs[-1] or not keep_tail:
        packs.pop()
    return packs


def random_shard(rng: np.random.Generator, *, n_docs: int, seq_len: int, erase: float, keep_tail: bool, top: int) -> ShardSource:
    documents = [
        (rng.bytes(32), rng.integers(0, top, int(rng.integers(1, 2 * seq_len))), bool(rng.random() < erase)) for _ in range(n_docs)
    ]
    return ShardSource(documents, cut(documents, seq_len, keep_tail=keep_tail))


def store(root: Path, kind: str, data: bytes, *, blocks: bool = False) -> tuple[str, str]:
    path = root / shards.relative_path(kind, sha(data))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    digests = shards.block_digests(data)
    if blocks:
        path.with_suffix(".blocks").write_bytes(digests)
    return sha(data), sha(digests)


def write_component(root: Path, component: ComponentSource, *, seq_len: int, multiple: int) -> None:
    rows: dict[str, list[Any]] = {
        key: []
        for key in ("shard_id", "pack_index_id", "shard_blocks_sha256", "pack_blocks_sha256", "n_docs", "n_tokens", "n_packs", "size_bytes")
    }
    stats = []
    for source in component.shards:
        tokens = [np.full(len(t), FILL) if erased else t for _, t, erased in source.documents]
        ids = [bytes(32) if erased else doc_id for doc_id, _, erased in source.documents]
        header = shards.ShardHeader(tokenizer_id=TOKENIZER_ID, bos=None, eos=EOS, pad=PAD, fill_id=FILL, component=component.name)
        data = shards.shard_bytes(
            header,
            tokens=np.concatenate(tokens).astype(component.dtype),
            doc_offsets=np.cumsum([0] + [len(t) for t in tokens]),
            doc_ids=np.frombuffer(b"".join(ids), np.uint8).reshape(-1, 32),
            doc_state=np.array([erased for _, _, erased in source.documents], np.uint8),
        )
        segments = np.array([s for pack in source.packs for s in pack], np.int64).reshape(-1, 3)
        index = shards.pack_index_bytes(
            pack_offsets=np.cumsum([0] + [len(pack) for pack in source.packs]),
            segment_doc=segments[:, 0],
            segment_start=segments[:, 1],
            segment_length=segments[:, 2],
        )
        shard_id, shard_blocks = store(root, "shards", data, blocks=True)
        pack_id, pack_blocks = store(root, "packs", index, blocks=True)
        component.shard_ids.append(shard_id)
        component.pack_ids.append(pack_id)
        component.n_packs.append(len(source.packs))
        stats.append(shards.pack_stats(shards.Shard(data), shards.PackIndex(index), seq_len=seq_len, segment_multiple=multiple))
        for key, value in (
            ("shard_id", shard_id),
            ("pack_index_id", pack_id),
            ("shard_blocks_sha256", shard_blocks),
            ("pack_blocks_sha256", pack_blocks),
            ("n_docs", len(ids)),
            ("n_tokens", sum(map(len, tokens))),
            ("n_packs", len(source.packs)),
            ("size_bytes", len(data)),
        ):
            rows[key].append(value)
    table = np.concatenate(stats)
    component.catalog, _ = store(
        root,
        "catalogs",
        shards.catalog_bytes(**{key: value if isinstance(value[0], str) else np.array(value) for key, value in rows.items()}),
    )
    component.stats, _ = store(root, "stats", shards.stats_bytes(table))
    component.counts = {
        "n_docs": sum(rows["n_docs"]),
        "n_tokens": sum(rows["n_tokens"]),
        "n_packs": len(table),
        "n_loss_tokens": int(table[:, 1].sum()) // 1000,
    }


def publish(root: Path, manifest: dict[str, Any]) -> tuple[Path, str]:
    data = canonical(manifest)
    path = root / "views" / f"{sha(data)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path, sha(data)


def make_manifest(
    components: list[ComponentSource],
    validation: list[ComponentSource],
    *,
    seq_len: int,
    multiple: int = 1,
    stages: list[tuple[str, int, dict[str, int]]],
    schedule: list[tuple[int, int]],
    tail_batch: str = "drop",
    attention: str = "intra_document",
    seed: str = "5eed",
    continues: tuple[dict[str, Any], ...] = (),
) -> dict[str, Any]:
    geometry = [ComponentGeometry(c.name, c.window, c.n_packs) for c in components]
    stage_geometry = [StageGeometry(*stage) for stage in stages]
    order = Order(seed, stage_geometry, geometry)
    return {
        "format": 1,
        "name": "tiny",
        "recipe": {"recipe_id": "12" * 32, "text": "[mixture]\n"},
        "release": {"name": "2026-11", "release_id": "34" * 32},
        "stage_versions": {"tokenized_shards": "56" * 32},
        "tokenizer": {"tokenizer_id": TOKENIZER_ID, "vocab_size": VOCAB, "bos": None, "eos": EOS, "pad": PAD, "fill_id": FILL},
        "components": [
            {
                "name": c.name,
                "window": c.window,
                "catalog": c.catalog,
                "stats": c.stats,
                **c.counts,
                "licences": {"CC0-1.0": c.counts["n_docs"]},
            }
            for c in components
        ],
        "stages": [
            {
                "name": name,
                "length": length,
                "shares": None,
                "weights": weights,
                "epochs": None,
                "caps": {},
                "counts": order.counts(at, length),
                "achieved_shares": {},
            }
            for at, (name, length, weights) in enumerate(stages)
        ],
        "seq_len": seq_len,
        "packing": {"policy": "concat", "segment_multiple": multiple, "tail_pack": "masked_pad", "min_fill": "0.5"},
        "attention": attention,
        "label_policy": "all",
        "loss_normalisation": "token",
        "tail_batch": tail_batch,
        "seed": seed,
        "order": 1,
        "batch_schedule": [{"from_position": p, "global_batch": g} for p, g in schedule],
        "split": "train",
        "validation": [{"name": c.name, "catalog": c.catalog, "stats": c.stats, **c.counts} for c in validation],
        "quarantine": None,
        "duplicates": None,
        "ledgers": None,
        "continues": list(continues),
        "geometry": geometry_digest(
            seed=seed, order=1, seq_len=seq_len, batch_schedule=schedule, stages=stage_geometry, components=geometry
        ),
    }


def build_view(
    root: Path,
    *,
    rng_seed: int = 0,
    seq_len: int = 16,
    multiple: int = 1,
    erase: float = 0.15,
    epochs: float = 1.5,
    schedule: list[tuple[int, int]] | None = None,
    tail_batch: str = "drop",
    attention: str = "intra_document",
    n_docs: int = 30,
    stages: list[tuple[str, int, dict[str, int]]] | None = None,
) -> BuiltView:
    """Three components (one with uint32 tokens) of 3, 2 and 5 shards, one validation component, two stages by default."""
    rng = np.random.default_rng(rng_seed)
    shapes = [("web", 2, 3, "uint16"), ("code", 1, 2, "uint32"), ("math", 3, 5, "uint16")]
    components, validation = [], []
    for name, window, n_shards, dtype in [*shapes, ("held-out", 1, 2, "uint16")]:
        sources = [
            random_shard(rng, n_docs=n_docs + number, seq_len=seq_len, erase=erase, keep_tail=number % 2 == 0, top=VOCAB)
            for number in range(n_shards)
        ]
        if multiple != 1:
            for source in sources:
                source.packs = padded_packs(source.documents, seq_len, multiple)
        target = validation if name == "held-out" else components
        target.append(ComponentSource("web" if name == "held-out" else name, window, sources, dtype))
        write_component(root, target[-1], seq_len=seq_len, multiple=multiple)
    total = sum(sum(c.n_packs) for c in components)
    if stages is None:
        first = int(total * epochs * 0.6)
        stages = [("base", first, {"web": 5, "code": 2, "math": 1}), ("anneal", int(total * epochs) - first, {"web": 1, "math": 3})]
    manifest = make_manifest(
        components,
        validation,
        seq_len=seq_len,
        multiple=multiple,
        stages=stages,
        attention=attention,
        schedule=schedule or [(0, 8)],
        tail_batch=tail_batch,
    )
    path, view_id = publish(root, manifest)
    return BuiltView(root, path, view_id, manifest, components, validation)


def variant(built: BuiltView, *, stages: list[tuple[str, int, dict[str, int]]], **options: Any) -> BuiltView:
    """Another view over the same files."""
    options.setdefault("seq_len", built.manifest["seq_len"])
    manifest = make_manifest(built.components, built.validation, stages=stages, **options)
    path, view_id = publish(built.root, manifest)
    return BuiltView(built.root, path, view_id, manifest, built.components, built.validation)


def padded_packs(documents: list[Document], seq_len: int, multiple: int) -> list[list[tuple[int, int, int]]]:
    """Packs whose segments are rounded up to a multiple inside the sequence."""
    packs: list[list[tuple[int, int, int]]] = [[]]
    room = seq_len
    for number, (_, tokens, _) in enumerate(documents):
        start = 0
        while start < len(tokens):
            length = min(room, len(tokens) - start)
            packs[-1].append((number, start, length))
            start, room = start + length, room - -(-length // multiple) * multiple
            if room <= 0:
                packs.append([])
                room = seq_len
    return [pack for pack in packs if pack]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> BuiltView:
    """A view that no test changes."""
    return build_view(tmp_path_factory.mktemp("tiny") / "files")


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[..., BuiltView]:
    """Builds a view of its own for a test that changes or breaks files."""
    return lambda **options: build_view(tmp_path / "files", **options)


@pytest.fixture(scope="session")
def helpers() -> Any:
    """This file's functions, for tests that build by hand."""
    return sys.modules[__name__]
