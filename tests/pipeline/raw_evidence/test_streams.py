import gzip
import hashlib
import io
import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pipeline.raw_evidence.readers import streams
from pipeline.raw_evidence.readers.records import HEAD_BYTES, Broken, IncompleteFile

TEXT = "\n".join(f"line {i} 가나다 {i * i}" for i in range(5000)).encode()


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def drain(data: bytes, path: str) -> tuple[bytes, IncompleteFile | None]:
    out = b""
    try:
        for chunk in streams.chunks(io.BytesIO(data), path):
            out += chunk
    except IncompleteFile as stop:
        return out, stop
    return out, None


@pytest.mark.parametrize(("path", "pack"), [("a.gz", gzip.compress), ("a.zst", zstd)])
@pytest.mark.parametrize("members", [1, 2, 7])
def test_all_members_are_read(path, pack, members):
    assert drain(b"".join(pack(TEXT) for _ in range(members)), path) == (TEXT * members, None)


def test_small_members_between_reads_and_zero_padding():
    data = b"".join(gzip.compress(b"%d\n" % i) for i in range(3000))
    assert drain(data + bytes(3 * 2**20), "a.gz") == (b"".join(b"%d\n" % i for i in range(3000)), None)


def test_zstd_skippable_frames_hold_no_content():
    skip = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"abcd"
    assert drain(skip + zstd(TEXT) + skip + zstd(b"end"), "a.zst") == (TEXT + b"end", None)


def test_a_bomb_is_never_inflated_at_once():
    size = 300 * 2**20
    packed = zstandard.ZstdCompressor().compress(bytes(size))
    chunks = [len(chunk) for chunk in streams.chunks(io.BytesIO(packed), "a.zst")]
    assert sum(chunks) == size
    assert max(chunks) <= 64 * 2**20
    packed = zlib.compressobj(wbits=31)
    data = packed.compress(bytes(20 * 2**20)) + packed.flush()
    chunks = [len(chunk) for chunk in streams.chunks(io.BytesIO(data), "a.gz")]
    assert (sum(chunks), max(chunks)) == (20 * 2**20, 2**20)


@pytest.mark.parametrize(("path", "pack"), [("a.gz", gzip.compress), ("a.zst", zstd)])
def test_a_cut_is_found_at_every_length(path, pack):
    data = pack(b"alpha\nbeta\n" * 3) + pack(b"gamma\n")
    whole = {0: b"", len(pack(b"alpha\nbeta\n" * 3)): b"alpha\nbeta\n" * 3}
    for cut in range(1, len(data)):
        out, stop = drain(data[:cut], path)
        if cut in whole:
            assert (out, stop) == (whole[cut], None)
        else:
            assert stop is not None, cut
            # one or two bytes of a magic number are no member yet
            assert stop.reason in ("truncated_member", "trailing_bytes", "not_compressed")
            assert stop.offset <= cut
            if stop.reason == "truncated_member":
                assert stop.offset == cut
            assert (b"alpha\nbeta\n" * 3 + b"gamma\n").startswith(out)


def test_a_long_cut_stream_gives_what_it_holds():
    data = gzip.compress(TEXT)
    out, stop = drain(data[:-9], "a.gz")  # the 8 bytes of the trailer and the last of the content
    assert stop is not None
    assert (stop.reason, stop.offset) == ("truncated_member", len(data) - 9)
    assert out == TEXT[: len(out)]
    assert len(out) > len(TEXT) * 0.9
    assert f"{len(out)} bytes of output" in stop.detail


def test_wrong_checksum_foreign_bytes_and_wrong_suffix():
    data = bytearray(gzip.compress(TEXT))
    data[-6] ^= 1
    assert drain(bytes(data), "a.gz")[1].reason == "corrupt_member"
    data = bytearray(zstd(TEXT))
    data[-1] ^= 1
    assert drain(bytes(data), "a.zst")[1].reason == "corrupt_member"
    out, stop = drain(gzip.compress(TEXT) + b"more", "a.gz")
    assert (out, stop.reason, stop.offset) == (TEXT, "trailing_bytes", len(gzip.compress(TEXT)))
    out, stop = drain(zstd(TEXT) + b"more", "a.zst")
    assert (out, stop.reason, stop.offset) == (TEXT, "trailing_bytes", len(zstd(TEXT)))
    assert drain(TEXT, "a.gz")[1].reason == "not_compressed"
    assert drain(TEXT, "a.zst")[1].reason == "not_compressed"
    for packed in (gzip.compress(TEXT), zstd(TEXT)):
        with pytest.raises(IncompleteFile, match="undeclared_compression at 0"):
            list(streams.plain_chunks(io.BytesIO(packed), "a.jsonl"))
    assert b"".join(streams.plain_chunks(io.BytesIO(b"BZhX is no archive"), "a.txt")) == b"BZhX is no archive"


@given(st.lists(st.binary(max_size=30), max_size=12), st.data())
def test_lines_do_not_depend_on_chunks(parts, data):
    content = b"".join(parts).replace(b"\xff", b"\n")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=6)))
    pieces = [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True)]
    limit = data.draw(st.integers(1, 40))
    found = list(streams.lines(iter(pieces), max_bytes=limit))
    expected, offset = [], 0
    split = content.split(b"\n")
    for line in split if split[-1] else split[:-1]:
        expected.append((offset, line))
        offset += len(line) + 1
    assert [offset for offset, _ in found] == [offset for offset, _ in expected]
    for (_, got), (_, line) in zip(found, expected, strict=True):
        if len(line) > limit:
            assert isinstance(got, Broken)
            assert (got.reason, got.size_bytes, got.sha256, got.head) == ("too_large", len(line), hashlib.sha256(line).hexdigest(), line)
        else:
            assert got == line


def test_a_huge_line_is_digested_without_being_held():
    line = b"x" * (5 * 2**20)
    content = iter([b"a\n", *[line[i : i + 2**16] for i in range(0, len(line), 2**16)], b"\nb"])
    first, huge, last = streams.lines(content, max_bytes=2**20)
    assert (first, last) == ((0, b"a"), (2 + len(line) + 1, b"b"))
    assert isinstance(huge[1], Broken)
    assert (huge[1].size_bytes, huge[1].sha256) == (len(line), hashlib.sha256(line).hexdigest())
    assert huge[1].head == line[:HEAD_BYTES]
