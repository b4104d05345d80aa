"""Text to ids: widths, control ids, settings that would change text, and the identity of a tokenizer."""

import json
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import TokenizerError
from pipeline.tokenized_shards.tokenizer import PROBE, Roles, Tokenizer, checked_ids, token_dtype
from tests.pipeline.tokenized_shards.shard_fixture import END, PAD, byte_tokenizer, byte_tokenizer_json

CASE = json.loads((Path(__file__).parents[2] / "cases" / "C15" / "tokens.json").read_text())
TEXTS = ["", "plain", f"a {END}{PAD} b", "한국어 x² e\u0301", "\x00\ufffd\U0001f600"]


def changed(**model: object) -> bytes:
    plain = json.loads(byte_tokenizer_json())
    plain["model"].update(model)
    return json.dumps(plain).encode()


def test_case_c15_width_comes_from_the_largest_id_and_every_id_is_checked():
    largest = CASE["total_with_added"] - 1
    ids = np.array(CASE["doc_ids"])
    kept = checked_ids(ids, max_token_id=largest, name="c15")
    assert kept.dtype == np.uint32
    assert kept.tolist() == CASE["doc_ids"]
    for bad in CASE["bad_ids"]:
        with pytest.raises(TokenizerError, match=rf"'c15': 1 of 8 ids are outside 0..{largest}.*{bad}"):
            checked_ids(np.append(ids, bad), max_token_id=largest, name="c15")


@pytest.mark.parametrize(("largest", "width"), [(0, "uint16"), (65535, "uint16"), (65536, "uint32"), (2**32 - 1, "uint32")])
def test_width(largest, width):
    assert token_dtype(largest) == width


def test_added_tokens_count_for_the_width():
    config = {"eos_token": END, "pad_token": {"content": PAD}, "added_tokens_decoder": {"65536": {"content": "<|far|>"}}}
    tokenizer = Tokenizer.from_files("far", tokenizer_json=byte_tokenizer_json(), config_json=json.dumps(config).encode())
    assert (tokenizer.max_token_id, tokenizer.vocab_size, tokenizer.dtype) == (65536, 65537, np.uint32)
    assert (tokenizer.bos, tokenizer.eos, tokenizer.pad, tokenizer.fill_id) == (None, 0, 1, 1)


def test_special_tokens_in_content_are_characters():
    ids, offsets = byte_tokenizer().encode_batch(TEXTS)
    assert not np.isin(ids, [0, 1]).any()
    assert np.diff(offsets).tolist() == [len(text.encode()) for text in TEXTS]
    assert byte_tokenizer().decode_batch(ids, offsets) == TEXTS


def test_end_token_once_per_document():
    ids, offsets = byte_tokenizer().encode_batch(TEXTS, end=True)
    assert (ids[offsets[1:] - 1] == 0).all()
    assert int((ids == 0).sum()) == len(TEXTS)
    both = Tokenizer("both", tokenizer_json=byte_tokenizer_json(), roles=Roles(bos=PAD, eos=END))
    ids, offsets = both.encode_batch(["ab", ""], begin=True, end=True)
    assert ids.tolist() == [1, both.encode_batch(["ab"])[0][0], both.encode_batch(["ab"])[0][1], 0, 1, 0]
    assert offsets.tolist() == [0, 4, 6]


def test_a_missing_role_is_named():
    with pytest.raises(TokenizerError, match="asks for a bos token"):
        byte_tokenizer().encode_batch(["a"], begin=True)
    with pytest.raises(TokenizerError, match="neither a pad nor an eos"):
        Tokenizer("none", tokenizer_json=byte_tokenizer_json(), roles=Roles())
    with pytest.raises(TokenizerError, match=r"eos token '</s>', which is not in its vocabulary"):
        Tokenizer("wrong", tokenizer_json=byte_tokenizer_json(), roles=Roles(eos="</s>"))


def test_batching_changes_nothing():
    tokenizer = byte_tokenizer()
    ids, offsets = tokenizer.encode_batch(TEXTS * 50)
    one_by_one = [tokenizer.encode_batch([text])[0] for text in TEXTS * 50]
    assert np.array_equal(ids, np.concatenate(one_by_one))
    assert np.array_equal(np.diff(offsets), [len(part) for part in one_by_one])


def test_truncation_and_padding_of_the_file_are_off():
    plain = json.loads(byte_tokenizer_json())
    plain["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    plain["padding"] = {
        "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 1, "pad_type_id": 0, "pad_token": PAD
    }  # fmt: skip
    tokenizer = Tokenizer("cut", tokenizer_json=json.dumps(plain).encode(), roles=Roles(eos=END))
    assert np.diff(tokenizer.encode_batch(["a", "abcdefgh" * 3])[1]).tolist() == [1, 24]


def test_a_model_that_draws_at_random_is_refused():
    with pytest.raises(TokenizerError, match=r"dropout 0\.1"):
        Tokenizer("random", tokenizer_json=changed(dropout=0.1), roles=Roles(eos=END))


def test_a_model_that_spells_special_tokens_is_refused_at_use():
    """A merge that makes the end token out of plain characters would let content end a document."""
    plain = json.loads(byte_tokenizer_json(specials=("ab", PAD)))
    plain["model"]["merges"] = [["a", "b"]]
    tokenizer = Tokenizer("spells", tokenizer_json=json.dumps(plain).encode(), roles=Roles(eos="ab"))
    assert len(tokenizer.encode_batch(["a b"])[0]) == 3
    with pytest.raises(TokenizerError, match="2 control ids came out of plain text"):
        tokenizer.encode_batch(["abab"])


def test_a_broken_file_is_refused():
    with pytest.raises(TokenizerError, match=r"'broken': tokenizer\.json is not a tokenizer"):
        Tokenizer("broken", tokenizer_json=b"{}", roles=Roles(eos=END))
    with pytest.raises(TokenizerError, match=r"has id 1 in tokenizer\.json, 5 in its configuration"):
        Tokenizer("two", tokenizer_json=byte_tokenizer_json(), roles=Roles(eos=END), more_added_tokens={PAD: 5})


def test_identity_sees_file_roles_template_and_ids():
    base = byte_tokenizer().tokenizer_id
    roles = Roles(eos=END, pad=PAD)
    merged = changed(merges=[["a", "e"]], vocab={**json.loads(byte_tokenizer_json())["model"]["vocab"], "ae": 258})
    others = [
        Tokenizer("a", tokenizer_json=byte_tokenizer_json() + b"\n", roles=roles),
        Tokenizer("a", tokenizer_json=byte_tokenizer_json(), roles=Roles(eos=END)),
        Tokenizer("a", tokenizer_json=byte_tokenizer_json(), roles=roles, chat_template="{{ messages }}"),
        Tokenizer("a", tokenizer_json=byte_tokenizer_json(), roles=roles, more_added_tokens={"<|far|>": 300}),
        Tokenizer("a", tokenizer_json=merged, roles=roles),
    ]
    assert len({base, *(tokenizer.tokenizer_id for tokenizer in others)}) == 6
    same = Tokenizer("another name", tokenizer_json=byte_tokenizer_json(), roles=roles)
    assert same.tokenizer_id == base
    assert same.decode_batch(*same.encode_batch([PROBE])) == [PROBE]
