"""Objects below a prefix. Each is read under the entity tag it was listed with, so that no object changes on the way."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pipeline.errors import SourceError
from pipeline.recipe import Fetch
from resources.fetch.parts import Budget, Part, Planned, Version
from resources.fetch.retry import Again, Stopped, persist
from resources.fetch.settings import Settings
from resources.object_options import ObjectOptions, object_options

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ClientConfig, S3Store

READ_BYTES = 2**20
LIST_CHUNK = 1000


class Changed(SourceError):
    """What was listed is no longer there; the next attempt lists anew and keeps the files that are still the same."""


class S3Files:
    """The adapter for `kind = "s3"`."""

    def __init__(self, source: str, fetch: Fetch, settings: Settings, stop: threading.Event, environment: Mapping[str, str]) -> None:
        self._source, self._settings, self._stop = source, settings, stop
        self._options = object_options(fetch.url, environment)
        self._store = _store(self._options, settings)

    def plan(self) -> list[Planned]:
        """Every object below the prefix, with its entity tag. Empty ones are left out: they hold no payload, and consoles mark folders by
        them with a slash at the end, which the library drops, so that no object has the listed name."""
        listed = self._call("listing", self._options.url, self._list)
        out = []
        for meta in listed:
            url = f"{self._options.url}/{meta['path']}"
            if not meta["size"]:
                continue
            if not meta["e_tag"]:
                raise SourceError(f"source {self._source}: {url} has no entity tag; it could change while it is read")
            out.append(Planned(meta["path"], url, meta["size"], meta["e_tag"], meta["version"] or meta["e_tag"]))
        return out

    def transfer(self, part: Part, budget: Budget) -> None:
        """Bring a part to its end. Raises Changed when the object is not the one that was listed any more."""
        planned = part.planned

        def attempt() -> None:
            if part.size and part.size == planned.size_bytes:
                return
            options: GetOptions = {"if_match": planned.etag}
            if part.size:
                options["range"] = {"offset": part.size}
            result = self._guard(planned.url, lambda: self._store.get(planned.path, options=options))
            if result.meta["e_tag"] != planned.etag or result.meta["size"] != planned.size_bytes:
                raise _changed(planned)
            if part.size and result.range[0] == part.size:
                part.carry_on()
            elif result.range[0] == 0:
                part.begin(Version(planned.etag, None, planned.size_bytes))
            else:
                part.discard()
                raise Again("the answer begins elsewhere; started again", wait_seconds=0)
            part.note(result.meta["version"] or planned.etag)
            stream = iter(result.stream(min_chunk_size=READ_BYTES))
            try:
                while (data := self._guard(planned.url, lambda: next(stream, None))) is not None:
                    part.write(bytes(data))
                    budget.claim(planned.path, part.size)
                    if self._stop.is_set():
                        raise Stopped
            finally:
                part.close()
            if part.size != planned.size_bytes:
                raise Again(f"ended after {part.size} of {planned.size_bytes} bytes")

        self._call("reading", planned.url, attempt, lambda: part.size)

    def _list(self) -> list[dict[str, Any]]:
        return self._guard(self._options.url, lambda: [dict(meta) for chunk in self._store.list(chunk_size=LIST_CHUNK) for meta in chunk])  # type: ignore[no-any-return]

    def _call(self, what: str, url: str, attempt: Any, progress: Any = lambda: 0) -> Any:
        return persist(attempt, what=f"{what} {url}", settings=self._settings, stop=self._stop, progress=progress)

    def _guard(self, url: str, call: Any) -> Any:
        """The library's errors as ours, by kind and without their text, which quotes what the server sent."""
        from obstore import exceptions

        try:
            return call()
        except (exceptions.PreconditionError, exceptions.NotFoundError, FileNotFoundError):
            raise Changed(
                f"source {self._source}: {url} does not exist, or not as it was listed any more; run again, which lists anew"
            ) from None
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise SourceError(
                f"source {self._source}: {url} may not be read ({type(error).__name__}); check AWS_ACCESS_KEY_ID and the bucket's policy"
            ) from None
        except (exceptions.UnknownConfigurationKeyError, exceptions.InvalidPathError, exceptions.NotSupportedError) as error:
            raise SourceError(f"source {self._source}: {url} cannot be asked for ({type(error).__name__})") from None
        except (exceptions.BaseError, OSError) as error:
            if "NoSuchBucket" in str(error):
                raise SourceError(f"source {self._source}: {url}: there is no such bucket at the endpoint; correct fetch.url") from None
            raise Again(type(error).__name__) from None


def _changed(planned: Planned) -> Changed:
    return Changed(f"{planned.url} is another object than was listed ({planned.etag}); run again, which lists anew")


def _store(options: ObjectOptions, settings: Settings) -> S3Store:
    try:
        from obstore.store import S3Store
    except ModuleNotFoundError:
        raise SourceError("kind s3 needs the package obstore: pip install 'runview-pipeline[objects]'") from None
    silence = timedelta(seconds=settings.timeout_seconds)
    # `timeout` would end a large object that is still coming; silence is what counts
    client: ClientConfig = {"connect_timeout": silence, "read_timeout": silence, "timeout": timedelta(days=1)}
    if options.client_options.get("allow_http"):
        client["allow_http"] = True
    # tried again by `persist`, which knows what is kept and can be stopped
    return S3Store(
        options.bucket,
        prefix=options.prefix or None,
        config=options.config,  # type: ignore[arg-type]
        client_options=client,
        retry_config={"max_retries": 0},
    )
