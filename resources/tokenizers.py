"""Tokenizers on this machine: the one that ships with the project, and local directories. No hub is ever asked."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Protocol

from pipeline.errors import TokenizerError
from pipeline.tokenized_shards.tokenizer import Tokenizer

SHIPPED = "runview-bpe-8k"


class _Place(Protocol):
    """What a `pathlib.Path` and a package resource have in common."""

    def joinpath(self, child: str, /) -> _Place: ...
    def is_file(self) -> bool: ...
    def read_bytes(self) -> bytes: ...


class TokenizerStore:
    """Loads tokenizers by name.

    Args: directories, each either a directory that holds `tokenizer.json` (its name is the tokenizer's), or a directory
    of such directories. The first that has the name wins; `runview-bpe-8k` is always the project's own.
    """

    def __init__(self, directories: Sequence[str | Path] = ()) -> None:
        self._directories = [Path(directory) for directory in directories]

    def names(self) -> list[str]:
        """Every name `load` would find."""
        return sorted({SHIPPED, *(path.name for path in self._candidates() if (path / "tokenizer.json").is_file())})

    def load(self, name: str) -> Tokenizer:
        """The tokenizer of that name.

        Raises: TokenizerError, saying what was looked for, where, which names there are, and how to make what is missing.
        """
        if name == SHIPPED:
            return _read(name, files("pipeline").joinpath("data", "tokenizer"))
        for path in self._candidates():
            if path.name == name and path.is_dir():
                return _read(name, path)
        where = [str(directory) for directory in self._directories] or "no directory (none is configured)"
        near = difflib.get_close_matches(name, self.names(), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {self.names()}"
        raise TokenizerError(f"tokenizer {name!r}: looked for {name}/tokenizer.json in {where}, found none; {hint}")

    def _candidates(self) -> list[Path]:
        found = []
        for directory in self._directories:
            if (directory / "tokenizer.json").is_file():
                found.append(directory.resolve())
            elif directory.is_dir():
                found.extend(sorted(path for path in directory.iterdir() if path.is_dir()))
        return found


def _read(name: str, place: _Place) -> Tokenizer:
    main = place.joinpath("tokenizer.json")
    if not main.is_file():
        raise TokenizerError(
            f"tokenizer {name!r}: {main} expected, found none; a slow tokenizer (vocab.txt, tokenizer.model) is converted by "
            "AutoTokenizer.from_pretrained(directory).save_pretrained(directory)"
        )
    config, template = place.joinpath("tokenizer_config.json"), place.joinpath("chat_template.jinja")
    try:
        return Tokenizer.from_files(
            name,
            tokenizer_json=main.read_bytes(),
            config_json=config.read_bytes() if config.is_file() else None,
            chat_template=template.read_bytes().decode("utf-8") if template.is_file() else None,
        )
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"tokenizer {name!r}: a file of {place} cannot be read ({error})") from error
