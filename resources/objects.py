"""Files in an object store: the only file that imports obstore.

An upload is there completely or not at all, so no temporary names are needed; what must not be overwritten is put with
`If-None-Match: *`, which the store decides. The answer to a put can be lost and the put repeated: then our own file is reported as
there already, so callers always look at what is there before they believe it is another's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, BinaryIO, cast

from pipeline.errors import LakeError
from resources.object_options import object_options

if TYPE_CHECKING:
    from obstore.store import S3Config, S3Store

REQUEST_SECONDS = 120  # of one request, so that a single upload or download of 64 MiB passes at 0.6 MB/s
RETRIES, RETRY_SECONDS = 10, 60  # of 5xx answers and lost connections, with growing pauses
PART_BYTES = 64 * 2**20  # above, a file goes up in parts of this size, so that a lost connection costs one part
READ_BYTES = 8 * 2**20


class ObjectPlace:
    """Names below `s3://bucket/prefix`. Travels between processes as its URL; credentials are read from the environment there."""

    def __init__(self, url: str) -> None:
        options = object_options(url)
        self.root = options.url
        try:
            import obstore  # noqa: F401
        except ModuleNotFoundError:
            raise LakeError(f"{self.root}: the library for object stores is not installed; install `runview-pipeline[objects]`") from None

    def __reduce__(self) -> tuple[type[ObjectPlace], tuple[str]]:
        return ObjectPlace, (self.root,)

    @cached_property
    def _store(self) -> S3Store:
        from obstore.store import S3Store

        options = object_options(self.root)
        return S3Store(
            options.bucket,
            prefix=options.prefix or None,
            config=cast("S3Config", options.config),
            client_options={"allow_http": options.client_options["allow_http"], "timeout": timedelta(seconds=REQUEST_SECONDS)},
            retry_config={
                "max_retries": RETRIES,
                "retry_timeout": timedelta(seconds=RETRY_SECONDS),
                "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2},
            },
        )

    def where(self, name: str) -> str:
        return f"{self.root}/{name}"

    def size(self, name: str) -> int | None:
        import obstore

        try:
            return int(obstore.head(self._store, name)["size"])
        except FileNotFoundError:
            return None

    def sha256(self, name: str) -> str:
        digest = hashlib.sha256()
        for piece in self._pieces(name):
            digest.update(piece)
        return digest.hexdigest()

    def read(self, name: str) -> bytes:
        import obstore

        return bytes(obstore.get(self._store, name).bytes())

    def copy_to(self, name: str, target: BinaryIO) -> str:
        digest = hashlib.sha256()
        for piece in self._pieces(name):
            digest.update(piece)
            target.write(piece)
        return digest.hexdigest()

    def create(self, name: str, data: bytes | memoryview) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        if len(data) > PART_BYTES:
            # parts cannot be put on a condition; such files are named by their digest, so a second writer brings the same bytes
            if self.size(name) is not None:
                return False
            obstore.put(self._store, name, data, chunk_size=PART_BYTES, max_concurrency=4)
            return True
        try:
            obstore.put(self._store, name, data, mode="create")
        except (AlreadyExistsError, PreconditionError):
            return False
        return True

    def replace(self, name: str, data: bytes | memoryview) -> None:
        import obstore

        obstore.put(self._store, name, data, chunk_size=PART_BYTES, use_multipart=len(data) > PART_BYTES, max_concurrency=4)

    def files(self, below: str = "") -> Iterator[tuple[str, int]]:
        import obstore

        for page in obstore.list(self._store, below.strip("/") or None, chunk_size=1000):
            yield from ((str(one["path"]), int(one["size"])) for one in page)

    def sweep(self, *, min_age_seconds: float) -> int:
        from resources.uploads import abort_uploads

        return abort_uploads(self.root, older_than=datetime.now(UTC) - timedelta(seconds=min_age_seconds))

    def _pieces(self, name: str) -> Iterator[bytes]:
        import obstore

        yield from obstore.get(self._store, name).stream(min_chunk_size=READ_BYTES)
