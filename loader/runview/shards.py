"""The files of a run view: shards, pack indexes, catalogs, stats, block digests. README.md has them byte by byte.

Writers return bytes (the caller stores them under their sha256); readers give numpy views over a memory map and
check every offset first. All offsets are 64-bit: a 32-bit one wraps at 2 GiB and turns negative (Megatron-LM #1672).
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import numpy as np
from safetensors.numpy import save

from runview.canonical import canonical_json
from runview.errors import FormatError
from runview.tensors import METADATA_KEY, Check, Source, TensorFile, open_tensors

FORMAT = 1
BLOCK_BYTES = 262144  # 256 KiB: about 0.15 ms of sha256, and one cheap range read
MAX_DOC_TOKENS = 2**31
KINDS = ("shards", "packs", "catalogs", "stats")
LIVE, ERASED = 0, 1

Array = np.ndarray[Any, Any]
Digests = Array | Sequence[str]


@dataclass(frozen=True, kw_only=True)
class ShardHeader:
    """What the tokens of a shard mean. `requires` names features a reader must know; this version knows none.

    `fill_id` stands where a document was erased. `bos`, `eos`, `pad` are None when the tokenizer has no such token;
    nothing in the loader is ever decided by comparing a token with them.
    """

    tokenizer_id: str
    fill_id: int
    component: str
    format: int = FORMAT
    requires: tuple[str, ...] = ()
    bos: int | None = None
    eos: int | None = None
    pad: int | None = None
    purpose: str = "pretrain"
    layout: str = "packed"

    def to_json(self) -> str:
        return canonical_json(asdict(self)).decode("ascii")

    @classmethod
    def from_json(cls, text: str, name: str = "<bytes>") -> Self:
        """Parse and validate; FormatError names the field."""
        values = _metadata(text, name)
        names = {field.name for field in fields(cls)}
        if set(values) != names:
            raise FormatError(
                f"{name}: shard header has unknown fields {sorted(set(values) - names)} and lacks {sorted(names - set(values))}"
            )
        if values["format"] != FORMAT:
            raise FormatError(f"{name}: shard format {values['format']!r}, this reader knows {FORMAT}; upgrade runview")
        if values["requires"] != []:
            raise FormatError(f"{name}: shard requires {values['requires']!r}, unknown to this reader; upgrade runview")
        for field in ("tokenizer_id", "component", "purpose", "layout"):
            if not isinstance(values[field], str):
                raise FormatError(f"{name}: shard header field {field!r} must be a string")
        for field in ("bos", "eos", "pad", "fill_id"):
            value = values[field]
            if not (type(value) is int and 0 <= value < 2**32) and not (value is None and field != "fill_id"):
                raise FormatError(f"{name}: shard header field {field!r} must be a token id, found {value!r}")
        return cls(**(values | {"requires": ()}))


def shard_bytes(header: ShardHeader, *, tokens: Array, doc_offsets: Array, doc_ids: Array, doc_state: Array | None = None) -> bytes:
    """One shard file. tokens uint16 or uint32 [N]; doc_offsets [D+1]; doc_ids uint8 [D,32]; doc_state uint8 [D].

    Raises FormatError when offsets are not increasing or do not end at N: an unreadable file is never made.
    """
    if tokens.dtype not in (np.uint16, np.uint32) or tokens.ndim != 1:
        raise FormatError(f"tokens must be a 1-D uint16 or uint32 array, found {tokens.dtype} {tokens.shape}")
    offsets = _as(doc_offsets, "doc_offsets", "<i8")
    ids = _as(doc_ids, "doc_ids", "|u1")
    state = _as(np.zeros(len(ids), np.uint8) if doc_state is None else doc_state, "doc_state", "|u1")
    data = _save(header.to_json(), {"tokens": tokens, "doc_offsets": offsets, "doc_ids": ids, "doc_state": state})
    Shard(data)
    return data


def pack_index_bytes(*, pack_offsets: Array, segment_doc: Array, segment_start: Array, segment_length: Array) -> bytes:
    """One pack index: pack p holds segments [pack_offsets[p], pack_offsets[p+1]); see PackIndex."""
    data = _save(
        _kind_json("packs"),
        {
            "pack_offsets": _as(pack_offsets, "pack_offsets", "<i8"),
            "segment_doc": _as(segment_doc, "segment_doc", "<i8"),
            "segment_start": _as(segment_start, "segment_start", "<i8"),
            "segment_length": _as(segment_length, "segment_length", "<i4"),
        },
    )
    PackIndex(data)
    return data


def catalog_bytes(
    *,
    shard_id: Digests,
    pack_index_id: Digests,
    shard_blocks_sha256: Digests,
    pack_blocks_sha256: Digests,
    n_docs: Array,
    n_tokens: Array,
    n_packs: Array,
    size_bytes: Array,
) -> bytes:
    """One catalog, a row per shard in build order. Digests as uint8 [S,32] or as hex strings; counts int64 [S]."""
    tensors = {
        "shard_id": _digests(shard_id),
        "pack_index_id": _digests(pack_index_id),
        "shard_blocks_sha256": _digests(shard_blocks_sha256),
        "pack_blocks_sha256": _digests(pack_blocks_sha256),
    }
    counts = {"n_docs": n_docs, "n_tokens": n_tokens, "n_packs": n_packs, "size_bytes": size_bytes}
    data = _save(_kind_json("catalog"), tensors | {name: _as(value, name, "<i8") for name, value in counts.items()})
    Catalog(data)
    return data


def stats_bytes(stats: Array) -> bytes:
    """One stats file: uint32 [n_packs, 4], columns as `pack_stats` makes them, in catalog, then index order."""
    data = _save(_kind_json("stats"), {"stats": _as(stats, "stats", "<u4")})
    read_stats(data)
    return data


def block_digests(data: bytes) -> bytes:
    """The raw sha256 of each 256 KiB of a file from byte 0, the last may be short; stored as `<sha256>.blocks`."""
    view = memoryview(data)
    return b"".join(hashlib.sha256(view[i : i + BLOCK_BYTES]).digest() for i in range(0, len(view), BLOCK_BYTES))


def relative_path(kind: str, sha256: str) -> str:
    """Where a file lies below the loader's root: `<kind>/<first two digits>/<sha256>.safetensors`."""
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {KINDS}, found {kind!r}")
    if len(sha256) != 64 or not set(sha256) <= set("0123456789abcdef"):
        raise ValueError(f"a sha256 in lower-case hex expected, found {sha256!r}")
    return f"{kind}/{sha256[:2]}/{sha256}.safetensors"


