"""Metrics against plain definitions."""

from __future__ import annotations

import itertools
import math
import unicodedata
from collections import Counter

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cleaned_docs.measure import METRICS, letters, measure

WHITE = set("\t\n\v\f\r\x85 \xa0\u1680\u2028\u2029\u202f\u205f\u3000") | {chr(c) for c in range(0x2000, 0x200B)}


def facts(text):
    return {name: float(values[0]) for name, values in measure(pl.Series([text])).items()}


def split(text):
    out, word = [], ""
    for char in text:
        if char in WHITE:
            out.append(word)
            word = ""
        else:
            word += char
    return [w for w in [*out, word] if w]


def strip(line):
    while line and line[0] in WHITE:
        line = line[1:]
    while line and line[-1] in WHITE:
        line = line[:-1]
    return line


def is_letter(char):
    return unicodedata.category(char)[0] in "LM"


def is_syllable(char):
    return is_letter(char) and not 0x3131 <= ord(char) <= 0x318F


ALPHABET = st.sampled_from(list("aab b\n\n\t#.…1가ㅋé-•\u3000𝑥\ufffd\x01\u0301"))


@given(st.lists(ALPHABET, max_size=60).map("".join))
def test_metrics_follow_their_definitions(text):
    found = facts(text)
    words, lines = split(text), text.split("\n")
    if lines[-1] == "":
        lines.pop()
    full = [strip(line) for line in lines if strip(line)]
    visible = [char for char in text if char not in WHITE]
    assert found["n_chars"] == len(text)
    assert found["n_bytes"] == len(text.encode())
    assert found["n_words"] == len(words)
    assert found["n_lines"] == len(lines)
    assert found["n_nonblank_lines"] == len(full)
    assert found["max_line_length"] == max(map(len, lines), default=0)
    assert found["max_word_length"] == max(map(len, words), default=0)
    assert found["n_letters"] == sum(map(is_letter, text))
    assert found["n_replacement"] == text.count("\ufffd")
    assert found["n_control"] == text.count("\x01")
    if lines:
        assert found["mean_line_length"] == sum(map(len, lines)) / len(lines)
    if full:
        numeric = [line for line in full if any(map(str.isdecimal, line)) and not any(map(is_letter, line))]
        assert found["numeric_line_fraction"] == len(numeric) / len(full)
        assert found["bullet_line_fraction"] == sum(line[0] in "-•" for line in full) / len(full)
        assert found["ellipsis_line_fraction"] == sum(line.endswith(("...", "…")) for line in full) / len(full)
        assert found["duplicate_line_fraction"] == (len(full) - len(set(full))) / len(full)
    if words:
        assert found["mean_word_length"] == len(visible) / len(words)
        assert found["word_letter_ratio"] == sum(any(map(is_syllable, word)) for word in words) / len(words)
        assert found["letter_ratio"] == sum(map(is_syllable, visible)) / len(visible)
        pairs = Counter(itertools.pairwise(words))
        best = max((n * (len(a) + len(b)) for (a, b), n in pairs.items() if n > 1), default=0)
        assert found["top_bigram_fraction"] == min(best / len(visible), 1.0)
    else:
        assert all(math.isnan(found[name]) for name in ("mean_word_length", "letter_ratio", "word_letter_ratio", "symbol_ratio"))


def test_symbols_are_number_signs_and_ellipses_per_word():
    assert facts("# one two … three...")["symbol_ratio"] == 3 / 5
    assert facts("wait......")["symbol_ratio"] == 1.0


def test_lone_jamo_is_hangul_and_no_syllable():
    found = facts("ㅋㅋㅋ 좋다")
    assert found["hangul_ratio"] == 1.0
    assert found["word_letter_ratio"] == 0.5
    assert found["letter_ratio"] == pytest.approx(2 / 5)


def test_column_gives_what_each_text_gives():
    texts = ["가 나 다\n라", "", "one two one two", "#\n#\n", "𝑥²"]
    column = measure(pl.Series(texts))
    for i, text in enumerate(texts):
        alone = facts(text)
        assert {n: v for n, v in alone.items() if not math.isnan(v)} == {
            name: float(values[i]) for name, values in column.items() if not math.isnan(values[i])
        }


def test_sliced_column_is_read_from_its_own_start():
    texts = pl.Series(["skip me", "가나다 abc", "x"])
    assert [list(map(int, part)) for part in letters(texts.slice(1, 2))] == [[6, 1], [3, 0]]


def test_every_metric_is_measured_for_an_empty_column():
    found = measure(pl.Series([], dtype=pl.String))
    assert set(METRICS) <= set(found)
    assert all(len(values) == 0 for values in found.values())
