"""Canonical JSON (RFC 8785) for the only values the loader ever serialises: ASCII strings, integers, null, booleans.

For these the standard library already produces the canonical form. Everything else is refused, so that a digest
can never depend on a float's spelling or on the order of non-ASCII keys.
"""

import hashlib
import json
from typing import Any

MAX_INTEGER = 2**53 - 1  # RFC 8785 section 3.2.2.3: larger integers are not exact in every JSON reader


def canonical_json(value: Any) -> bytes:
    """The canonical bytes of a value; ValueError for floats, non-ASCII strings and integers of 2^53 or more."""
    _check(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode("ascii")


def digest(value: Any) -> str:
    """sha256 of the canonical bytes, lower-case hex."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def sha256_hex(data: bytes) -> str:
    """sha256 of raw bytes, lower-case hex."""
    return hashlib.sha256(data).hexdigest()


def _check(value: Any) -> None:
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, int):
        if abs(value) > MAX_INTEGER:
            raise ValueError(f"integer {value} is outside +-(2^53 - 1); canonical JSON cannot hold it exactly")
    elif isinstance(value, str):
        if not value.isascii():
            raise ValueError("canonical JSON in the loader holds ASCII strings only; found a string with other characters")
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"an object key must be a string, found {type(key).__name__}")
            _check(key)
            _check(item)
    else:
        raise ValueError(f"canonical JSON in the loader holds strings and integers, found {type(value).__name__}")
