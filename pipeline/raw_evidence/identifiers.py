"""Keyed identifiers: a person can be found by a value they know, and nobody can read the value back without the key."""

from __future__ import annotations

import hmac
import re
import unicodedata
from dataclasses import dataclass, field

# Kinds of the identifiers that intake makes; a declared field makes `field:<its name>`.
URI, RECORD, FIELD = "uri", "record", "field:"


@dataclass(frozen=True)
class DeletionKey:
    """HMAC-SHA256 with a named secret; the name stands before every identifier, so that old keys keep working after a change.

    Args: key_id, `[a-z0-9._-]+`; secret, 32 bytes or more, kept outside the lake. It never stands in a message or repr.
    """

    key_id: str
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9._-]+", self.key_id):
            raise ValueError("key_id must match [a-z0-9._-]+")
        if len(self.secret) < 32:
            raise ValueError(f"key {self.key_id}: a secret needs 32 bytes (RFC 2104, section 3), found {len(self.secret)}")

    def of(self, kind: str, value: str) -> str:
        """`key_id:hex` of a value. White space around it and Unicode composition (NFC) make no difference, so that a name typed
        on another system is found; case does. A record's id is asked for as `<source>:<id>`, since ids repeat between sources."""
        if "\0" in kind:
            raise ValueError("a kind holds no U+0000: it ends the kind inside the digest")
        message = f"{kind}\0{unicodedata.normalize('NFC', value.strip())}".encode()
        return f"{self.key_id}:{hmac.digest(self.secret, message, 'sha256').hex()}"
