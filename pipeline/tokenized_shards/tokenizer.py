"""A tokenizer as a value: its identity, its ids, and text to ids in which content can never become control.

Made from the text of the files that transformers writes (`tokenizer.json`, `tokenizer_config.json`,
`chat_template.jinja`); no file is read and no hub is asked here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from pipeline.errors import TokenizerError
from pipeline.ids import digest, sha256_hex

Array = npt.NDArray[Any]

# Many scripts, code, digits, white space and marks: a library version that cuts any of them otherwise gives another tokenizer_id.
PROBE = (
    "The quick brown fox, isn't it? naïve café — “quoted” … x² ½ ﬁ\n"
    "한국어 문장입니다. 밥 먹었어? \u1112\u1161\u11ab 日本語テスト。 中文测试，标点！"
    " ไทย עברית العربية हिन्दी தமிழ் Ελληνικά Русский ქართული አማርኛ\n"
    "def f(x: int = 0x1F) -> str:\n\treturn f'{x:>8}' + \"\\n\"  # 3.14159e-10, 1234567890, 12,345.67\r\n"
    "$\\int_0^1 x^2\\,dx = \\frac{1}{3}$ ∑∀∃≤≠ <b>&amp;</b> https://example.org/a?b=c#d user@example.org\n"
    "e\u0301 👩‍👩‍👧 🇰🇷 \u200b\u00a0   \t\t  \n\n\n\U00020000\ufeff\x00\x7f"
)
# Encodings of the library cost 124 bytes a token (measured), so this many characters at once cost some 75 MB of code, 250 MB at worst.
CHUNK_CHARS = 2**21


@dataclass(frozen=True)
class Roles:
    """The tokens that mark begin, end and padding, as text; None when the tokenizer has no such token."""

    bos: str | None = None
    eos: str | None = None
    pad: str | None = None


class Tokenizer:
    """One tokenizer.

    Attributes: name; roles; bos, eos, pad (ids or None); fill_id (pad, else eos: what stands where a document was erased);
    max_token_id, the largest id of vocabulary and added tokens, and vocab_size = max_token_id + 1; dtype, the width of its
    token files.
    Raises: TokenizerError, when the file cannot be read, a role names no token, there is neither pad nor eos, ids of the
    configuration contradict the file, or the model draws at random (BPE dropout).
    """

    def __init__(
        self,
        name: str,
        *,
        tokenizer_json: bytes,
        roles: Roles,
        chat_template: str = "",
        more_added_tokens: Mapping[str, int] | None = None,
    ) -> None:
        self.name, self.roles, self.chat_template = name, roles, chat_template
        self._file_sha256 = sha256_hex(tokenizer_json)
        try:
            text = tokenizer_json.decode("utf-8")
            model = json.loads(text)["model"]
            self._library = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises plain Exception
            raise TokenizerError(
                f"tokenizer {name!r}: tokenizer.json is not a tokenizer that tokenizers {tokenizers.__version__} can read "
                f"({type(error).__name__}: {str(error)[:200]}); save it again with save_pretrained of a fast tokenizer"
            ) from error
        if model.get("dropout"):
            raise TokenizerError(
                f"tokenizer {name!r}: its model has dropout {model['dropout']}, so equal texts get other ids; set it to null"
            )
        # A truncation or padding setting left in the file would cut or fill documents without notice.
        self._library.no_truncation()
        self._library.no_padding()
        self._library.encode_special_tokens = True
        added = self._library.get_added_tokens_decoder()
        self.added_tokens: dict[str, tuple[int, bool]] = {token.content: (int(i), bool(token.special)) for i, token in added.items()}
        for token, token_id in (more_added_tokens or {}).items():
            known = self._library.token_to_id(token)
            if known is not None and known != token_id:
                raise TokenizerError(
                    f"tokenizer {name!r}: token {token!r} has id {known} in tokenizer.json, {token_id} in its configuration"
                )
            self.added_tokens.setdefault(token, (token_id, True))
        ids = [*self._library.get_vocab(with_added_tokens=True).values(), *(i for i, _ in self.added_tokens.values())]
        self.max_token_id = max(ids)
        self.vocab_size = self.max_token_id + 1
        self.dtype = token_dtype(self.max_token_id)
        self.bos, self.eos, self.pad = (
            self._role_id(role, token) for role, token in (("bos", roles.bos), ("eos", roles.eos), ("pad", roles.pad))
        )
        fill = self.eos if self.pad is None else self.pad
        if fill is None:
            raise TokenizerError(f"tokenizer {name!r}: has neither a pad nor an eos token; name one in tokenizer_config.json")
        self.fill_id = fill
        self._is_control = self._control_table(model)

    @classmethod
    def from_files(
        cls, name: str, *, tokenizer_json: bytes, config_json: bytes | None = None, chat_template: str | None = None
    ) -> Tokenizer:
        """From the bytes of `tokenizer.json`, `tokenizer_config.json` and the text of `chat_template.jinja`, where there are any."""
        try:
            config = json.loads(config_json) if config_json else {}
        except ValueError as error:
            raise TokenizerError(f"tokenizer {name!r}: tokenizer_config.json is not JSON ({error})") from error
        template = chat_template if chat_template is not None else config.get("chat_template") or ""
        added = {entry["content"]: int(token_id) for token_id, entry in config.get("added_tokens_decoder", {}).items()}
        return cls(
            name,
            tokenizer_json=tokenizer_json,
            roles=Roles(*(_token_text(config.get(f"{role}_token")) for role in ("bos", "eos", "pad"))),
            chat_template=template if isinstance(template, str) else json.dumps(template, sort_keys=True, ensure_ascii=False),
            more_added_tokens=added,
        )

    @cached_property
    def tokenizer_id(self) -> str:
        """Digest of file bytes, roles, added tokens, chat template and the ids of a probe text."""
        ids, _ = self.encode_batch([PROBE])
        added = sorted([i, token, special] for token, (i, special) in self.added_tokens.items())
        roles = [self.roles.bos, self.roles.eos, self.roles.pad]
        return digest("tokenizer", self._file_sha256, roles, added, self.chat_template, ids.tolist())

    def manifest_entry(self) -> dict[str, str | int | None]:
        """The `tokenizer` object of a run view's manifest."""
        ids: dict[str, int | None] = {"bos": self.bos, "eos": self.eos, "pad": self.pad}
        return {"tokenizer_id": self.tokenizer_id, "vocab_size": self.vocab_size, **ids, "fill_id": self.fill_id}

    def encode_batch(self, texts: Sequence[str], *, begin: bool = False, end: bool = False) -> tuple[Array, Array]:
        """Ids of texts, each encoded by itself, with begin and end tokens where asked.

        Returns: ids, `dtype` [N]; offsets int64 [n + 1], text i is ids[offsets[i]:offsets[i + 1]].
        Raises: TokenizerError, when a role is missing, an id is not in the vocabulary, or content gives a control id.
        Invariant: special tokens written in a text are ordinary characters; threads and batching change nothing.
        """
        for wanted, role, token_id in ((begin, "bos", self.bos), (end, "eos", self.eos)):
            if wanted and token_id is None:
                raise TokenizerError(f"tokenizer {self.name!r}: the recipe asks for a {role} token per document, but it has none")
        parts, lengths = [], [np.zeros(1, np.int64)]
        for chunk in _chunks(texts):
            found = self._library.encode_batch_fast(chunk, add_special_tokens=False)
            sizes = np.fromiter((len(e) for e in found), np.int64, len(found))
            flat = np.fromiter(chain.from_iterable(e.ids for e in found), np.int64, int(sizes.sum()))
            parts.append(checked_ids(flat, max_token_id=self.max_token_id, name=self.name))
            lengths.append(sizes)
        ids = np.concatenate(parts) if parts else np.zeros(0, self.dtype)
        offsets = np.cumsum(np.concatenate(lengths))
        n_control = int(self._is_control[ids].sum())
        if n_control:
            raise TokenizerError(
                f"tokenizer {self.name!r}: {n_control} control ids came out of plain text; its model spells special tokens itself, "
                "so content could act as control: remove them from its model or use another tokenizer"
            )
        return self._with_edges(ids, offsets, begin=begin, end=end) if begin or end else (ids, offsets)

    def decode_batch(self, ids: Array, offsets: Array) -> list[str]:
        """Texts of ids laid out as `encode_batch` returns them; special tokens are spelled out."""
        rows = [ids[start:stop].tolist() for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]
        return list(self._library.decode_batch(rows, skip_special_tokens=False))

    def _with_edges(self, ids: Array, offsets: Array, *, begin: bool, end: bool) -> tuple[Array, Array]:
        wide = offsets + np.arange(len(offsets)) * (begin + end)
        out = np.empty(int(wide[-1]), self.dtype)
        is_content = np.ones(len(out), bool)
        if begin:
            out[wide[:-1]] = self.bos
            is_content[wide[:-1]] = False
        if end:
            out[wide[1:] - 1] = self.eos
            is_content[wide[1:] - 1] = False
        out[is_content] = ids
        return out, wide

    def _role_id(self, role: str, token: str | None) -> int | None:
        if token is None:
            return None
        found = self._library.token_to_id(token)
        if found is None and token in self.added_tokens:
            found = self.added_tokens[token][0]
        if found is None:
            raise TokenizerError(f"tokenizer {self.name!r}: its configuration names {role} token {token!r}, which is not in its vocabulary")
        return int(found)

    def _control_table(self, model: Mapping[str, Any]) -> npt.NDArray[np.bool_]:
        """True for ids that only a renderer may write: special tokens and roles, but not the answer to unknown text."""
        table = np.zeros(self.vocab_size, bool)
        table[[i for i, special in self.added_tokens.values() if special]] = True
        table[[i for i in (self.bos, self.eos, self.pad) if i is not None]] = True
        unknown = model.get("unk_id")
        if unknown is None and model.get("unk_token") is not None:
            unknown = self._library.token_to_id(model["unk_token"])
        if unknown is not None:
            table[unknown] = False
        return table


