"""The project's own tokenizer: byte-level BPE whose every output decodes to the text that went in.

The file `pipeline/data/tokenizer/tokenizer.json` was made here. It is an input of every token file, so training is a
pure function of the texts and their order, and nothing about the text is changed on the way: no normaliser, no
lower-casing, no prefix space. What a merge may not cross is decided by `PIECE_PATTERN` alone.

The shipped vocabulary of 8,192 was trained on 11.1 MB of Python source and 2.5 MB of package licences and
descriptions, followed by the embedded Korean, mathematics and chat sets eight times over (1.7 MB), so that common
Hangul syllables and words get pieces of their own.
"""

import json
from collections.abc import Iterable, Sequence

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

N_BYTES = 256

# A merge never crosses the border of a piece. The order matters: the first alternative that matches wins.
PIECE_PATTERN = "|".join(
    (
        # English contractions. The look-ahead keeps the quoted word in b'string' from losing its first letter.
        r"(?i:'(?:[sdmt]|ll|re|ve))(?![\p{L}\p{M}])",
        # A word with at most one mark or space before it. Combining marks stay with their letters, which matters
        # for Indic scripts and for decomposed accents; decomposed Hangul is letters already.
        r"[^\r\n\p{L}\p{M}\p{N}]?[\p{L}\p{M}]+",
        # One digit at a time. Groups of three would take up to 1,110 of 8,192 entries, and would cut 1234 as 123|4
        # but 12345 as 123|45, so that a digit's place could not be read off its piece.
        r"\p{N}",
        # Runs of punctuation and symbols, with the line ends that follow them, as in `):\n`.
        r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
        # Line ends with the blanks before them; then blanks, the last of which is left to the word it precedes.
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)


def train_bpe(texts: Iterable[str], *, vocab_size: int, special_tokens: Sequence[str]) -> str:
    """The text of a `tokenizer.json` (Hugging Face `tokenizers`) trained on `texts`.

    Args: texts, each one document, used as they are; vocab_size, the exact number of ids, special tokens included;
        special_tokens, which get the ids 0, 1, ... in this order. They are atomic only where the caller leaves
        special-token matching on: content must be encoded with `encode_special_tokens = True`.
    Returns: JSON, ending with a line feed. The same texts in the same order give the same bytes.
    Raises: ValueError, when special tokens repeat or are empty, when vocab_size has no room for them and the 256
        bytes, or when the texts hold too little variety to fill vocab_size.
    Invariant: all 256 bytes are in the vocabulary, so every text is encoded without an unknown token and reversibly.
    Source: Sennrich et al. 2016 (BPE on words); Radford et al. 2019 (bytes as the base alphabet).
    """
    if len(set(special_tokens)) != len(special_tokens) or "" in special_tokens:
        raise ValueError("special_tokens must be distinct and not empty")
    n_fixed = N_BYTES + len(special_tokens)
    if vocab_size < n_fixed:
        raise ValueError(f"vocab_size must be at least {n_fixed} (256 bytes and the special tokens), found {vocab_size}")

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECE_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special_tokens),
        # The library lists its alphabet in random order.
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)

    n_found = tokenizer.get_vocab_size(with_added_tokens=True)
    if n_found != vocab_size:
        raise ValueError(
            f"expected a vocabulary of {vocab_size}, found {n_found}: the texts have too few distinct pairs; "
            "train on more text or ask for a smaller vocabulary"
        )
    found_ids = [tokenizer.token_to_id(token) for token in special_tokens]
    if found_ids != list(range(len(special_tokens))):
        raise ValueError(f"special tokens must have the ids 0 to {len(special_tokens) - 1}, found {found_ids}")
    return json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, indent=1) + "\n"
