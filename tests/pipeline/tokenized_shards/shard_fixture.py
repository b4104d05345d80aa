"""A small release with everything in it, made from synthetic texts: three components, several shards, both splits.

Run as a program it prints the ids of all its files and of its view; `test_shard_literals.py` compares fresh processes.
"""

import hashlib
import json
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa

from pipeline.recipe import (
    Cleaning,
    Component,
    Decisions,
    Duplicates,
    Language,
    Packing,
    Recipe,
    Split,
    StageSpec,
    Tokenization,
    View,
)
from pipeline.tokenized_shards.build import BuiltComponent, build_release
from pipeline.tokenized_shards.components import assign
from pipeline.tokenized_shards.tokenizer import Roles, Tokenizer
from runview.shards import block_digests, relative_path

END, PAD = "<|end|>", "<|pad|>"


def byte_tokenizer_json(*, specials: tuple[str, ...] = (END, PAD), normalizer: object = None) -> bytes:
    """A byte-level tokenizer without merges, spelled out: id 0 and up the special tokens, then the 256 bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    letters = [chr(b) for b in printable] + [chr(256 + i) for i in range(len(others))]
    vocab = {token: i for i, token in enumerate([*specials, *letters])}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [{"id": i, "content": token, **flags} for i, token in enumerate(specials)],
            "normalizer": normalizer,
            "pre_tokenizer": level,
            "post_processor": None,
            "decoder": level,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": vocab,
                "merges": [],
            },
        }
    ).encode()


def byte_tokenizer(*, normalizer: object = None) -> Tokenizer:
    return Tokenizer("bytes", tokenizer_json=byte_tokenizer_json(normalizer=normalizer), roles=Roles(eos=END, pad=PAD))


def documents(n: int = 90) -> pa.Table:
    """Kept documents: code, English and Korean prose, of 1 to about 400 tokens, every seventh for validation."""
    rows = []
    for i in range(n):
        kind, language = (("code", "zxx"), ("prose", "en"), ("prose", "ko"))[i % 3]
        body = {"zxx": f"def f_{i}(x):\n    return x + {i}\n", "en": f"Sentence {i} says a little. ", "ko": f"문장 {i}번은 짧다. "}[
            language
        ]
        text = body * (1 + (i * i) % 11)
        rows.append(
            {
                "doc_id": hashlib.sha256(f"document {i}".encode()).hexdigest(),
                "text": text,
                "n_chars": len(text),
                "source": "made",
                "kind": kind,
                "language": language,
                "domain": "python" if kind == "code" else "general",
                "licence": "MIT" if i % 2 else "CC0-1.0",
                "purpose": "pretrain",
                "split": "validation" if i % 7 == 3 else "train",
            }
        )
    return pa.Table.from_pylist(rows)


def recipe(**packing: object) -> Recipe:
    fields = {"policy": "best_fit", "seq_len": 128, "seed": "0badcafe", "shard_target_bytes": 4096, **packing}
    return Recipe(
        name="fixture",
        cleaning=Cleaning(Language(20, Decimal("0.5"), ("en", "ko")), ()),
        duplicates=Duplicates(),
        split=Split("00", Decimal("0.1")),
        decisions=Decisions(("language",)),
        tokenization=Tokenization("bytes"),
        packing=Packing(**fields),  # type: ignore[arg-type]
        components=(
            Component("code", kinds=("code",), window=2, max_epochs=Decimal(3)),
            Component("prose-en", kinds=("prose",), languages=("en", "und"), max_epochs=Decimal(2)),
            Component("korean", kinds=("prose",), languages=("ko",), max_epochs=Decimal("2.5")),
        ),
        view=View(
            name="fixture",
            seed="1234",
            global_batch=4,
            stages=(
                StageSpec("main", {"code": Decimal("0.5"), "prose-en": Decimal("0.3"), "korean": Decimal("0.2")}, budget_tokens=6000),
                StageSpec("once", epochs=Decimal("0.5")),
            ),
        ),
        text="name = 'fixture'\n",
    )


class Files:
    """Where `put` puts files: in memory, by place below the loader's root, with `.blocks` beside shards and packs."""

    def __init__(self) -> None:
        self.by_path: dict[str, bytes] = {}

    def put(self, kind: str, data: bytes) -> str:
        sha256 = hashlib.sha256(data).hexdigest()
        path = relative_path(kind, sha256)
        self.by_path[path] = data
        if kind in ("shards", "packs"):
            self.by_path[path.removesuffix(".safetensors") + ".blocks"] = block_digests(data)
        return sha256

    def get(self, kind: str, sha256: str) -> bytes:
        return self.by_path[relative_path(kind, sha256)]

    def write(self, root: Path) -> None:
        for name, data in self.by_path.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)


def with_components(table: pa.Table, made: Recipe) -> pa.Table:
    return table.append_column("component", assign(table, made.components))


def build(batches: Iterable[pa.Table], made: Recipe, files: Files) -> tuple[list[BuiltComponent], pa.Table]:
    return build_release(
        batches,
        components=made.components,
        tokenizer=byte_tokenizer(),
        tokenization=made.tokenization,
        packing=made.packing,
        put=files.put,
        round_trip_share=Decimal(1),
    )
