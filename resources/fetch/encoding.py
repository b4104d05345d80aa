"""Content codings of HTTP: removed once, and only when they are of the transfer and not the file itself.

We ask for none (`Accept-Encoding: identity`), so that lengths, ranges and entity tags speak of the file. A server that codes all the
same falls into two kinds: it compressed `a.jsonl` on the way (the coding goes), or it names the compression that `a.jsonl.gz` is stored
with (the bytes stay, since the reader undoes it by the name). A `.gz` that was coded on top of that is told by its content: what lands
is one layer.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import zstandard

from pipeline.errors import SourceError
from resources.durable import fsync_folder

READ_BYTES = 2**20
GZIP_MAGIC, ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
STORED = {"gzip": ((".gz", ".tgz"), GZIP_MAGIC), "zstd": ((".zst", ".zstd"), ZSTD_MAGIC)}


def normal(header: str | None) -> str:
    """Name of a Content-Encoding: empty for none. Raises SourceError for one that cannot be undone."""
    name = (header or "").strip().lower().removeprefix("x-")
    if name in ("", "identity"):
        return ""
    if name not in STORED:
        raise SourceError(f"content coding {name[:40]!r} was not asked for and cannot be undone; expected none, gzip or zstd")
    return name


def decode(part: Path, target: Path, *, coding: str, name: str, max_bytes: int) -> bool:
    """Write the decoded file to `target`, unless the coding is the file's own. Returns whether it was written.

    Raises: SourceError when the bytes are not of that coding, end too early, or grow beyond `max_bytes`.
    """
    suffixes, magic = STORED[coding]
    own = name.lower().endswith(suffixes)
    try:
        if own and _starts_with(part, coding) != magic:
            return False  # one layer, and it is the file's
        size = 0
        with open(target, "wb") as out:
            for data in _decoded(part, coding):
                size += len(data)
                if size > max_bytes:
                    raise SourceError(f"{name}: decoded from {coding} it is larger than the {max_bytes} bytes that fetch.max_bytes leaves")
                out.write(data)
            out.flush()
            os.fsync(out.fileno())
    except (zlib.error, zstandard.ZstdError, EOFError):
        raise SourceError(f"{name}: declared as {coding}, but it is not, or it breaks off") from None
    fsync_folder(target.parent)
    return True


def _starts_with(part: Path, coding: str) -> bytes:
    """First bytes below one layer of coding, as many as its magic has."""
    found = b""
    length = len(STORED[coding][1])
    for data in _decoded(part, coding):
        found += data
        if len(found) >= length:
            break
    return found[:length]


def _decoded(part: Path, coding: str) -> Iterator[bytes]:
    with open(part, "rb") as file:
        if coding == "zstd":
            with zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as reader:
                while data := reader.read(READ_BYTES):
                    yield data
            return
        machine = zlib.decompressobj(wbits=31)
        while data := file.read(READ_BYTES):
            while data:
                if machine.eof:
                    machine = zlib.decompressobj(wbits=31)  # members may follow each other
                yield machine.decompress(data, READ_BYTES)
                data = machine.unconsumed_tail or machine.unused_data
        while not machine.eof:
            rest = machine.decompress(b"", READ_BYTES)
            if not rest:
                raise EOFError
            yield rest