class Shard:
    """Tokens and document boundaries of one shard, as views over its bytes.

    Attributes: header; tokens [N]; doc_offsets int64 [D+1]; doc_ids uint8 [D,32]; doc_state uint8 [D];
    token_bytes, the byte range of the tokens in the file. `check`, when given, is called with a byte range before any
    of those bytes is believed; tokens and doc_ids are left to the caller to check, since they are read piece by piece.
    """

    def __init__(self, source: Source, *, check: Check | None = None, name: str | None = None) -> None:
        file = open_tensors(source, check=check, name=name)
        _only(file, ("tokens", "doc_offsets", "doc_ids", "doc_state"))
        self.name = file.name
        self.header = ShardHeader.from_json(file.metadata, file.name)
        self.tokens = file.array("tokens", ("U16", "U32"), (None,))
        self.doc_offsets = file.array("doc_offsets", ("I64",), (None,))
        self.n_docs = len(self.doc_offsets) - 1
        self.doc_ids = file.array("doc_ids", ("U8",), (self.n_docs, 32))
        self.doc_state = file.array("doc_state", ("U8",), (self.n_docs,))
        self.token_bytes, self.doc_id_bytes = file.extents["tokens"], file.extents["doc_ids"]
        if check:
            check(*file.extents["doc_offsets"])
            check(*file.extents["doc_state"])
        check_offsets(self.doc_offsets, len(self.tokens), f"{self.name}: doc_offsets", strict=True)
        if self.n_docs and int(np.diff(self.doc_offsets).max()) > MAX_DOC_TOKENS:
            raise FormatError(f"{self.name}: a document is longer than {MAX_DOC_TOKENS} tokens")
        if (self.doc_state > ERASED).any():
            raise FormatError(f"{self.name}: doc_state holds {int(self.doc_state.max())}, 0 (live) or 1 (erased) expected")


