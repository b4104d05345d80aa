"""NFC and line ends, and nothing else."""

from __future__ import annotations

import unicodedata

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cleaned_docs.normalize import normalize


def test_counts_say_what_was_changed():
    texts, changes = normalize(pl.Series(["a\r\nb\rc\n", "e\u0301", "plain", "가"]))
    assert texts.to_list() == ["a\nb\nc\n", "é", "plain", "가"]
    assert {name: values.tolist() for name, values in changes.items()} == {
        "n_crlf": [1, 0, 0, 0],
        "n_lone_cr": [1, 0, 0, 0],
        "nfc_changed": [0, 1, 0, 0],
    }


def test_compatibility_characters_stay():
    kept = ["x² + y²", "ﬁn", "①", "ｆｕｌｌ", "㈜", "ㅋㅋ", "H₂O", "½"]
    assert normalize(pl.Series(kept))[0].to_list() == kept


@given(st.lists(st.text(st.characters(exclude_categories=("Cs", "Cn")), max_size=20), max_size=6))
def test_is_nfc_with_lf_and_twice_is_once(texts):
    once, _ = normalize(pl.Series("t", texts, dtype=pl.String))
    again, changes = normalize(once)
    assert once.to_list() == [unicodedata.normalize("NFC", t.replace("\r\n", "\n").replace("\r", "\n")) for t in texts]
    assert again.to_list() == once.to_list()
    assert not any(values.any() for values in changes.values())
