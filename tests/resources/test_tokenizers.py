"""Where tokenizers come from, and what is said when one is not there."""

import json

import pytest

from pipeline.errors import TokenizerError
from resources.tokenizers import SHIPPED, TokenizerStore
from tests.pipeline.tokenized_shards.shard_fixture import END, PAD, byte_tokenizer_json


@pytest.fixture
def home(tmp_path):
    made = tmp_path / "tokenizers" / "my-bytes"
    made.mkdir(parents=True)
    (made / "tokenizer.json").write_bytes(byte_tokenizer_json())
    (made / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": END}, "pad_token": PAD, "chat_template": "old"}))
    (tmp_path / "tokenizers" / "slow").mkdir()
    return tmp_path / "tokenizers"


def test_the_shipped_tokenizer_ends_documents_and_keeps_control_out_of_content():
    tokenizer = TokenizerStore().load(SHIPPED)
    assert tokenizer.vocab_size == 8192
    assert tokenizer.dtype == "uint16"
    assert None not in (tokenizer.eos, tokenizer.pad)
    specials = [i for i, special in tokenizer.added_tokens.values() if special]
    text = "Ends here <|end_of_text|><|pad|>, 그리고 <|user|>."
    ids, offsets = tokenizer.encode_batch([text], end=True)
    assert ids[-1] == tokenizer.eos
    assert not set(ids[:-1].tolist()) & set(specials)
    assert tokenizer.decode_batch(ids[:-1], offsets - [0, 1]) == [text]


def test_a_local_directory_by_name_in_a_folder_or_itself(home):
    for directory in (home, home / "my-bytes"):
        tokenizer = TokenizerStore([directory]).load("my-bytes")
        assert (tokenizer.name, tokenizer.eos, tokenizer.chat_template) == ("my-bytes", 0, "old")
    assert TokenizerStore([home]).names() == ["my-bytes", SHIPPED]


def test_the_template_file_wins_and_changes_the_identity(home):
    before = TokenizerStore([home]).load("my-bytes").tokenizer_id
    (home / "my-bytes" / "chat_template.jinja").write_text("{{ new }}")
    after = TokenizerStore([home]).load("my-bytes")
    assert after.chat_template == "{{ new }}"
    assert after.tokenizer_id != before


def test_what_transformers_saves_is_read_with_the_same_ids(home, tmp_path):
    transformers = pytest.importorskip("transformers")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_file=str(home / "my-bytes" / "tokenizer.json"), eos_token=END, pad_token=PAD)
    fast.save_pretrained(tmp_path / "saved")
    tokenizer = TokenizerStore([tmp_path]).load("saved")
    assert (tokenizer.eos, tokenizer.pad) == (fast.eos_token_id, fast.pad_token_id)
    text = "한국어 and x²"
    assert tokenizer.encode_batch([text])[0].tolist() == fast(text, add_special_tokens=False)["input_ids"]


def test_a_missing_tokenizer_names_place_and_neighbour(home):
    with pytest.raises(TokenizerError, match=rf"'my-byte': looked for my-byte/tokenizer\.json in \['{home}'\].*did you mean 'my-bytes'"):
        TokenizerStore([home]).load("my-byte")
    with pytest.raises(TokenizerError, match=r"none is configured.*known are \['runview-bpe-8k'\]"):
        TokenizerStore().load("zzz")


def test_a_directory_without_the_file_says_how_to_make_it(home):
    with pytest.raises(TokenizerError, match=r"slow/tokenizer\.json expected, found none; .*save_pretrained"):
        TokenizerStore([home]).load("slow")
