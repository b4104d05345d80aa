"""File formats: bytes pinned by literal digests, offsets checked, dtype from the header, block digests."""

import hashlib
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from runview import shards
from runview.errors import FormatError, MissingFileError
from runview.shards import Catalog, PackIndex, Shard, ShardHeader, check_offsets, pack_stats, read_stats

HEADER = ShardHeader(tokenizer_id="ab" * 32, bos=None, eos=1, pad=0, fill_id=2, component="web")
DOC_IDS = np.arange(64, dtype=np.uint8).reshape(2, 32)


def small_shard(**changes: Any) -> bytes:
    values = {"tokens": np.arange(10, dtype=np.uint16), "doc_offsets": np.array([0, 4, 10]), "doc_ids": DOC_IDS}
    return shards.shard_bytes(HEADER, **(values | changes))


def small_packs(**changes: Any) -> bytes:
    values = {
        "pack_offsets": np.array([0, 1, 3]),
        "segment_doc": np.array([0, 0, 1]),
        "segment_start": np.array([0, 3, 0]),
        "segment_length": np.array([3, 1, 5]),
    }
    return shards.pack_index_bytes(**(values | changes))


def small_catalog() -> bytes:
    digests = [f"{n:02x}" * 32 for n in range(2)]
    counts = {name: np.array([n, n + 1]) for n, name in enumerate(("n_docs", "n_tokens", "n_packs", "size_bytes"))}
    return shards.catalog_bytes(shard_id=digests, pack_index_id=digests, shard_blocks_sha256=digests, pack_blocks_sha256=digests, **counts)


MAKERS: dict[str, Callable[[], bytes]] = {
    "shard16": small_shard,
    "shard32": lambda: small_shard(tokens=np.arange(10, dtype=np.uint32) + 70000, doc_state=np.array([1, 0], np.uint8)),
    "packs": small_packs,
    "catalog": small_catalog,
    "stats": lambda: shards.stats_bytes(np.arange(8).reshape(2, 4)),
}
SHA256 = {
    "shard16": "6c4898ec2f199c30d241236bfa02cfea506aed7bff1688b2b0762065d54bcbf6",
    "shard32": "929f2dbf8414b7c1be053a6caf360d206b4ee8c04aa5c6d1dbdd3ddeccb30e02",
    "packs": "4901851e46f9c32693adeaac792748e49cf50d3481384ceec5cc0b1234c9e388",
    "catalog": "c365d975a7dd5d9d5855643fb7c6397fe43480ff5989d7dae08f3a2e8d393f65",
    "stats": "10ac0ffe1127b489369f587cb9e69ce42471399177df55f10b08f30c83afad53",
}


@pytest.mark.parametrize("name", MAKERS)
def test_bytes_are_pinned(name: str) -> None:
    assert hashlib.sha256(MAKERS[name]()).hexdigest() == SHA256[name]


