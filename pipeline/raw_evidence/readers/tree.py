"""A folder of files: one document per file, any kind of text, source code and Markdown included."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import BinaryIO

from pipeline.raw_evidence.readers.records import Broken, Empty, Item, Record
from pipeline.raw_evidence.readers.streams import chunks, inner_path, whole
from pipeline.recipe import Source

# Our own table: the one of the operating system differs from machine to machine, and a media type is part of a row.
# Names: the IANA registry where it has one, else the x- name in common use.
MEDIA_TYPES = {
    ".md": "text/markdown", ".markdown": "text/markdown", ".rst": "text/x-rst",
    ".html": "text/html", ".htm": "text/html", ".xhtml": "application/xhtml+xml", ".xml": "application/xml", ".svg": "image/svg+xml",
    ".tex": "text/x-tex", ".csv": "text/csv", ".tsv": "text/tab-separated-values",
    ".json": "application/json", ".yaml": "application/yaml", ".yml": "application/yaml", ".toml": "application/toml",
    ".py": "text/x-python", ".pyi": "text/x-python", ".pyx": "text/x-cython", ".pxd": "text/x-cython", ".pxi": "text/x-cython",
    ".c": "text/x-c", ".h": "text/x-c", ".cc": "text/x-c++", ".cpp": "text/x-c++", ".cxx": "text/x-c++", ".hpp": "text/x-c++",
    ".hh": "text/x-c++", ".hxx": "text/x-c++", ".cu": "text/x-cuda", ".cuh": "text/x-cuda",
    ".f": "text/x-fortran", ".f90": "text/x-fortran", ".rs": "text/x-rust", ".go": "text/x-go", ".java": "text/x-java",
    ".kt": "text/x-kotlin", ".scala": "text/x-scala", ".swift": "text/x-swift", ".cs": "text/x-csharp",
    ".js": "text/javascript", ".mjs": "text/javascript", ".cjs": "text/javascript", ".jsx": "text/javascript",
    ".ts": "text/x-typescript", ".tsx": "text/x-typescript", ".css": "text/css", ".sh": "text/x-shellscript",
    ".rb": "text/x-ruby", ".php": "text/x-php", ".pl": "text/x-perl", ".lua": "text/x-lua", ".r": "text/x-r", ".jl": "text/x-julia",
    ".sql": "application/sql", ".cmake": "text/x-cmake",
}  # fmt: skip

_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
    (codecs.BOM_UTF8, "utf-8"),
)
# Control bytes that no text encoding uses; BEL to CR and the shifts of ISO 2022 (SO, SI, ESC) are left out.
_CONTROLS = re.compile(rb"[\x01-\x06\x10-\x1a\x1c-\x1f]")


def media_type(path: str) -> str:
    """Media type by the suffix, of the file inside when it is compressed; `text/plain` for every other."""
    return MEDIA_TYPES.get(PurePosixPath(inner_path(path)).suffix.lower(), "text/plain")


def read(stream: BinaryIO, path: str, source: Source) -> Iterator[Item]:
    """The file (plain, .gz, .zst) as one document. A blank file is `Empty`, a file without text the reject `binary`."""
    return one(chunks(stream, path), path, source)


def one(parts: Iterable[bytes], path: str, source: Source, *, kind: str | None = None) -> Iterator[Item]:
    """All of `parts` as one payload, at place 0."""
    data = whole(iter(parts), max_bytes=source.max_payload_bytes)
    if isinstance(data, Broken):
        yield data
        return
    mark = next((name for bom, name in _MARKS if data.startswith(bom)), "")
    charset = mark or source.charset
    if not data.removeprefix(codecs.BOM_UTF8).strip():
        yield Empty(0)
        return
    what = "" if charset.lower().startswith(("utf-16", "utf-32")) else _not_text(data)
    if what:
        yield Broken.of(0, "binary", what, data)
        return
    yield Record(0, data, kind or media_type(path), charset or None, meta={"bom": mark} if mark else {})


def _not_text(data: bytes) -> str:
    """Why bytes in an 8-bit charset are no text; empty when they may be. Undeclared charsets are decided by cleaning."""
    nuls = data.count(0)
    if nuls:
        return f"{nuls} NUL bytes, the first at {data.index(0)}"
    try:
        data.decode()
    except UnicodeDecodeError:
        controls = len(_CONTROLS.findall(data))
        if controls:
            return f"not UTF-8, and {controls} control bytes that no charset uses"
    return ""
