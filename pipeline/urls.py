"""Addresses of fetched material: what of them may be kept or shown, and where their files lie.

A credential in an address would be kept with the source's identity, in the lake and in every log; so it is refused where it is
written, and left out where a server sends one (signed redirects).
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote_to_bytes, urlsplit

from pipeline.ids import sha256_hex

SECRET = re.compile(
    r"(^|[-_.])(token|sig|signature|secret|passw(or)?d|pwd|api-?key|apikey|access-?key(-?id)?|credentials?|auth(orization)?|jwt|sas)($|[-_.])"
    r"|^key$|^x-(amz|goog)-",
    re.IGNORECASE,
)
MAX_NAME_BYTES = 200  # of one name of a path; most file systems end at 255 with our own endings added
DIGITS = 12


def credential_in(url: str) -> str | None:
    """Name of what looks like a credential in a URL (`user` or a query parameter's name), None when nothing does."""
    parts = urlsplit(url)
    if "@" in parts.netloc:
        return "user"
    for name, _ in parse_qsl(parts.query, keep_blank_values=True):
        if SECRET.search(name.replace("_", "-")):
            return name
    return None


def shown(url: str) -> str:
    """A URL for messages and records: without user, password, query and fragment; a dropped query shows as `?...`."""
    try:
        parts = urlsplit(url)
        netloc = parts.netloc.rpartition("@")[2]
    except ValueError:
        return "(no URL)"
    return f"{parts.scheme}://{netloc}{parts.path}{'?...' if parts.query else ''}"


def file_path(url: str) -> str:
    """Relative POSIX path under which the file of a URL lies: host, then the decoded path; a query adds its digest before the suffix.

    Two URLs have one path only when they differ in scheme, fragment or letter case of the host. Too long names are cut and end in a
    digest.
    Raises: ValueError when the path leaves its folder or cannot be a file name.
    """
    parts = urlsplit(url)
    if not parts.hostname:
        raise ValueError("it names no host")
    names = [parts.hostname.replace(":", "_") + (f"_{parts.port}" if parts.port else "")]
    pieces = parts.path.split("/")[1:] or [""]
    for i, piece in enumerate(pieces):
        if not piece and i == len(pieces) - 1:
            piece = "index"
        try:
            name = unquote_to_bytes(piece).decode()
        except UnicodeDecodeError:
            raise ValueError("its path is not UTF-8") from None
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise ValueError("a name in its path is empty, a dot folder, or holds a slash or a zero byte")
        names.append(_short(name))
    if parts.query:
        stem, dot, suffix = names[-1].partition(".")
        names[-1] = f"{stem}@{sha256_hex(parts.query.encode())[:DIGITS]}{dot}{suffix}"
    return "/".join(names)


def _short(name: str) -> str:
    data = name.encode()
    if len(data) <= MAX_NAME_BYTES:
        return name
    stem, dot, suffix = name.rpartition(".")
    ending = f"@{sha256_hex(data)[:DIGITS]}" + (f".{suffix}" if dot and stem and len(suffix) <= 8 else "")
    return data[: MAX_NAME_BYTES - len(ending.encode())].decode(errors="ignore") + ending