def test_bytes_are_equal_in_fresh_processes(tmp_path: Path) -> None:
    code = (
        "import hashlib, sys; sys.path[:0] = sys.argv[1:]; import test_shards as t; "
        "print(*[hashlib.sha256(make()).hexdigest() for make in t.MAKERS.values()])"
    )
    import runview

    paths = [str(Path(__file__).parent), str(Path(runview.__file__).parents[1])]
    for seed in ("0", "1", "77"):
        out = subprocess.run(
            [sys.executable, "-B", "-c", code, *paths],
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        assert out.stdout.split() == [SHA256[name] for name in MAKERS]


def test_the_container_is_safetensors() -> None:
    data = small_shard()
    loaded = safetensors.numpy.load(data)
    assert {k: (v.dtype.name, v.shape) for k, v in loaded.items()} == {
        "tokens": ("uint16", (10,)),
        "doc_offsets": ("int64", (3,)),
        "doc_ids": ("uint8", (2, 32)),
        "doc_state": ("uint8", (2,)),
    }
    (size,) = struct.unpack("<Q", data[:8])
    metadata = json.loads(data[8 : 8 + size])["__metadata__"]
    assert list(metadata) == ["runview"]
    assert metadata["runview"] == (
        '{"bos":null,"component":"web","eos":1,"fill_id":2,"format":1,"layout":"packed","pad":0,"purpose":"pretrain",'
        '"requires":[],"tokenizer_id":"' + "ab" * 32 + '"}'
    )


def test_shard_reads_back_from_path_and_bytes(tmp_path: Path) -> None:
    data = MAKERS["shard32"]()
    (tmp_path / "s.safetensors").write_bytes(data)
    for source in (data, tmp_path / "s.safetensors", str(tmp_path / "s.safetensors")):
        shard = Shard(source)
        assert shard.header == HEADER
        assert shard.tokens.dtype == np.uint32
        assert shard.tokens.tolist() == list(range(70000, 70010))
        assert shard.doc_state.tolist() == [1, 0]
        assert shard.doc_offsets.tolist() == [0, 4, 10]
        assert (shard.doc_ids == DOC_IDS).all()
        assert not shard.tokens.flags.owndata
        assert not shard.tokens.flags.writeable
    begin, end = shard.token_bytes
    assert np.frombuffer(data[begin:end], "<u4").tolist() == shard.tokens.tolist()


def test_pack_index_catalog_and_stats_read_back() -> None:
    packs = PackIndex(small_packs())
    assert packs.n_packs == 2
    assert packs.pack_offsets.dtype == np.int64
    assert packs.segment_length.dtype == np.int32
    begin, doc_end = packs.token_ranges(Shard(small_shard()))
    assert begin.tolist() == [0, 3, 4]
    assert doc_end.tolist() == [4, 4, 10]
    catalog = Catalog(small_catalog())
    assert catalog.shard_id == ["00" * 32, "01" * 32]
    assert catalog.size_bytes.tolist() == [3, 4]
    assert read_stats(MAKERS["stats"]()).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_pack_stats_by_literal_example() -> None:
    packs = PackIndex(small_packs())
    # pack 0: tokens 0-2 of document 0, which goes on: 3 labels. pack 1: its last token (no label), then 5 of 6 tokens.
    assert pack_stats(Shard(small_shard()), packs, seq_len=6).tolist() == [[3, 3000, 1, 2], [6, 5000, 1, 5]]
    assert pack_stats(Shard(small_shard()), packs, seq_len=6, segment_multiple=4)[:, 3].tolist() == [3, 14]
    erased = Shard(small_shard(doc_state=np.array([0, 1], np.uint8)))
    assert pack_stats(erased, packs, seq_len=6).tolist() == [[3, 3000, 1, 2], [1, 0, 0, 5]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"doc_offsets": np.array([0, 4, 9])}, "must end at 10, found 9"),
        ({"doc_offsets": np.array([1, 4, 10])}, "must start at 0"),
        ({"doc_offsets": np.array([0, 0, 10])}, "must start at 0 and increase"),
        ({"doc_offsets": np.array([0, 11, 10])}, "must start at 0 and increase"),
        ({"doc_offsets": np.array([0.0, 4.0, 10.0])}, "must hold integers"),
        ({"doc_ids": DOC_IDS[:1]}, "must have shape"),
        ({"doc_ids": DOC_IDS.astype(np.int64) + 250}, "does not fit"),
        ({"doc_state": np.array([0, 2])}, "doc_state holds 2"),
        ({"tokens": np.arange(10)}, "uint16 or uint32"),
        ({"tokens": np.arange(10, dtype=np.uint16).reshape(2, 5)}, "1-D"),
    ],
)
def test_shard_refuses(change: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        small_shard(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"segment_length": np.array([3, 0, 5])}, "has no token"),
        ({"segment_start": np.array([0, -1, 0])}, "negative"),
        ({"segment_length": np.array([3, 2**31, 5])}, "does not fit int32"),
        ({"pack_offsets": np.array([0, 1, 1, 3])}, "increase"),
        ({"segment_doc": np.array([0, 0])}, "shape|end at"),
    ],
)
def test_pack_index_refuses(change: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        small_packs(**change)


def test_segments_outside_their_document_are_refused() -> None:
    shard = Shard(small_shard())
    with pytest.raises(FormatError, match="segment 1 reaches past the end"):
        PackIndex(small_packs(segment_length=np.array([3, 2, 5]))).token_ranges(shard)
    with pytest.raises(FormatError, match="names document 2"):
        PackIndex(small_packs(segment_doc=np.array([0, 0, 2]))).token_ranges(shard)


def test_offsets_that_wrapped_at_32_bits_are_refused() -> None:
    """Rows of 900 MiB: computed in 32 bits the offsets go negative; in 64 bits they hold (index alone, no payload)."""
    rows = np.array([943718400] * 5)
    right = np.concatenate([[0], np.cumsum(rows)])
    assert right.tolist() == [0, 943718400, 1887436800, 2831155200, 3774873600, 4718592000]
    check_offsets(right, 4718592000, "index", strict=True)
    with np.errstate(over="ignore"):
        wrapped = np.concatenate([[0], np.cumsum(rows.astype(np.int32), dtype=np.int32)]).astype(np.int64)
    assert wrapped.tolist() == [0, 943718400, 1887436800, -1463812096, -520093696, 423624704]
    with pytest.raises(FormatError, match="entry 3 is -1463812096 after 1887436800"):
        check_offsets(wrapped, 4718592000, "index")
    with pytest.raises(FormatError, match="int64"):
        check_offsets(right.astype(np.uint64), 4718592000, "index")
    with pytest.raises(FormatError, match="must end at 4718592001"):
        check_offsets(right, 4718592001, "index")


def test_a_shard_above_4_gib_keeps_its_offsets(tmp_path: Path) -> None:
    """A sparse file of 2^32 + 6 tokens: positions past 2^32 are read from where they are."""
    n, docs = 2**32 + 6, 3
    offsets = np.array([0, 2**31, 2**32, n], "<i8")
    sizes = [
        ("doc_offsets", "I64", [docs + 1], 32),
        ("tokens", "U16", [n], 2 * n),
        ("doc_ids", "U8", [docs, 32], 96),
        ("doc_state", "U8", [docs], 3),
    ]
    header: dict[str, Any] = {"__metadata__": {"runview": HEADER.to_json()}}
    at = 0
    for name, dtype, shape, size in sizes:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(tmp_path / "big.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + offsets.tobytes())
        file.seek(8 + len(text) + 32 + 2 * (2**32))
        file.write(np.array([7, 8, 9, 10, 11, 12], "<u2").tobytes())
        file.truncate(8 + len(text) + at)
    shard = Shard(tmp_path / "big.safetensors")
    packs = PackIndex(
        shards.pack_index_bytes(
            pack_offsets=np.array([0, 1]), segment_doc=np.array([2]), segment_start=np.array([2]), segment_length=np.array([3])
        )
    )
    begin, doc_end = packs.token_ranges(shard)
    assert begin.tolist() == [2**32 + 2]
    assert doc_end.tolist() == [n]
    assert shard.tokens[int(begin[0]) : int(begin[0]) + 3].tolist() == [9, 10, 11]


def rewritten(data: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """The same file with its JSON header changed."""
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + size :]


def metadata_change(**fields: Any) -> Callable[[dict[str, Any]], None]:
    def change(header: dict[str, Any]) -> None:
        values = json.loads(header["__metadata__"]["runview"]) | fields
        header["__metadata__"]["runview"] = json.dumps({k: v for k, v in values.items() if v != "absent"})

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (metadata_change(format=2), "format 2"),
        (metadata_change(requires=["spans"]), r"requires \['spans'\]"),
        (metadata_change(colour="red"), "unknown fields .*colour"),
        (metadata_change(fill_id="absent"), "lacks .*fill_id"),
        (metadata_change(fill_id=None), "'fill_id' must be a token id"),
        (metadata_change(eos=-1), "'eos' must be a token id"),
        (lambda h: h["__metadata__"].update(more="x"), "exactly one key"),
        (lambda h: h.pop("__metadata__"), "exactly one key"),
        (lambda h: h["tokens"].update(dtype="I32"), "does not fill|must be U16 or U32"),
        (lambda h: h["tokens"].update(dtype="F16"), "dtype 'F16'"),
        (lambda h: h["tokens"].update(shape=[9]), "does not fill"),
        (lambda h: h["tokens"].update(data_offsets=[26, 46]), "hole or overlap|ends at byte"),
        (lambda h: h["doc_state"].update(shape=[-2]), "non-negative"),
        (lambda h: h.pop("doc_state"), "after the last tensor"),
        (lambda h: h.update(spare=h.pop("doc_state")), "unknown tensors"),
    ],
)
def test_hand_edited_headers_are_refused(change: Callable[[dict[str, Any]], None], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        Shard(rewritten(small_shard(), change))


def test_dtype_comes_from_the_header_and_reinterpretation_is_refused() -> None:
    def halve(header: dict[str, Any]) -> None:
        header["tokens"].update(dtype="U16", shape=[20])

    with pytest.raises(FormatError, match="must end at 20, found 10"):
        Shard(rewritten(MAKERS["shard32"](), halve))


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_no_cut_or_changed_header_byte_is_read_as_something_else(data: st.DataObject) -> None:
    good = small_shard()
    if data.draw(st.booleans()):
        bad = good[: data.draw(st.integers(0, len(good) - 1))]
        with pytest.raises(FormatError):
            Shard(bad)
        return
    at = data.draw(st.integers(0, 8 + struct.unpack("<Q", good[:8])[0] - 1))
    bad = good[:at] + bytes([good[at] ^ (1 << data.draw(st.integers(0, 7)))]) + good[at + 1 :]
    try:
        shard = Shard(bad)
    except FormatError:
        return
    assert shard.tokens.tolist() == list(range(10))
    assert shard.doc_offsets.tolist() == [0, 4, 10]


def test_missing_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="cannot be read"):
        Shard(tmp_path / "none.safetensors")
    (tmp_path / "empty.safetensors").touch()
    with pytest.raises(FormatError, match="is empty"):
        Shard(tmp_path / "empty.safetensors")


def test_block_digests_and_paths() -> None:
    data = bytes(range(256)) * 2048 + b"tail"
    digests = shards.block_digests(data)
    assert shards.BLOCK_BYTES == 262144
    assert len(digests) == 3 * 32
    assert digests[64:] == hashlib.sha256(b"tail").digest()
    assert digests[:32] == hashlib.sha256(data[:262144]).digest()
    assert shards.block_digests(b"") == b""
    assert shards.relative_path("shards", "ab" * 32) == "shards/ab/" + "ab" * 32 + ".safetensors"
    for kind, digest in (("views", "ab" * 32), ("shards", "AB" * 32), ("shards", "../x")):
        with pytest.raises(ValueError, match=r"kind must be|sha256"):
            shards.relative_path(kind, digest)
