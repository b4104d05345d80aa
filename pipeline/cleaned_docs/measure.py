"""Measured facts about texts: one pass over the UTF-8 bytes of a column, nothing per document in Python.

Definitions. A word is a run of characters without white space (in Korean an eojeol). A line ends with LF; the last one
needs none. A letter is a character of Unicode category L or M; a lone compatibility jamo (`ㅋ`) is a letter of Hangul but no
syllable. Ratios are between 0 and 1; a fact with nothing to divide by is NaN, which means not measured.
"""

from __future__ import annotations

import sys
import unicodedata
from functools import lru_cache

import numba
import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

LETTER, HANGUL, JAMO, DIGIT, SPACE, CONTROL, BULLET = 1, 2, 4, 8, 16, 32, 64

# columns of the counts
_COUNTS = (
    "n_chars", "n_letters", "n_hangul", "n_jamo", "n_digits", "n_spaces", "n_control", "n_nul", "n_replacement", "n_marks",
    "n_words", "n_letter_words", "max_word_length", "n_lines", "n_nonblank_lines", "max_line_length", "n_numeric_lines",
    "n_bullet_lines", "n_ellipsis_lines",
)  # fmt: skip
_AT = {name: i for i, name in enumerate(_COUNTS)}

METRICS = (
    "n_chars", "n_bytes", "n_letters", "n_words", "n_lines", "n_nonblank_lines", "max_line_length", "mean_line_length",
    "max_word_length", "mean_word_length", "letter_ratio", "word_letter_ratio", "hangul_ratio", "digit_ratio", "space_ratio",
    "symbol_ratio", "n_control", "n_replacement", "replacement_ratio", "numeric_line_fraction", "bullet_line_fraction",
    "ellipsis_line_fraction", "duplicate_line_fraction", "top_bigram_fraction",
)  # fmt: skip


@lru_cache(maxsize=1)
def character_classes() -> NDArray[np.uint8]:
    """Class bits of every code point, from this Python's Unicode data."""
    table = np.zeros(sys.maxunicode + 1, dtype=np.uint8)
    for code in range(len(table)):
        kind = unicodedata.category(chr(code))
        if kind[0] in "LM":
            table[code] = LETTER
        elif kind == "Nd":
            table[code] = DIGIT
        elif kind == "Cc":
            table[code] = CONTROL
    for code in (0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x85):  # white space among the controls
        table[code] = SPACE
    table[0x1B] = 0  # escape: terminal logs are text
    for code in (0x20, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000):  # property White_Space
        table[code] = SPACE
    # Hangul blocks of the Unicode Standard, ch. 18.6: syllables, jamo, compatibility jamo, extensions, half width
    for first, last in ((0xAC00, 0xD7A3), (0x1100, 0x11FF), (0x3130, 0x318F), (0xA960, 0xA97F), (0xD7B0, 0xD7FF), (0xFFA0, 0xFFDC)):
        table[first : last + 1] |= np.where(table[first : last + 1] & LETTER, HANGUL, 0).astype(np.uint8)
    table[0x3131:0x3190] |= np.where(table[0x3131:0x3190] & LETTER, JAMO, 0).astype(np.uint8)
    for mark in "-*•‣▶●▪–·○◦■□※":
        table[ord(mark)] |= BULLET
    table.setflags(write=False)
    return table


def utf8(texts: pl.Series) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Bytes of a column without nulls and its offsets, rebased to 0. Shape: [n_bytes], [D+1]."""
    array = texts.to_arrow().cast(pa.large_string())
    _, offsets_buffer, data = array.buffers()
    offsets = (
        np.frombuffer(offsets_buffer, dtype=np.int64, count=len(array) + 1, offset=array.offset * 8)
        if len(array)
        else np.zeros(1, np.int64)
    )
    if data is None:
        return np.zeros(0, np.uint8), offsets - offsets[0]
    return np.frombuffer(data, dtype=np.uint8)[offsets[0] : offsets[-1]], offsets - offsets[0]


def letters(texts: pl.Series) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Letters, and letters of Hangul, of each text."""
    data, offsets = utf8(texts)
    counts = _count(data, offsets, character_classes())
    return counts[:, _AT["n_letters"]], counts[:, _AT["n_hangul"]]