class PackIndex:
    """Which token ranges make each pack of one shard, as views over the file's bytes.

    Pack p holds segments [pack_offsets[p], pack_offsets[p+1]). Segment s is the tokens [segment_start, segment_start +
    segment_length) of document number `segment_doc` of the shard. The index names no shard.
    """

    def __init__(self, source: Source, *, check: Check | None = None, name: str | None = None) -> None:
        file = open_tensors(source, check=check, name=name)
        if check:
            check(0, file.size_bytes)
        _only(file, ("pack_offsets", "segment_doc", "segment_start", "segment_length"))
        _check_kind(file, "packs")
        self.name = file.name
        self.pack_offsets = file.array("pack_offsets", ("I64",), (None,))
        self.segment_doc = file.array("segment_doc", ("I64",), (None,))
        self.segment_start = file.array("segment_start", ("I64",), (len(self.segment_doc),))
        self.segment_length = file.array("segment_length", ("I32",), (len(self.segment_doc),))
        self.n_packs = len(self.pack_offsets) - 1
        check_offsets(self.pack_offsets, len(self.segment_doc), f"{self.name}: pack_offsets", strict=True)
        if len(self.segment_doc) and (
            int(self.segment_length.min()) < 1 or int(self.segment_start.min()) < 0 or int(self.segment_doc.min()) < 0
        ):
            raise FormatError(f"{self.name}: a segment has no token, or a negative start or document")

    def token_ranges(self, shard: Shard) -> tuple[Array, Array]:
        """Per segment: its begin in the shard's tokens and its document's end; FormatError if it reaches outside."""
        if len(self.segment_doc) and int(self.segment_doc.max()) >= shard.n_docs:
            raise FormatError(f"{self.name}: names document {int(self.segment_doc.max())}, {shard.name} has {shard.n_docs}")
        begin = shard.doc_offsets[self.segment_doc] + self.segment_start
        doc_end = shard.doc_offsets[self.segment_doc + 1]
        if (begin + self.segment_length > doc_end).any():
            bad = int(np.flatnonzero(begin + self.segment_length > doc_end)[0])
            raise FormatError(f"{self.name}: segment {bad} reaches past the end of its document in {shard.name}")
        return begin, doc_end


class Catalog:
    """The shards of one component and split, in build order: digests uint8 [S,32], counts int64 [S]."""

    def __init__(self, source: Source, *, name: str | None = None) -> None:
        file = open_tensors(source, name=name)
        digests = ("shard_id", "pack_index_id", "shard_blocks_sha256", "pack_blocks_sha256")
        counts = ("n_docs", "n_tokens", "n_packs", "size_bytes")
        _only(file, digests + counts)
        _check_kind(file, "catalog")
        self.name = file.name
        self.n_shards = len(file.array("n_packs", ("I64",), (None,)))
        self.shard_id, self.pack_index_id, self.shard_blocks_sha256, self.pack_blocks_sha256 = (
            [row.tobytes().hex() for row in file.array(key, ("U8",), (self.n_shards, 32))] for key in digests
        )
        self.n_docs, self.n_tokens, self.n_packs, self.size_bytes = (file.array(key, ("I64",), (self.n_shards,)) for key in counts)
        for key in counts:
            if self.n_shards and int(getattr(self, key).min()) < 0:
                raise FormatError(f"{self.name}: {key} holds a negative count")


def read_stats(source: Source, *, name: str | None = None) -> Array:
    """The uint32 [n_packs, 4] array of a stats file."""
    file = open_tensors(source, name=name)
    _only(file, ("stats",))
    _check_kind(file, "stats")
    return file.array("stats", ("U32",), (None, 4))


