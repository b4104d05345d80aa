"""Plain text: one document per file, or one per line where only LF ends a line. Bytes stay as received, in whatever charset."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import BinaryIO

from pipeline.errors import SourceError
from pipeline.raw_evidence.readers import tree
from pipeline.raw_evidence.readers.records import Broken, Empty, Item, Record
from pipeline.raw_evidence.readers.streams import lines, plain_chunks
from pipeline.recipe import Source

MEDIA_TYPE = "text/plain"


def read(stream: BinaryIO, path: str, source: Source) -> Iterator[Item]:
    """Documents of a text file (plain, .gz, .zst); with `split_lines` one per line, blank lines are `Empty`.

    Raises: SourceError for lines of UTF-16 or UTF-32, whose line end is not the byte LF.
    """
    if not source.split_lines:
        yield from tree.one(plain_chunks(stream, path), path, source)
        return
    if source.charset.lower().replace("_", "-").startswith(("utf-16", "utf-32")):
        raise SourceError(f"source {source.name}: split_lines cannot cut {source.charset}: its line end is not the byte LF")
    charset = source.charset or None
    for number, (offset, line) in enumerate(lines(plain_chunks(stream, path), max_bytes=source.max_payload_bytes), start=1):
        meta: dict[str, str] = {}
        if isinstance(line, Broken):
            line.detail = f"line {number}: {line.detail}"
            yield line
            continue
        if number == 1 and line.startswith(codecs.BOM_UTF8):
            offset, line, charset, meta = offset + 3, line[3:], "utf-8", {"bom": "utf-8"}
        if not line or line.isspace():
            yield Empty(offset)
        elif b"\0" in line:
            yield Broken.of(offset, "nul_character", f"line {number}: {line.count(0)} NUL bytes", line)
        else:
            yield Record(offset, line, MEDIA_TYPE, charset, meta=meta)
