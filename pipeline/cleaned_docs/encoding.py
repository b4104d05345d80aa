"""Bytes to text: byte order mark, declared charset, strict UTF-8, then a detector, in that order.

Nothing is replaced while decoding: a payload decodes strictly or is a reject. U+FFFD in a text was there before.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from charset_normalizer import from_bytes

# Longest first: the UTF-32 mark begins with the UTF-16 one.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)

# Python's name of a declared charset -> the codec used: the superset that the label stands for in practice, as in the WHATWG
# Encoding Standard. A closed list, since Python also calls `unicode_escape`, `idna` and `punycode` text encodings.
_ONE_BYTE = {
    "iso8859-1": "cp1252", "cp1252": "cp1252", "iso8859-2": "iso8859-2", "iso8859-5": "iso8859-5", "iso8859-7": "iso8859-7",
    "iso8859-9": "cp1254", "cp1254": "cp1254", "iso8859-15": "iso8859-15", "cp1250": "cp1250", "cp1251": "cp1251",
    "cp1253": "cp1253", "cp1255": "cp1255", "cp1256": "cp1256", "cp1257": "cp1257", "cp1258": "cp1258", "koi8-r": "koi8-r",
    "koi8-u": "koi8-u", "cp874": "cp874", "tis-620": "cp874", "mac-roman": "mac-roman",
}  # fmt: skip
_MANY_BYTES = {
    "utf-8": "utf-8", "ascii": "utf-8", "utf-16": "utf-16-le", "utf-16-le": "utf-16-le", "utf-16-be": "utf-16-be",
    "utf-32": "utf-32-le", "utf-32-le": "utf-32-le", "utf-32-be": "utf-32-be", "euc_kr": "cp949", "cp949": "cp949", "johab": "johab",
    "iso2022_kr": "iso2022_kr", "shift_jis": "cp932", "cp932": "cp932", "euc_jp": "euc_jp", "iso2022_jp": "iso2022_jp",
    "gb2312": "gb18030", "gbk": "gb18030", "gb18030": "gb18030", "big5": "big5hkscs", "big5hkscs": "big5hkscs",
}  # fmt: skip
# What the detector may answer, and how much it needs: a few bytes fit a dozen charsets, and those of EBCDIC fit anything.
_GUESSES = sorted({*_ONE_BYTE.values(), *_MANY_BYTES.values()} - {"utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"})
MIN_GUESS_BYTES = 64
_LABELS = {"x-windows-949": "cp949", "windows-949": "cp949", "x-sjis": "cp932", "utf-8-sig": "utf-8", "utf8mb4": "utf-8"}


@dataclass(frozen=True)
class Decoded:
    """One payload as text; without a text, `reason` is `binary` or `undecodable`."""

    text: str | None
    charset: str
    reason: str = ""
    detail: str = ""
    guessed: bool = False


@dataclass(frozen=True)
class DecodedColumn:
    """`texts` (large_string, null where a payload is rejected) and, row by row, the charset used, reason, detail, guessed."""

    texts: pa.Array
    charsets: list[str]
    reasons: list[str]
    details: list[str]
    guessed: list[bool]


def codec_of(label: str | None) -> str | None:
    """Codec that a declared charset stands for; None when there is none or it is not known."""
    if not label:
        return None
    plain = label.strip().strip("\"'").lower()
    try:
        name = codecs.lookup(_LABELS.get(plain, plain)).name
    except (LookupError, ValueError):
        return None
    return _MANY_BYTES.get(name) or _ONE_BYTE.get(name)


def decode(payload: bytes, declared: str | None) -> Decoded:
    """Text of one payload.

    A one-byte charset accepts nearly any bytes and so proves nothing: bytes that are valid UTF-8 and not ASCII win over it.
    """
    for mark, codec in _MARKS:
        if payload.startswith(mark):
            text = _strict(payload[len(mark) :], codec)
            if text is not None:
                return Decoded(text, codec)
    named = codec_of(declared)
    as_utf8 = None
    if named in _ONE_BYTE.values():
        as_utf8 = _strict(payload, "utf-8")
        if as_utf8 is not None and not as_utf8.isascii():
            return Decoded(as_utf8, "utf-8")
    if named is not None:
        text = _strict(payload, named)
        if text is not None:
            return Decoded(text, named)
    if named != "utf-8":
        text = as_utf8 if as_utf8 is not None else _strict(payload, "utf-8")
        if text is not None:
            return Decoded(text, "utf-8")
    if b"\0" in payload:
        return Decoded(None, "", "binary", f"expected text, found NUL at byte {payload.index(0)} of {len(payload)}")
    best = from_bytes(payload, cp_isolation=_GUESSES).best() if len(payload) >= MIN_GUESS_BYTES else None
    text = None if best is None else _strict(payload, best.encoding)
    if best is None or text is None:
        return Decoded(None, "", "undecodable", f"expected text, found {len(payload)} bytes in no charset that could be named")
    return Decoded(text, best.encoding, guessed=True)


def _strict(payload: bytes, codec: str) -> str | None:
    try:
        text = payload.decode(codec)
    except UnicodeDecodeError:
        return None
    # some codecs let lone surrogates through, which UTF-8 cannot hold
    return None if codec.startswith(("utf-16", "utf-32")) and not _encodes(text) else text


def _encodes(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def decode_column(payloads: pa.Array, declared: pa.Array) -> DecodedColumn:
    """`decode` for a column. Plain UTF-8 without a mark is checked for the whole column at once.

    Args: payloads, large_binary without nulls; declared, string or null per row.
    """
    n = len(payloads)
    labels = {label: codec_of(label) for label in pc.unique(declared).to_pylist()}
    first = pl.Series(payloads)
    marked = pl.select(
        pl.any_horizontal(
            pl.lit(first).bin.starts_with(codecs.BOM_UTF8),
            pl.lit(first).bin.starts_with(codecs.BOM_UTF16_LE),  # the UTF-32 mark too
            pl.lit(first).bin.starts_with(codecs.BOM_UTF16_BE),
            pl.lit(first).bin.starts_with(codecs.BOM_UTF32_BE),
        )
    ).to_series()
    if not marked.any() and all(codec in (None, "utf-8") for codec in labels.values()):
        try:
            return DecodedColumn(payloads.cast(pa.large_string()), ["utf-8"] * n, [""] * n, [""] * n, [False] * n)
        except pa.ArrowInvalid:
            pass  # some row is not UTF-8: row by row
    rows = [decode(payload, label) for payload, label in zip(payloads.to_pylist(), declared.to_pylist(), strict=True)]
    return DecodedColumn(
        pa.array([row.text for row in rows], type=pa.large_string()),
        [row.charset for row in rows],
        [row.reason for row in rows],
        [row.detail for row in rows],
        [row.guessed for row in rows],
    )