def pack_stats(shard: Shard, packs: PackIndex, *, seq_len: int, segment_multiple: int = 1) -> Array:
    """The stats rows of one shard's packs under label policy `all`: the one definition for builder and verifier.

    Columns: tokens of live documents; sum of label weights in 1/1000; supervised samples (segments with at least one
    label); ceil(sum of squared segment lengths / seq_len), lengths rounded up to `segment_multiple`. A token has a
    label when its document continues after it, also past the segment's end. Erased documents count in the last column
    alone: they are computed, but not trained on. Padding counts nowhere.
    """
    begin, doc_end = packs.token_ranges(shard)
    length = packs.segment_length.astype(np.int64)
    live = shard.doc_state[packs.segment_doc] == LIVE
    labels = np.where(live, length - (begin + length == doc_end), 0)
    padded = -(-length // segment_multiple) * segment_multiple
    columns = [np.where(live, length, 0), labels * 1000, (labels > 0).astype(np.int64), padded * padded]
    sums = np.stack([_pack_sums(column, packs.pack_offsets) for column in columns], axis=1)
    sums[:, 3] = -(-sums[:, 3] // seq_len)
    if sums.size and int(sums.max()) >= 2**32:
        raise FormatError(f"{packs.name}: a pack's statistic does not fit 32 bits; use a smaller seq_len")
    return sums.astype(np.uint32)


def check_offsets(offsets: Array, length: int, what: str, *, strict: bool = False) -> None:
    """FormatError unless offsets are int64, start at 0, increase (strictly, if asked) and end at `length`."""
    if offsets.dtype != np.int64 or offsets.ndim != 1 or len(offsets) < 1:
        raise FormatError(f"{what}: int64 [n+1] expected, found {offsets.dtype} {offsets.shape}")
    steps = np.diff(offsets)
    if int(offsets[0]) != 0 or (len(steps) and int(steps.min()) < (1 if strict else 0)):
        bad = int(np.argmin(steps)) + 1 if len(steps) else 0
        raise FormatError(f"{what}: must start at 0 and increase; entry {bad} is {int(offsets[bad])} after {int(offsets[max(0, bad - 1)])}")
    if int(offsets[-1]) != length:
        raise FormatError(f"{what}: must end at {length}, found {int(offsets[-1])}")


def _pack_sums(column: Array, pack_offsets: Array) -> Array:
    total = np.concatenate([np.zeros(1, np.int64), np.cumsum(column, dtype=np.int64)])
    sums: Array = np.diff(total[pack_offsets])
    return sums


def _as(value: Array, name: str, dtype: str) -> Array:
    array = np.ascontiguousarray(value)
    if array.dtype.kind not in "iub":
        raise FormatError(f"{name} must hold integers, found {array.dtype}")
    if array.size and (int(array.min()) < np.iinfo(dtype).min or int(array.max()) > np.iinfo(dtype).max):
        raise FormatError(f"{name} holds {int(array.min())} to {int(array.max())}, which does not fit {np.dtype(dtype)}")
    return array.astype(dtype)


def _digests(value: Digests) -> Array:
    if isinstance(value, np.ndarray):
        array = value
    else:
        array = np.frombuffer(b"".join(bytes.fromhex(item) for item in value), np.uint8).reshape(-1, 32)
    if array.dtype != np.uint8 or array.ndim != 2 or array.shape[1] != 32:
        raise FormatError(f"digests must be uint8 [n,32] or hex strings, found {array.dtype} {array.shape}")
    return np.ascontiguousarray(array)


def _save(metadata: str, tensors: dict[str, Array]) -> bytes:
    """One metadata key only: the library writes several in random order, which would change the digest."""
    return save({name: np.ascontiguousarray(array) for name, array in tensors.items()}, metadata={METADATA_KEY: metadata})


def _kind_json(kind: str) -> str:
    return canonical_json({"format": FORMAT, "kind": kind}).decode("ascii")


def _metadata(text: str, name: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise FormatError(f"{name}: metadata is not JSON") from error
    if not isinstance(values, dict):
        raise FormatError(f"{name}: metadata is not a JSON object")
    return values


def _check_kind(file: TensorFile, kind: str) -> None:
    if file.metadata != _kind_json(kind):
        raise FormatError(f"{file.name}: metadata {_kind_json(kind)} expected, found {file.metadata[:200]}")


def _only(file: TensorFile, names: tuple[str, ...]) -> None:
    if set(file.arrays) - set(names):
        raise FormatError(f"{file.name}: unknown tensors {sorted(set(file.arrays) - set(names))}; upgrade runview")
