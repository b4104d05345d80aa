"""From stored bytes to decompressed chunks, and from chunks to lines or whole payloads, in bounded memory.

gzip may have many members and zero padding at the end, zstd many frames and skippable ones. Nothing else may follow: other
tools drop trailing bytes without a word, and with them what a broken writer appended.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import zstandard

from pipeline.raw_evidence.readers.records import HEAD_BYTES, Broken, IncompleteFile

CHUNK_BYTES = 2**20
# A zstd block takes 4 bytes at least and gives 128 KiB at most, and this decompressor cannot stop in the middle of its input:
# 2 KiB of input bound the output to 64 MiB. Measured on text: 2 % slower than 1 MiB of input.
ZSTD_INPUT_BYTES = 2048

SUFFIXES = {".gz": "gzip", ".zst": "zstd"}
# First bytes: RFC 1952, RFC 8878, bzip2 1.0 (block magic included: text may begin with "BZh"), xz 1.0, lz4 frame 1.6
MAGIC = re.compile(
    rb"(?P<gzip>\x1f\x8b\x08)|(?P<zstd>\x28\xb5\x2f\xfd)|(?P<bzip2>BZh[1-9]1AY&SY)|(?P<xz>\xfd7zXZ\x00)|(?P<lz4>\x04\x22\x4d\x18)"
)


def inner_path(path: str) -> str:
    """The path without the suffix of its compression: `a.md.gz` -> `a.md`."""
    return next((path.removesuffix(suffix) for suffix in SUFFIXES if path.endswith(suffix)), path)


def chunks(stream: BinaryIO, path: str) -> Iterator[bytes]:
    """Decompressed bytes, by the suffix of `path`; each chunk is at most 64 MiB and usually 1 MiB.

    Raises: IncompleteFile, after all bytes that could be read, when the stream is cut, corrupt, or followed by other bytes.
    """
    kind = next((kind for suffix, kind in SUFFIXES.items() if path.endswith(suffix)), "")
    if kind == "gzip":
        return _gzip(stream)
    if kind == "zstd":
        return _zstd(stream)
    return _plain(stream)


def plain_chunks(stream: BinaryIO, path: str) -> Iterator[bytes]:
    """`chunks` for formats that are text: compressed bytes without the suffix are refused, not read as lines.

    Raises: IncompleteFile.
    """
    first = True
    for chunk in chunks(stream, path):
        if first:
            found = MAGIC.match(chunk)
            if found:
                what = f"the bytes are {found.lastgroup}, expected text; .gz and .zst are read, by their suffix"
                raise IncompleteFile("undeclared_compression", 0, what)
        first = False
        yield chunk


def _plain(stream: BinaryIO) -> Iterator[bytes]:
    while chunk := stream.read(CHUNK_BYTES):
        yield chunk


def _gzip(stream: BinaryIO) -> Iterator[bytes]:
    offset, given, members = 0, 0, 0  # offset: of the next byte of `data` in the file
    start = 0
    data = stream.read(CHUNK_BYTES)
    inflate: Any = None
    while data:
        if inflate is None:
            if members:
                data, offset = _skip_padding(stream, data, offset)
                if not data:
                    return
            if len(data) < 2:
                data += stream.read(CHUNK_BYTES)
            if not data.startswith(b"\x1f\x8b"):
                reason = "trailing_bytes" if members else "not_compressed"
                raise IncompleteFile(reason, offset, f"expected a gzip member after {members} members and {given} bytes of output")
            inflate, start = zlib.decompressobj(wbits=31), offset
        before = len(data)
        try:
            out = inflate.decompress(data, CHUNK_BYTES)
        except zlib.error:
            raise IncompleteFile("corrupt_member", offset, _broken_member("gzip", start, members, given)) from None
        data = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
        offset += before - len(data)
        given += len(out)
        if out:
            yield out
        if inflate.eof:
            inflate, members = None, members + 1
        data = data or stream.read(CHUNK_BYTES)
    if inflate is not None:
        # the input is used up, but output may still lie inside: it comes before the break is reported, or ends the member
        out = inflate.flush()
        if out:
            yield out
        if not inflate.eof:
            raise IncompleteFile("truncated_member", offset, _broken_member("gzip", start, members, given + len(out)))


def _skip_padding(stream: BinaryIO, data: bytes, offset: int) -> tuple[bytes, int]:
    """What follows zero bytes, and its offset; nothing when only zeros are left."""
    while data:
        rest = data.lstrip(b"\0")
        offset += len(data) - len(rest)
        if rest:
            return rest, offset
        data = stream.read(CHUNK_BYTES)
    return b"", offset


def _zstd(stream: BinaryIO) -> Iterator[bytes]:
    offset, given, frames = 0, 0, 0
    start = 0
    data = stream.read(ZSTD_INPUT_BYTES)
    inflate: Any = None
    while data:
        if inflate is None:
            if len(data) < 4:
                data += stream.read(ZSTD_INPUT_BYTES)
            skippable = len(data) >= 4 and data[1:4] == b"\x2a\x4d\x18" and data[0] & 0xF0 == 0x50
            if not skippable and not data.startswith(b"\x28\xb5\x2f\xfd"):
                reason = "trailing_bytes" if frames else "not_compressed"
                raise IncompleteFile(reason, offset, f"expected a zstd frame after {frames} frames and {given} bytes of output")
            inflate, start = zstandard.ZstdDecompressor().decompressobj(), offset
        before = len(data)
        try:
            out = inflate.decompress(data)
        except zstandard.ZstdError:
            raise IncompleteFile("corrupt_member", offset, _broken_member("zstd", start, frames, given)) from None
        data = inflate.unused_data if inflate.eof else b""
        offset += before - len(data)
        given += len(out)
        if out:
            yield out
        if inflate.eof:
            inflate, frames = None, frames + 1
        data = data or stream.read(ZSTD_INPUT_BYTES)
    if inflate is not None:
        raise IncompleteFile("truncated_member", offset, _broken_member("zstd", start, frames, given))


def _broken_member(kind: str, start: int, members: int, given: int) -> str:
    return f"{kind} member {members + 1} begins at {start}; {given} bytes of output before the break"


class Gather:
    """Collects one payload; above `max_bytes` only its digest, length and beginning are kept."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._hasher: Any = None
        self._head = b""
        self.size_bytes = 0

    def add(self, part: bytes) -> None:
        """Append bytes."""
        self.size_bytes += len(part)
        if self._hasher is not None:
            self._spill(part)
            return
        self._parts.append(part)
        if self.size_bytes > self._max_bytes:
            self._hasher = hashlib.sha256()
            for held in self._parts:
                self._spill(held)
            self._parts.clear()

    def _spill(self, part: bytes) -> None:
        self._hasher.update(part)
        self._head += part[: max(0, HEAD_BYTES - len(self._head))]

    def take(self, place: int) -> bytes | Broken:
        """The payload, or its reject `too_large`; then start again, empty."""
        parts, hasher, head, size = self._parts, self._hasher, self._head, self.size_bytes
        self._parts, self._hasher, self._head, self.size_bytes = [], None, b"", 0
        if hasher is None:
            return parts[0] if len(parts) == 1 else b"".join(parts)
        return Broken(place, "too_large", f"{size} bytes, expected at most {self._max_bytes}", head, hasher.hexdigest(), size)


def lines(source_chunks: Iterator[bytes], *, max_bytes: int) -> Iterator[tuple[int, bytes | Broken]]:
    """(byte offset in the decompressed stream, line without its LF). Only LF ends a line: CR, NEL, U+2028 and U+2029 are content.

    A line above `max_bytes` comes as the reject `too_large`. Bytes after the last LF are a line; none are none.
    """
    held = Gather(max_bytes)
    offset = 0
    for chunk in source_chunks:
        pieces = chunk.split(b"\n")
        held.add(pieces[0])
        if len(pieces) == 1:
            continue
        length = held.size_bytes
        yield offset, held.take(offset)
        offset += length + 1
        for piece in pieces[1:-1]:
            if len(piece) > max_bytes:
                held.add(piece)
                yield offset, held.take(offset)
            else:
                yield offset, piece
            offset += len(piece) + 1
        held.add(pieces[-1])
    if held.size_bytes:
        yield offset, held.take(offset)


def whole(source_chunks: Iterator[bytes], *, max_bytes: int) -> bytes | Broken:
    """All bytes as one payload, or the reject `too_large`. Raises IncompleteFile: half a file is no payload."""
    held = Gather(max_bytes)
    for chunk in source_chunks:
        held.add(chunk)
    return held.take(0)
