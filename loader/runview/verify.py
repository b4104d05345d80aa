"""Reading a whole view against every promise its files make: for an audit, or after a copy."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from runview.errors import IntegrityError, RunviewError
from runview.shards import pack_stats
from runview.view import ComponentFiles, Feed, RunView


@dataclass(frozen=True)
class Problem:
    """One broken promise: the file or component it was found in, and what is wrong."""

    where: str
    message: str


def verify_view(view: RunView) -> Iterator[Problem]:
    """Yield every problem of an opened view; opening it already checked manifest, catalogs, stats and geometry.

    Each shard and pack index: digest of the whole file against its name, each block against the `.blocks` file, header,
    offsets, token ids below the vocabulary's size, and the statistics made again from the packs.
    """
    feeds = [view.feed, *(view.validation(component.name) for component in view.manifest.validation)]
    for feed in feeds:
        for number, files in enumerate(feed.components):
            for shard in range(files.catalog.n_shards):
                try:
                    _verify_shard(feed, files, number, shard)
                except RunviewError as error:
                    yield Problem(files.catalog.shard_id[shard], str(error))


def _verify_shard(feed: Feed, files: ComponentFiles, number: int, shard: int) -> None:
    opened = feed.open_shard(number, shard)
    for file in opened.files:
        file.ensure(0, file.size_bytes)
        found = file.sha256_of_all()
        if found != file.sha256:
            raise IntegrityError(f"{file.name}: sha256 {file.sha256} expected from its name, found {found}; copy it again")
    vocab_size = feed.manifest.tokenizer.vocab_size
    if opened.n_tokens and int(opened.tokens.max()) >= vocab_size:
        raise IntegrityError(
            f"{opened.shard.name}: token id {int(opened.tokens.max())} is not below vocab_size {vocab_size}; "
            "the shard was made with another tokenizer"
        )
    expected = pack_stats(
        opened.shard,
        opened.packs,
        seq_len=feed.manifest.seq_len,
        segment_multiple=feed.manifest.packing.segment_multiple,
    )
    rows = files.stats[files.first_pack[shard] : files.first_pack[shard + 1]]
    if not np.array_equal(expected, rows):
        bad = int(np.flatnonzero((expected != rows).any(axis=1))[0])
        raise IntegrityError(
            f"{opened.shard.name}: stats of pack {bad} are {rows[bad].tolist()}, {expected[bad].tolist()} follow "
            "from the shard; the stats file was not made from it, publish the view again"
        )
