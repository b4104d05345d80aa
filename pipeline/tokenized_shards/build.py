"""From kept documents to the token files and rows of a component, and the version of it all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import safetensors
import tokenizers

from pipeline.errors import ContractError, MixtureError
from pipeline.ledger import Ledger
from pipeline.recipe import Component, Packing, Tokenization, to_json
from pipeline.schemas import CATALOGS, SHARD_DOCS, SHARDS
from pipeline.stages import StageVersion
from pipeline.tokenized_shards.round_trip import add_round_trips, round_trip
from pipeline.tokenized_shards.shards import BuiltShard, Put, build_shard, document_order, put_catalog, put_stats, shard_edges
from pipeline.tokenized_shards.tokenizer import Tokenizer
from runview.shards import MAX_DOC_TOKENS, ShardHeader, relative_path

Array = npt.NDArray[Any]
CODE_VERSION = "1"
SPLITS = ("train", "validation")


@dataclass(frozen=True)
class TokenBatch:
    """Documents as tokens. doc_ids uint8 [n, 32]; tokens uint16 or uint32 [N]; offsets int64 [n + 1]; n_chars int64 [n];
    licences and purposes, one per document."""

    doc_ids: Array
    tokens: Array
    offsets: Array
    n_chars: Array
    licences: Sequence[str]
    purposes: Sequence[str]


@dataclass(frozen=True)
class BuiltComponent:
    """Everything a release keeps about one component and split; the files have been put.

    `ledger` is closed: tokens of kept documents = packed + lost by reason.
    """

    component: str
    split: str
    tokenizer_id: str
    purpose: str
    catalog_id: str
    stats_id: str
    dtype: str
    shards: tuple[BuiltShard, ...]
    doc_ids: Array
    n_chars: int
    licences: Mapping[str, int]
    fill: Fraction
    ledger: Ledger

    @property
    def n_docs(self) -> int:
        return len(self.doc_ids)

    @property
    def n_tokens(self) -> int:
        return self.ledger.total

    @property
    def n_packs(self) -> int:
        return sum(shard.n_packs for shard in self.shards)

    @property
    def n_loss_tokens(self) -> int:
        return sum(int(shard.n_loss_tokens.sum()) for shard in self.shards)

    @property
    def tokens_per_char(self) -> float:
        """Tokens, begin and end marks included, per Unicode code point."""
        return self.n_tokens / self.n_chars

    def tables(self, *, release: str, version: str) -> dict[str, pa.Table]:
        """Rows of `shards`, `shard_docs` and `catalogs` by table path, conformed."""
        same = {"version": version, "release": release, "component": self.component, "split": self.split}
        shards = [
            {
                **same,
                "shard_id": s.shard_id,
                "tokenizer_id": self.tokenizer_id,
                "purpose": self.purpose,
                "ordinal": s.ordinal,
                "path": relative_path("shards", s.shard_id),
                "size_bytes": s.size_bytes,
                "dtype": self.dtype,
                "n_docs": len(s.n_tokens),
                "n_tokens": int(s.n_tokens.sum()),
                "n_packs": s.n_packs,
                "pack_index_id": s.pack_index_id,
                "shard_blocks_sha256": s.shard_blocks_sha256,
                "pack_blocks_sha256": s.pack_blocks_sha256,
            }
            for s in self.shards
        ]
        docs = [
            pl.DataFrame(
                {
                    "doc_id": [self.doc_ids[i].tobytes().hex() for i in s.source.tolist()],
                    "ordinal": np.arange(len(s.n_tokens)),
                    "start": s.start,
                    "n_tokens": s.n_tokens,
                    "n_packed_tokens": s.n_packed_tokens,
                    "n_loss_tokens": s.n_loss_tokens,
                }
            ).with_columns(pl.lit(s.shard_id).alias("shard_id"), *(pl.lit(value).alias(name) for name, value in same.items()))
            for s in self.shards
        ]
        catalog = {
            **same,
            "tokenizer_id": self.tokenizer_id,
            "catalog_id": self.catalog_id,
            "stats_id": self.stats_id,
            "n_shards": len(self.shards),
            "n_docs": self.n_docs,
            "n_tokens": self.n_tokens,
            "n_packs": self.n_packs,
            "n_loss_tokens": self.n_loss_tokens,
            "n_chars": self.n_chars,
            "licences": list(self.licences.items()),
        }
        return {
            SHARDS.path: SHARDS.conform(pa.Table.from_pylist(shards, schema=SHARDS.schema)),
            SHARD_DOCS.path: SHARD_DOCS.conform(pl.concat(docs)),
            CATALOGS.path: CATALOGS.conform(pa.Table.from_pylist([catalog], schema=CATALOGS.schema)),
        }


def encode_documents(documents: pa.Table, *, tokenizer: Tokenizer, tokenization: Tokenization) -> TokenBatch:
    """Tokens of a batch of documents, each one tokenizer call, with begin and end tokens as the recipe asks.

    Args: documents with doc_id, text, n_chars, licence and purpose.
    Raises: ContractError naming a document that gives no token.
    """
    tokens, offsets = tokenizer.encode_batch(documents["text"].to_pylist(), begin=tokenization.begin_token, end=tokenization.end_token)
    doc_ids = documents["doc_id"].to_pylist()
    empty = np.flatnonzero(np.diff(offsets) == 0)
    if len(empty):
        raise ContractError(
            f"{len(empty)} kept documents give no token, first {doc_ids[int(empty[0])]}; "
            "drop empty documents in cleaning or set end_token = true"
        )
    return TokenBatch(
        np.frombuffer(bytes.fromhex("".join(doc_ids)), np.uint8).reshape(len(doc_ids), 32),
        tokens,
        offsets,
        documents["n_chars"].to_numpy(),
        documents["licence"].to_pylist(),
        documents["purpose"].to_pylist(),
    )


def build_release(
    batches: Iterable[pa.Table],
    *,
    components: Sequence[Component],
    tokenizer: Tokenizer,
    tokenization: Tokenization,
    packing: Packing,
    put: Put,
    round_trip_share: Decimal = Decimal("0.1"),
) -> tuple[list[BuiltComponent], pa.Table]:
    """Every component of a release, in the recipe's order: its train split, then its validation split where it has one.

    Args: batches of kept documents: doc_id, text, n_chars, licence, purpose, language, domain, `component` (from
        `components.assign`, asked once over all documents) and `split`.
    Returns: the built components, and the counts of `round_trip` over a seeded share of the documents.
    Raises: as `encode_documents` and `build_component`; a component without train documents is a MixtureError.
    Cost: holds the tokens of the release, 2 or 4 bytes each, and one batch of texts.
    """
    parts: dict[tuple[str, str], list[TokenBatch]] = {}
    counts = []
    for batch in batches:
        counts.append(round_trip(batch, tokenizer=tokenizer, seed=packing.seed, share=round_trip_share))
        pairs = pl.DataFrame({"component": batch["component"].to_pylist(), "split": batch["split"].to_pylist()})
        for component, split, rows in pairs.with_row_index().group_by("component", "split").agg("index").rows():
            documents = batch.take(pa.array(rows))
            parts.setdefault((component, split), []).append(encode_documents(documents, tokenizer=tokenizer, tokenization=tokenization))
    unknown = sorted({component for component, _ in parts} - {c.name for c in components} | {split for _, split in parts} - set(SPLITS))
    if unknown:
        raise ContractError(f"documents of components or splits {unknown}; known are {[c.name for c in components]} and {list(SPLITS)}")
    built = [
        build_component(parts.pop((c.name, split), []), component=c.name, split=split, tokenizer=tokenizer, packing=packing, put=put)
        for c in components
        for split in SPLITS
        if split == "train" or (c.name, split) in parts
    ]
    return built, add_round_trips(counts)


def build_component(
    batches: Iterable[TokenBatch],
    *,
    component: str,
    split: str,
    tokenizer: Tokenizer,
    packing: Packing,
    put: Put,
) -> BuiltComponent:
    """Shards, pack indexes, catalog and stats of one component and split.

    Args: batches of its documents, in any order and size; put(kind, bytes) -> sha256 stores a file of kind shards, packs,
        catalogs or stats, and for the first two `runview.shards.block_digests(bytes)` beside it as `<sha256>.blocks`.
    Raises: MixtureError, when there are no documents or no packs, purposes are mixed, or packs of the train split are filled
        less than `min_fill` (a handful of validation documents cannot fill a pack, and need not).
    Invariant: the order and batching of the input change no byte.
    Cost: holds the component's tokens (2 or 4 bytes each) and about 100 bytes a document; texts are never held.
    """
    what = f"component {component!r}, split {split}"
    docs = list(batches)
    doc_ids = np.concatenate([b.doc_ids for b in docs]) if docs else np.zeros((0, 32), np.uint8)
    if not len(doc_ids):
        raise MixtureError(f"{what}: no documents, at least one expected; change its predicate or remove the component")
    purposes = sorted({purpose for b in docs for purpose in b.purposes})
    if len(purposes) != 1:
        raise MixtureError(f"{what}: documents of purposes {purposes}, one expected; separate them by source")
    sizes = np.concatenate([np.diff(b.offsets) for b in docs])
    if int(sizes.max()) > MAX_DOC_TOKENS:
        raise ContractError(
            f"{what}: document {doc_ids[int(sizes.argmax())].tobytes().hex()} has {int(sizes.max())} tokens, at most {MAX_DOC_TOKENS}"
        )
    owner = np.repeat(np.arange(len(docs)), [len(b.doc_ids) for b in docs])
    local = np.concatenate([b.offsets[:-1] for b in docs])
    order = document_order(doc_ids, seed=packing.seed, component=component)
    edges = shard_edges(sizes[order], target_tokens=max(1, packing.shard_target_bytes // tokenizer.dtype.itemsize), seq_len=packing.seq_len)
    header = ShardHeader(
        tokenizer_id=tokenizer.tokenizer_id,
        bos=tokenizer.bos,
        eos=tokenizer.eos,
        pad=tokenizer.pad,
        fill_id=tokenizer.fill_id,
        component=component,
        purpose=purposes[0],
    )
    shards = []
    for ordinal, (first, last) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        here = order[first:last]
        places = zip(owner[here].tolist(), local[here].tolist(), sizes[here].tolist(), strict=True)
        slices = [docs[batch].tokens[start : start + size] for batch, start, size in places]
        shards.append(build_shard(ordinal, header=header, doc_ids=doc_ids[here], slices=slices, source=here, packing=packing, put=put))
    n_packs = sum(s.n_packs for s in shards)
    packed = sum(int(s.n_packed_tokens.sum()) for s in shards)
    lost: dict[str, int] = {}
    for shard in shards:
        for reason, n in shard.lost.items():
            lost[reason] = lost.get(reason, 0) + n
    if not n_packs:
        raise MixtureError(
            f"{what}: {int(sizes.sum())} tokens make no pack of {packing.seq_len}; add documents, or set tail_pack = masked_pad"
        )
    fill = Fraction(packed, n_packs * packing.seq_len)
    if split == "train" and fill < Fraction(packing.min_fill):
        raise MixtureError(
            f"{what}: {n_packs} packs hold {packed} tokens, {float(fill):.4f} of their room, min_fill is {packing.min_fill}; "
            "add documents, join it with another component, or lower seq_len or min_fill"
        )
    licences = dict(sorted(Counter(licence for b in docs for licence in b.licences).items()))
    n_chars = sum(int(b.n_chars.sum()) for b in docs)
    catalog_id = put_catalog(shards, put)
    stats_id = put_stats(np.concatenate([s.stats for s in shards]), put)
    ledger = Ledger(
        "tokens", "kept", int(sizes.sum()), {"packed": packed, "lost": lost}, {"n_docs": len(sizes), "n_chars": n_chars, "n_packs": n_packs}
    )
    return BuiltComponent(
        component=component,
        split=split,
        tokenizer_id=tokenizer.tokenizer_id,
        purpose=purposes[0],
        catalog_id=catalog_id,
        stats_id=stats_id,
        dtype=tokenizer.dtype.name,
        shards=tuple(shards),
        doc_ids=doc_ids,
        n_chars=n_chars,
        licences=licences,
        fill=fill,
        ledger=ledger.close(),
    )


def ledgers(built: Sequence[BuiltComponent]) -> dict[str, Ledger]:
    """The closed ledgers of a release's shards: `tokens` over all, and `tokens/<component>/<split>` of each."""
    lost: dict[str, int] = {}
    for part in built:
        reasons = part.ledger.parts["lost"]
        assert isinstance(reasons, Mapping)
        for reason, n in reasons.items():
            lost[reason] = lost.get(reason, 0) + n
    packed = sum(int(s.n_packed_tokens.sum()) for part in built for s in part.shards)
    extra = {f"n_{what}": sum(getattr(part, f"n_{what}") for part in built) for what in ("docs", "chars", "packs")}
    total = Ledger("tokens", "kept", sum(part.n_tokens for part in built), {"packed": packed, "lost": lost}, extra)
    return {"tokens": total.close(), **{ledger_name(part.component, part.split): part.ledger for part in built}}