def words_and_lines(texts: pl.Series) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Words, and lines that are not blank, of each text."""
    data, offsets = utf8(texts)
    counts = _count(data, offsets, character_classes())
    return counts[:, _AT["n_words"]], counts[:, _AT["n_nonblank_lines"]]


def measure(texts: pl.Series) -> dict[str, NDArray[np.float64]]:
    """Every metric of `METRICS`, and `n_nul`, for each text. float64, NaN where there is nothing to measure.

    `letter_ratio`: letters that are no lone jamo, among characters that are no white space. `word_letter_ratio`: words with such
    a letter. `symbol_ratio`: number signs and ellipses per word. `numeric_line_fraction`: among non-blank lines those with a
    digit and no letter. `duplicate_line_fraction`: non-blank lines, stripped, that stood before in the same text.
    `top_bigram_fraction`: share of the characters of words that the most frequent repeated pair of neighbouring words covers.
    Source: Rae et al. 2021 (Gopher), appendix A.1.1, with words and letters as defined above.
    """
    data, offsets = utf8(texts)
    table = character_classes()
    counts = _count(data, offsets, table)
    repeats = _repeats(data, offsets, table, counts[:, _AT["n_words"]], counts[:, _AT["n_nonblank_lines"]])
    c = {name: counts[:, i].astype(np.float64) for name, i in _AT.items()}
    n_bytes = np.diff(offsets).astype(np.float64)
    visible = c["n_chars"] - c["n_spaces"]
    line_chars = c["n_chars"] - _line_feeds(data, offsets)
    return {
        "n_nul": c["n_nul"],
        "n_chars": c["n_chars"],
        "n_bytes": n_bytes,
        "n_letters": c["n_letters"],
        "n_words": c["n_words"],
        "n_lines": c["n_lines"],
        "n_nonblank_lines": c["n_nonblank_lines"],
        "max_line_length": c["max_line_length"],
        "mean_line_length": _ratio(line_chars, c["n_lines"]),
        "max_word_length": c["max_word_length"],
        "mean_word_length": _ratio(visible, c["n_words"]),
        "letter_ratio": _ratio(c["n_letters"] - c["n_jamo"], visible),
        "word_letter_ratio": _ratio(c["n_letter_words"], c["n_words"]),
        "hangul_ratio": _ratio(c["n_hangul"], c["n_letters"]),
        "digit_ratio": _ratio(c["n_digits"], visible),
        "space_ratio": _ratio(c["n_spaces"], c["n_chars"]),
        "symbol_ratio": _ratio(c["n_marks"], c["n_words"]),
        "n_control": c["n_control"],
        "n_replacement": c["n_replacement"],
        "replacement_ratio": _ratio(c["n_replacement"], c["n_chars"]),
        "numeric_line_fraction": _ratio(c["n_numeric_lines"], c["n_nonblank_lines"]),
        "bullet_line_fraction": _ratio(c["n_bullet_lines"], c["n_nonblank_lines"]),
        "ellipsis_line_fraction": _ratio(c["n_ellipsis_lines"], c["n_nonblank_lines"]),
        "duplicate_line_fraction": _ratio(repeats[:, 0].astype(np.float64), c["n_nonblank_lines"]),
        "top_bigram_fraction": np.minimum(_ratio(repeats[:, 1].astype(np.float64), visible), 1.0),
    }


def _ratio(above: NDArray[np.float64], below: NDArray[np.float64]) -> NDArray[np.float64]:
    out = np.full(len(above), np.nan)
    np.divide(above, below, out=out, where=below > 0)
    return out


def _line_feeds(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    places = np.flatnonzero(data == 0x0A)
    return np.diff(np.searchsorted(places, offsets)).astype(np.float64)


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _next(data, i):  # type: ignore[no-untyped-def]
    """Code point at byte i of valid UTF-8, and its length."""
    b = data[i]
    if b < 0x80:
        return np.int64(b), 1
    if b < 0xE0:
        return ((np.int64(b) & 0x1F) << 6) | (np.int64(data[i + 1]) & 0x3F), 2
    if b < 0xF0:
        return ((np.int64(b) & 0x0F) << 12) | ((np.int64(data[i + 1]) & 0x3F) << 6) | (np.int64(data[i + 2]) & 0x3F), 3
    return (
        ((np.int64(b) & 0x07) << 18)
        | ((np.int64(data[i + 1]) & 0x3F) << 12)
        | ((np.int64(data[i + 2]) & 0x3F) << 6)
        | (np.int64(data[i + 3]) & 0x3F)
    ), 4


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _count(data, offsets, table):  # type: ignore[no-untyped-def]
    """Counts of `_COUNTS` for each text. Shape: [D, 19] int64."""
    out = np.zeros((len(offsets) - 1, 19), dtype=np.int64)
    for d in range(len(offsets) - 1):
        i, stop = offsets[d], offsets[d + 1]
        row = out[d]
        word_length, word_letter = 0, False
        line_length, line_letter, line_digit = 0, False, False
        first_class, dots, last_ellipsis, blank = 0, 0, False, True
        last = np.int64(0x0A)
        while i < stop:
            code, width = _next(data, i)
            i += width
            kind = table[code]
            last = code
            row[0] += 1
            if kind & 16:  # white space
                row[5] += 1
                dots = 0
                if word_length:
                    row[10] += 1
                    row[11] += word_letter
                    row[12] = max(row[12], word_length)
                    word_length, word_letter = 0, False
                if code == 0x0A:
                    row[13] += 1
                    row[15] = max(row[15], line_length)
                    if not blank:
                        row[14] += 1
                        row[16] += line_digit and not line_letter
                        row[17] += first_class & 64 != 0
                        row[18] += last_ellipsis
                    line_length, line_letter, line_digit, blank, last_ellipsis = 0, False, False, True, False
                else:
                    line_length += 1
                continue
            line_length += 1
            word_length += 1
            if blank:
                first_class, blank = kind, False
            last_ellipsis = False
            if kind & 1:
                row[1] += 1
                row[2] += kind & 2 != 0
                if kind & 4:
                    row[3] += 1
                else:
                    word_letter = True
                line_letter = True
            elif kind & 8:
                row[4] += 1
                line_digit = True
            elif kind & 32:
                row[6] += 1
                row[7] += code == 0
            elif code == 0xFFFD:
                row[8] += 1
            elif code == 0x23:
                row[9] += 1
            elif code == 0x2026:
                row[9] += 1
                last_ellipsis = True
            if code == 0x2E:
                dots += 1
                if dots == 3:
                    row[9] += 1
                last_ellipsis = dots >= 3
            else:
                dots = 0
        if word_length:
            row[10] += 1
            row[11] += word_letter
            row[12] = max(row[12], word_length)
        if last != 0x0A:  # the last line has no LF
            row[13] += 1
            row[15] = max(row[15], line_length)
            if not blank:
                row[14] += 1
                row[16] += line_digit and not line_letter
                row[17] += first_class & 64 != 0
                row[18] += last_ellipsis
    return out


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _same(data, a, b, n):  # type: ignore[no-untyped-def]
    for k in range(n):  # noqa: SIM110  numba compiles no generator
        if data[a + k] != data[b + k]:
            return False
    return True


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _repeats(data, offsets, table, n_words, n_lines):  # type: ignore[no-untyped-def]
    """Repeated lines, and characters under the most frequent repeated pair of words. Shape: [D, 2] int64.

    Lines and words are sorted by a 64-bit FNV-1a hash and compared byte by byte where it agrees: a collision is no repeat.
    """
    out = np.zeros((len(offsets) - 1, 2), dtype=np.int64)
    basis, prime = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
    for d in range(len(offsets) - 1):
        words, lines = n_words[d], n_lines[d]
        word_hash, word_at = np.empty(words, np.uint64), np.empty(words, np.int64)
        word_bytes, word_chars = np.empty(words, np.int64), np.empty(words, np.int64)
        line_hash, line_at, line_bytes = np.empty(lines, np.uint64), np.empty(lines, np.int64), np.empty(lines, np.int64)
        w, m, i, stop = 0, 0, offsets[d], offsets[d + 1]
        h, start, chars = basis, i, 0
        g, opened, closed, blank = basis, i, i, True
        pending = basis  # hash of the line up to here, taken over by the line when a visible character follows
        while i <= stop:
            code, width = (np.int64(0x0A), 1) if i == stop else _next(data, i)
            space = table[code] & 16 != 0
            if not space:
                if chars == 0:
                    h, start = basis, i
                if blank:
                    pending, opened, blank = basis, i, False
                chars += 1
            if not blank:
                for k in range(i, min(i + width, stop)):
                    pending = (pending ^ np.uint64(data[k])) * prime
            if not space:
                for k in range(i, i + width):
                    h = (h ^ np.uint64(data[k])) * prime
                g, closed = pending, i + width
            elif chars:
                word_hash[w], word_at[w], word_bytes[w], word_chars[w] = h, start, i - start, chars
                w, chars = w + 1, 0
            if code == 0x0A and not blank:
                line_hash[m], line_at[m], line_bytes[m] = g, opened, closed - opened
                m, blank = m + 1, True
            i += width
        if m > 1:
            order = np.argsort(line_hash)
            for k in range(1, m):
                a, b = order[k - 1], order[k]
                if line_hash[a] == line_hash[b] and line_bytes[a] == line_bytes[b] and _same(data, line_at[a], line_at[b], line_bytes[a]):
                    out[d, 0] += 1
        if w > 2:
            pairs = word_hash[:-1] * prime + word_hash[1:]
            order = np.argsort(pairs)
            run, best = 1, 0
            for k in range(1, w - 1):
                a, b = order[k - 1], order[k]
                if (
                    pairs[a] == pairs[b]
                    and word_bytes[a] == word_bytes[b]
                    and word_bytes[a + 1] == word_bytes[b + 1]
                    and _same(data, word_at[a], word_at[b], word_bytes[a])
                    and _same(data, word_at[a + 1], word_at[b + 1], word_bytes[a + 1])
                ):
                    run += 1
                    best = max(best, run * (word_chars[a] + word_chars[a + 1]))
                else:
                    run = 1
            out[d, 1] = best
    return out
