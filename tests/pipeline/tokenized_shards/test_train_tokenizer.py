import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from pipeline.tokenized_shards.train_tokenizer import train_bpe

ROOT = Path(__file__).parents[3]
SHIPPED = ROOT / "pipeline" / "data" / "tokenizer" / "tokenizer.json"
SPECIALS = ("<|end_of_text|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end_of_turn|>")
TEXTS = (
    "def area(width, height):\n    return width * height\n",
    "The river bends twice before it reaches the mill, and the mill wheel turns with it.",
    "강물은 물레방아에 닿기 전에 두 번 굽이치고, 물레방아는 강물을 따라 돈다.",
    "$\\sum_{k=1}^{n} k = \\frac{n(n+1)}{2}$, so the sum up to 100 is 5050.",
)
# No text may be lost whatever it holds: each of these broke some tokenizer's round trip.
HARD_TEXTS = {
    "empty": "",
    "korean": "물레방아가 도는 소리를 들으며 책을 읽었다.",
    "decomposed hangul": "\u1112\u1161\u11ab\u1100\u1173\u11af",
    "lone jamo": "ㅋㅋㅋ ㅠㅠ",
    "emoji sequence": "👩🏽\u200d🚀 🇰🇷 ❤\ufe0f",
    "controls": "a\x00b\x07c\x1b[0m\x7f\x85\u2028\u2029",
    "tabs and crlf": "if x:\r\n\t\treturn\t1\r\n\r\n",
    "blank runs": "   leading,  two,   trailing   ",
    "space before marks": "it 's n't , and so on .",
    "byte order mark": "\ufefftext\u00a0with\u200bodd\u3000blanks",
    "special token as text": "<|end_of_text|> <|pad|>",
    "kept by NFC only": "x² ﬁ Å \u212b e\u0301",
    "private and unassigned": "\ue000 \U000f0000 \U0010ffff",
}


def trained(vocab_size: int = 400) -> str:
    return train_bpe(TEXTS, vocab_size=vocab_size, special_tokens=SPECIALS)


def roundtrip(tokenizer: Tokenizer, text: str) -> str:
    return tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids, skip_special_tokens=False)


@pytest.fixture(scope="module", params=["trained here", "shipped"])
def tokenizer(request) -> Tokenizer:
    text = trained() if request.param == "trained here" else SHIPPED.read_text(encoding="utf-8")
    return Tokenizer.from_str(text)


def test_the_same_texts_give_the_same_bytes_in_fresh_processes():
    command = (
        "import sys; from pipeline.tokenized_shards.train_tokenizer import train_bpe;"
        f"text = train_bpe({TEXTS!r}, vocab_size=400, special_tokens={SPECIALS!r});"
        "sys.stdout.buffer.write(text.encode())"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", command],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
        ).stdout
        for seed, threads in (("1", "1"), ("2", "2"))
    ]
    assert runs[0] == runs[1] == trained().encode()


@pytest.mark.parametrize("vocab_size", [262, 263, 300, 400])
def test_vocabulary_has_exactly_the_size_asked_for(vocab_size):
    tokenizer = Tokenizer.from_str(trained(vocab_size))
    assert tokenizer.get_vocab_size(with_added_tokens=True) == vocab_size
    assert sorted(tokenizer.get_vocab(with_added_tokens=True).values()) == list(range(vocab_size))


def test_shipped_vocabulary_fits_unsigned_16_bit():
    assert Tokenizer.from_file(str(SHIPPED)).get_vocab_size(with_added_tokens=True) == 8192


def test_special_tokens_have_the_first_ids_in_order(tokenizer):
    assert [tokenizer.token_to_id(token) for token in SPECIALS] == [0, 1, 2, 3, 4, 5]


def test_special_tokens_are_plain_text_where_matching_is_off(tokenizer):
    text = "a<|end_of_turn|>b<|pad|>"
    assert set(tokenizer.encode(text, add_special_tokens=False).ids) & {1, 5} == {1, 5}
    content = Tokenizer.from_str(tokenizer.to_str())
    content.encode_special_tokens = True
    ids = content.encode(text, add_special_tokens=False).ids
    assert min(ids) >= len(SPECIALS)
    assert content.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("text", HARD_TEXTS.values(), ids=HARD_TEXTS.keys())
def test_hard_texts_come_back(tokenizer, text):
    assert roundtrip(tokenizer, text) == text


@settings(max_examples=300, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=200))
def test_every_text_comes_back(tokenizer, text):
    assert roundtrip(tokenizer, text) == text


def test_numbers_are_read_digit_by_digit_and_quotes_stay_with_their_word(tokenizer):
    def pieces(text: str) -> list[str]:
        return [text[start:end] for _, (start, end) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]

    assert pieces("year 2026") == ["year", " ", "2", "0", "2", "6"]
    assert pieces("it's b'string'") == ["it", "'s", " b", "'string", "'"]
    assert pieces("if x:\n    y") == ["if", " x", ":\n", "   ", " y"]


def test_nothing_but_splitting_happens_before_the_bytes():
    made = json.loads(trained())
    assert made["normalizer"] is None
    assert made["post_processor"] is None
    assert made["model"]["unk_token"] is None
    assert made["model"]["byte_fallback"] is False


@pytest.mark.parametrize(
    ("vocab_size", "special_tokens", "message"),
    [
        (261, SPECIALS, "at least 262"),
        (100_000, SPECIALS, "too few distinct pairs"),
        (400, ("<|pad|>", "<|pad|>"), "distinct"),
        (400, ("",), "not empty"),
    ],
)
def test_wrong_arguments_are_refused(vocab_size, special_tokens, message):
    with pytest.raises(ValueError, match=message):
        train_bpe(TEXTS, vocab_size=vocab_size, special_tokens=special_tokens)