def ledger_name(component: str, split: str) -> str:
    """Name of one component's ledger among a release's."""
    return f"tokens/{component}/{split}"


def stage_version(
    tokenization: Tokenization,
    packing: Packing,
    components: Sequence[Component],
    *,
    release: str,
    tokenizer: Tokenizer,
    decisions_version: str,
    documents_versions: Mapping[str, str],
) -> StageVersion:
    """Identity of the shards of a release under a tokenizer.

    Args: documents_versions, `<source>/<snapshot>` -> version. Windows and caps of components are the view's, not here.
    The tokenizer enters by its id, so its name, which is only where it was found, is in the partition alone.
    """
    predicates = ("name", "sources", "languages", "kinds", "domains")
    return StageVersion(
        stage="shards",
        state="tokenized_shards",
        partition={"release": release, "tokenizer": tokenizer.name},
        code_version=CODE_VERSION,
        recipe_part={
            "tokenization": {"begin_token": tokenization.begin_token, "end_token": tokenization.end_token},
            "packing": to_json(packing),
            "components": [{key: to_json(getattr(c, key)) for key in predicates} for c in components],
        },
        parents={"decisions": decisions_version, **{f"documents/{key}": value for key, value in documents_versions.items()}},
        models={"tokenizer": tokenizer.tokenizer_id},
        packages={"tokenizers": tokenizers.__version__, "safetensors": safetensors.__version__},
    )