def token_dtype(max_token_id: int) -> np.dtype[Any]:
    """uint16 or uint32, by the largest id the tokenizer can emit, added tokens included."""
    if not 0 <= max_token_id < 2**32:
        raise TokenizerError(f"the largest token id must lie in [0, 2^32), found {max_token_id}")
    return np.dtype(np.uint16 if max_token_id < 2**16 else np.uint32)


def checked_ids(ids: Array, *, max_token_id: int, name: str) -> Array:
    """The same ids in the tokenizer's dtype, after every one was checked: 0 <= id <= max_token_id. Raises TokenizerError."""
    wrong = (ids < 0) | (ids > max_token_id)
    if wrong.any():
        examples = np.unique(ids[wrong])[:5].tolist()
        raise TokenizerError(
            f"tokenizer {name!r}: {int(wrong.sum())} of {len(ids)} ids are outside 0..{max_token_id}, for example {examples}; "
            "ids of another tokenizer cannot be stored under this one"
        )
    return ids.astype(token_dtype(max_token_id))


def _chunks(texts: Sequence[str]) -> Iterator[list[str]]:
    chunk: list[str] = []
    n_chars = 0
    for text in texts:
        if chunk and n_chars + len(text) > CHUNK_CHARS:
            yield chunk
            chunk, n_chars = [], 0
        chunk.append(text)
        n_chars += len(text)
    if chunk:
        yield chunk


def _token_text(value: Any) -> str | None:
    """transformers writes a role as text or as an object with its `content`."""
    return value.get("content") if isinstance(value, dict) else value
