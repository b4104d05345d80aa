"""Files that installed packages list with a hash, as real text and code from third parties that is on every machine.

Which files of a package are taken is decided here from their paths alone; finding packages is the resource's work. A file
becomes one document, as in `tree`; a package's METADATA keeps its form, and cleaning takes the description from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import BinaryIO

from pipeline.raw_evidence.readers import tree
from pipeline.raw_evidence.readers.records import Item
from pipeline.raw_evidence.readers.streams import chunks
from pipeline.recipe import Source

METADATA_TYPE = "text/x-python-metadata"
THIS_PROJECT = ("runview", "runview-pipeline")

CODE_SUFFIXES = frozenset(
    suffix
    for suffix, kind in tree.MEDIA_TYPES.items()
    if kind.startswith(("text/x-", "text/javascript", "application/sql")) and kind not in ("text/x-rst", "text/x-tex")
)
PROSE_SUFFIXES = frozenset((".md", ".rst", ".txt"))
_LICENCE_FILE = re.compile(r"(?:licen[cs]e|copying|notice|authors)", re.IGNORECASE)
# Lists for machines that end in .txt, made by installers and build tools.
_LISTS = re.compile(r"(?:entry_points|top_level|namespace_packages|SOURCES|requires|CMakeLists|.*requirements.*)\.txt")


def normal_name(name: str) -> str:
    """Name of a distribution in one spelling (the PyPA name normalisation): `Typing_Extensions` -> `typing-extensions`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def is_selected(path: str, select: str) -> bool:
    """Is a RECORD path, relative to site-packages, code or prose? Paths that leave site-packages never are.

    `code`: source files by suffix. `prose`: METADATA, licence files, and Markdown, reStructuredText and text files.
    """
    place = PurePosixPath(path)
    if place.is_absolute() or ".." in place.parts:
        return False
    name, suffix = place.name, place.suffix.lower()
    if select == "code":
        return suffix in CODE_SUFFIXES
    if is_metadata(path):
        return True
    if suffix in CODE_SUFFIXES or _LISTS.fullmatch(name):
        return False
    return suffix in PROSE_SUFFIXES or (_LICENCE_FILE.match(name) is not None and suffix in ("", ".apache", ".bsd", ".mit"))


def is_metadata(path: str) -> bool:
    """Is it the METADATA file of a distribution?"""
    place = PurePosixPath(path)
    return place.name == "METADATA" and len(place.parts) == 2 and place.parts[0].endswith(".dist-info")


def read(stream: BinaryIO, path: str, source: Source) -> Iterator[Item]:
    """The file as one document; METADATA with the media type `text/x-python-metadata`."""
    return tree.one(chunks(stream, path), path, source, kind=METADATA_TYPE if is_metadata(path) else None)
