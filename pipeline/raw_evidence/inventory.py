"""What a source snapshot is made of: its containers, listed with size and digest before anything is read."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from pipeline.errors import SourceError
from pipeline.ids import digest, row_digest


@dataclass(frozen=True)
class Container:
    """One file of a source snapshot.

    Attributes:
        path: POSIX path relative to the source's location (to site-packages for `python_environment`), or a URI.
        revision: what a name such as `main` resolved to, where a source has revisions.
        licence: of this container, where the source knows it (an installed package); None: the source's own.
        fetched_at: when it was fetched; in no id.
    """

    path: str
    size_bytes: int
    sha256: str
    revision: str | None = None
    licence: str | None = None
    fetched_at: datetime | None = None


def summary(containers: Iterable[Container]) -> dict[str, Any]:
    """Digest, number and bytes of an inventory, as plain JSON; the order of the containers does not matter.

    Raises: SourceError when a path stands twice.
    """
    ordered = sorted(containers, key=lambda container: container.path)
    hasher = hashlib.sha256()
    for before, container in zip([None, *ordered], ordered, strict=False):
        if before is not None and before.path == container.path:
            raise SourceError(f"inventory: container {container.path} stands twice, expected once")
        # one row digest each: the RFC 8785 writer takes seconds for a hundred thousand files
        stated = (container.revision or "", container.licence or "")
        hasher.update(row_digest("container", container.path, container.size_bytes, container.sha256, *stated).encode())
    return {
        "inventory": digest("inventory", len(ordered), hasher.hexdigest()),
        "n_containers": len(ordered),
        "size_bytes": sum(container.size_bytes for container in ordered),
    }


def matches(path: str, pattern: str) -> bool:
    """Does a relative POSIX path match a glob pattern? The whole path has to.

    `*`, `?` and `[...]` stay within one name; `**` as a whole name stands for any number of folders, at the end for everything
    below. No wildcard matches a name that begins with a dot, so hidden files are left out unless a pattern spells the dot:
    `.github/**/*.md`. Case counts.
    """
    return _compiled(pattern).fullmatch(path) is not None


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    parts = pattern.split("/")
    out = []
    for i, part in enumerate(parts):
        last = i == len(parts) - 1
        if part == "**":
            out.append(r"(?:(?!\.)[^/]+/)*(?!\.)[^/]+" if last else r"(?:(?!\.)[^/]+/)*")
        else:
            out.append(_name(part) + ("" if last else "/"))
    return re.compile("".join(out), re.DOTALL)


def _name(part: str) -> str:
    out = "" if part.startswith(".") else r"(?!\.)"
    i = 0
    while i < len(part):
        char = part[i]
        end = part.find("]", i + 2) if char == "[" else -1
        if char == "*":
            out += "[^/]*"
        elif char == "?":
            out += "[^/]"
        elif end > 0:
            inner = part[i + 1 : end].replace("\\", "\\\\").replace("[", "\\[")
            out += "[" + ("^" + inner[1:] if inner[0] in "!^" else inner) + "]"
            i = end
        else:
            out += re.escape(char)
        i += 1
    return out
