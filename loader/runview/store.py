"""Files below a view's root, believed only after their digests were checked.

Catalogs and stats are hashed whole when a view is opened. Shards and pack indexes are large: the `.blocks` file is
hashed at first use, and each 256 KiB block when it is first touched, so no token of a wrong block is ever delivered.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from runview.errors import FormatError, IntegrityError, MissingFileError
from runview.shards import BLOCK_BYTES, ERASED, PackIndex, Shard, relative_path
from runview.tensors import Buffer, map_file

Array = np.ndarray[Any, Any]


def read_file(path: Path) -> bytes:
    """The bytes of a small file; MissingFileError when it is not there or cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise MissingFileError(f"{path}: cannot be read ({error.strerror}); check that the lake is complete and mounted") from error


def open_whole(root: Path, kind: str, sha256: str) -> tuple[Buffer, str]:
    """Map a file and check the sha256 of all of it; the buffer and its name for messages."""
    buffer, name = map_file(root / relative_path(kind, sha256))
    found = hashlib.sha256(buffer).hexdigest()
    if found != sha256:
        raise IntegrityError(f"{name}: sha256 {sha256} expected, found {found}; the file is corrupt, copy it again")
    return buffer, name


class VerifiedFile:
    """A mapped file with a bitmap of checked blocks. `ensure(begin, end)` checks the blocks of a byte range once."""

    def __init__(self, root: Path, kind: str, sha256: str, *, blocks_sha256: str, size_bytes: int | None) -> None:
        path = root / relative_path(kind, sha256)
        blocks = read_file(path.with_suffix(".blocks"))
        found = hashlib.sha256(blocks).hexdigest()
        if found != blocks_sha256:
            raise IntegrityError(
                f"{path.with_suffix('.blocks')}: sha256 {blocks_sha256} expected from the catalog, "
                f"found {found}; the file is corrupt, copy it again"
            )
        self.buffer, self.name = map_file(path)
        self.size_bytes, self.sha256 = len(self.buffer), sha256
        n_blocks = -(-self.size_bytes // BLOCK_BYTES)
        if size_bytes not in (None, self.size_bytes) or len(blocks) != 32 * n_blocks:
            raise IntegrityError(
                f"{self.name}: {size_bytes or 'as many'} bytes in {len(blocks) // 32} blocks expected, "
                f"found {self.size_bytes} bytes; the file is incomplete, copy it again"
            )
        self._view, self._digests = memoryview(self.buffer), blocks
        self._seen = bytearray(n_blocks)
        self.complete = False

    @property
    def n_verified(self) -> int:
        """Blocks checked so far."""
        return sum(self._seen)

    def sha256_of_all(self) -> str:
        """The digest of the whole file, hashed now."""
        return hashlib.sha256(self.buffer).hexdigest()

    def ensure(self, begin: int, end: int) -> None:
        """Check every block of bytes [begin, end) not yet checked; IntegrityError names file, block and byte range."""
        if self.complete or end <= begin:
            return
        first, last = begin // BLOCK_BYTES, -(-end // BLOCK_BYTES)
        block = self._seen.find(0, first, last)
        while block >= 0:
            at, to = block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, self.size_bytes)
            if hashlib.sha256(self._view[at:to]).digest() != self._digests[32 * block : 32 * block + 32]:
                raise IntegrityError(
                    f"{self.name}: block {block} (bytes {at} to {to}) does not have the digest in its .blocks "
                    "file; the shard is corrupt, none of its tokens was delivered from there, copy it again"
                )
            self._seen[block] = 1
            block = self._seen.find(0, block, last)
        if self._seen.find(0) < 0:
            self.complete = True


class OpenShard:
    """A shard and its pack index, checked and made ready: where the tokens of each pack's segments lie.

    Pack p has segments [pack_offsets[p], pack_offsets[p+1]); `segments` int64 [S,2] has where each begins in the
    shard's tokens, and its length x 4 + ENDS (its document ends with it) + GONE (its document is erased).
    """

    ENDS, GONE = 1, 2

    def __init__(self, shard_file: VerifiedFile, pack_file: VerifiedFile, *, seq_len: int, segment_multiple: int) -> None:
        self.files = (shard_file, pack_file)
        self.shard = Shard(shard_file.buffer, check=shard_file.ensure, name=shard_file.name)
        self.packs = PackIndex(pack_file.buffer, check=pack_file.ensure, name=pack_file.name)
        begin, doc_end = self.packs.token_ranges(self.shard)
        length = self.packs.segment_length.astype(np.int64)
        ends = begin + length == doc_end
        gone = self.shard.doc_state[self.packs.segment_doc] == ERASED
        self.segments = np.stack([begin, length * 4 + ends * self.ENDS + gone * self.GONE], axis=1)
        self.tokens, self.n_tokens = self.shard.tokens, len(self.shard.tokens)
        self.pack_offsets: list[int] = self.packs.pack_offsets.tolist()
        padded = -(-length // segment_multiple) * segment_multiple
        total = np.concatenate([np.zeros(1, np.int64), np.cumsum(padded)])
        sizes = np.diff(total[self.packs.pack_offsets])
        if len(sizes) and int(sizes.max()) > seq_len:
            bad = int(np.argmax(sizes))
            raise FormatError(f"{self.packs.name}: pack {bad} needs {int(sizes[bad])} positions, the view's seq_len is {seq_len}")
        self._token_start, self._item = self.shard.token_bytes[0], self.tokens.itemsize

    def ensure_tokens(self, begin: int, end: int) -> None:
        """Check the blocks that hold tokens [begin, end)."""
        file = self.files[0]
        if not file.complete:
            file.ensure(self._token_start + begin * self._item, self._token_start + end * self._item)

    def doc_ids(self, pack: int) -> Array:
        """The documents of one pack's segments, uint8 [n, 32]; zero where erased."""
        docs = self.packs.segment_doc[self.pack_offsets[pack] : self.pack_offsets[pack + 1]]
        start = self.shard.doc_id_bytes[0]
        if len(docs):
            self.files[0].ensure(start + 32 * int(docs.min()), start + 32 * (int(docs.max()) + 1))
        ids: Array = self.shard.doc_ids[docs]
        return ids


class ShardCache:
    """At most `capacity` open shards, the least recently used closed first. `open_shard(component, shard)` opens one.

    A closed shard's map lives until the last batch that refers to it is gone. Safe for threads.
    """

    def __init__(self, open_shard: Callable[[int, int], OpenShard], capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, found {capacity}")
        self._open, self._capacity = open_shard, capacity
        self._items: OrderedDict[tuple[int, int], OpenShard] = OrderedDict()
        self._lock = threading.Lock()
        self.n_opened = 0
        self._verified_before = 0

    def get(self, component: int, shard: int) -> OpenShard:
        with self._lock:
            item = self._items.get((component, shard))
            if item is not None:
                self._items.move_to_end((component, shard))
                return item
        opened = self._open(component, shard)
        with self._lock:
            item = self._items.setdefault((component, shard), opened)
            self.n_opened += item is opened
            if len(self._items) > self._capacity:
                _, old = self._items.popitem(last=False)
                self._verified_before += sum(file.n_verified for file in old.files)
            return item

    @property
    def n_open(self) -> int:
        return len(self._items)

    @property
    def n_blocks_verified(self) -> int:
        """Blocks hashed so far, those of closed shards included."""
        with self._lock:
            return self._verified_before + sum(file.n_verified for item in self._items.values() for file in item.files)

    def clear(self) -> None:
        with self._lock:
            self._items.clear()
