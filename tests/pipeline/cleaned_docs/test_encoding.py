"""Bytes to text: the order of evidence, the closed list of charsets, and the column path against the row path."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cleaned_docs.encoding import codec_of, decode, decode_column

KOREAN = "이 문서는 옛 한글 부호화로 저장되어 있다. 앞부분에는 영문 표지가 길게 이어진다. 그래도 뒤까지 읽어야 한다."


@pytest.mark.parametrize("codec", ["utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_byte_order_mark_wins_over_a_declared_charset_and_is_no_text(codec):
    mark = "\ufeff".encode(codec)
    found = decode(mark + KOREAN.encode(codec), "iso-8859-1")
    assert (found.text, found.charset) == (KOREAN, codec)


def test_declared_charset_is_used_under_its_superset():
    text = "똠방각하와 펲시콜라"  # in cp949, not in the KS X 1001 part of euc-kr
    assert decode(text.encode("cp949"), "EUC-KR").text == text
    assert decode("“quoted” – text".encode("cp1252"), "iso-8859-1").charset == "cp1252"


def test_wrong_one_byte_label_on_utf8_does_not_win():
    text = "좋다"
    assert text.encode().decode("cp1252")  # the label would decode, into other letters
    assert decode(text.encode(), "windows-1252").text == text


def test_declared_charset_that_does_not_fit_falls_through_to_utf8():
    found = decode(KOREAN.encode(), "shift_jis")
    assert (found.text, found.charset, found.guessed) == (KOREAN, "utf-8", False)


def test_undeclared_charset_is_guessed_and_said_so():
    found = decode(KOREAN.encode("cp949"), None)
    assert (found.text, found.charset, found.guessed) == (KOREAN, "cp949", True)


def test_few_bytes_are_no_ground_for_a_guess():
    found = decode("짧은 글".encode("cp949"), None)
    assert (found.text, found.reason) == (None, "undecodable")


def test_nul_in_bytes_of_no_charset_is_binary():
    found = decode(b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\xff\xfe", None)
    assert (found.text, found.reason) == (None, "binary")
    assert "NUL at byte 8" in found.detail


@pytest.mark.parametrize("label", ["unicode_escape", "idna", "punycode", "hex", "rot13", "no-such", "", None, "utf-7"])
def test_codecs_that_are_no_charset_of_text_are_not_used(label):
    assert codec_of(label) is None


@pytest.mark.parametrize("label", ["UTF-8", '"utf8"', "ks_c_5601-1987", "windows-949", "latin1", "gb2312", "x-sjis"])
def test_labels_in_use_are_known(label):
    assert codec_of(label)


@given(st.lists(st.tuples(st.binary(max_size=40), st.sampled_from([None, "utf-8", "euc-kr", "latin-1"])), max_size=8))
def test_column_equals_rows(rows):
    payloads = pa.array([payload for payload, _ in rows], pa.large_binary())
    column = decode_column(payloads, pa.array([label for _, label in rows], pa.string()))
    found = [decode(payload, label) for payload, label in rows]
    assert column.texts.to_pylist() == [one.text for one in found]
    assert column.charsets == [one.charset for one in found]
    assert column.reasons == [one.reason for one in found]


@given(st.lists(st.text(st.characters(exclude_categories=("Cs",)), max_size=30), max_size=6))
def test_utf8_is_conserved(texts):
    column = decode_column(pa.array(["a" + t for t in texts], pa.large_string()).cast(pa.large_binary()), pa.nulls(len(texts), pa.string()))
    assert column.texts.to_pylist() == ["a" + t for t in texts]
    assert set(column.charsets) <= {"utf-8"}
