"""Files over HTTP: redirects, limits, robots.txt, and transfers that continue where they stopped."""

from __future__ import annotations

import re
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from http.cookiejar import DefaultCookiePolicy
from urllib.parse import urljoin, urlsplit

import requests
import urllib3

from pipeline.errors import SourceError
from pipeline.recipe import Fetch
from pipeline.urls import credential_in, file_path, shown
from resources.fetch import encoding
from resources.fetch.parts import Budget, Part, Planned, Version, strong
from resources.fetch.retry import Again, Stopped, persist, retry_after
from resources.fetch.robots import MAX_ROBOTS_BYTES, Robots
from resources.fetch.settings import Settings

READ_BYTES = 2**16  # urllib3 hands out nothing before it has as much, and what it holds is lost with the process
MAX_REDIRECTS = 5
MAX_INDEX_BYTES = 64 * 2**20
CONNECT_SECONDS = 10.0
REDIRECTS, PASSING = (301, 302, 303, 307, 308), (408, 429, 500, 502, 503, 504)
CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
Inspect = Callable[[str, Mapping[str, str]], None]


class Untrusted(SourceError):
    """The server cannot show that it is who it should be."""


class Client:
    """GET requests under the rules of one fetch. Threads may share it."""

    def __init__(self, settings: Settings, *, robots: bool, stop: threading.Event, authorization: tuple[str, str] | None = None) -> None:
        """`authorization`: (origin, header value), sent to that origin only."""
        self.settings, self.stop = settings, stop
        self._authorization = authorization
        self._local = threading.local()
        self._robots = Robots(self._read_robots, max_wait_seconds=settings.max_wait_seconds, stop=stop) if robots else None

    def get(
        self, url: str, headers: Mapping[str, str] | None = None, *, robots: bool = True, inspect: Inspect | None = None
    ) -> requests.Response:
        """The answer at the end of the redirects, body unread. Raises Again when nothing answers, SourceError when a rule forbids it."""
        start = url
        for _ in range(MAX_REDIRECTS + 1):
            self._allow(url)
            if robots and self._robots is not None:
                self._robots.permit(url)
            response = self._send(url, headers or {})
            if inspect is not None:
                inspect(url, response.headers)
            if response.status_code not in REDIRECTS or "Location" not in response.headers:
                return response
            response.close()
            target = urljoin(url, response.headers["Location"])
            if url.startswith("https://") and not target.startswith("https://"):
                raise SourceError(
                    f"{shown(url)} redirects from https to {urlsplit(target).scheme or 'nothing'}; refused: use its own address"
                )
            url = target
        raise SourceError(f"{shown(start)}: more than {MAX_REDIRECTS} redirects, the last to {shown(url)}")

    def read(self, url: str, *, max_bytes: int, robots: bool = True, cut: bool = False) -> tuple[int, bytes]:
        """Status and whole body of a small file; the body is empty unless the status is 2xx. Retried.

        Raises: SourceError when it is larger than `max_bytes`, unless the rest may be cut off.
        """

        def attempt() -> tuple[int, bytes]:
            response = self.get(url, robots=robots)
            with response:
                again_if_passing(response)
                if not response.ok:
                    return response.status_code, b""
                body = b""
                for data in chunks(response):
                    body += data
                    if len(body) > max_bytes:
                        if cut:
                            return response.status_code, body[:max_bytes]
                        raise SourceError(f"{shown(url)} is larger than the {max_bytes} bytes such a file may have")
                return response.status_code, _without_gzip(body, url, max_bytes)

        return persist(attempt, what=shown(url), settings=self.settings, stop=self.stop)

    def _read_robots(self, url: str) -> tuple[int, bytes]:
        try:
            return self.read(url, max_bytes=MAX_ROBOTS_BYTES, robots=False, cut=True)
        except Untrusted:
            raise
        except SourceError:
            return 0, b""  # not reached: the caller knows the rule

    def _allow(self, url: str) -> None:
        scheme = urlsplit(url).scheme
        if scheme == "http" and not self.settings.allow_http:
            raise SourceError(f"{shown(url)} is plain http; write https, or set RUNVIEW_FETCH_ALLOW_HTTP=1 for a mirror of your own")
        if scheme not in ("http", "https"):
            raise SourceError(f"{shown(url)}: expected https, found {scheme!r}")

    def _send(self, url: str, headers: Mapping[str, str]) -> requests.Response:
        sent = {"Accept-Encoding": "identity", "User-Agent": self.settings.user_agent, **headers}
        parts = urlsplit(url)
        if self._authorization and f"{parts.scheme}://{parts.netloc}" == self._authorization[0]:
            sent["Authorization"] = self._authorization[1]
        timeout = (min(CONNECT_SECONDS, self.settings.timeout_seconds), self.settings.timeout_seconds)
        try:
            return self._session().get(url, headers=sent, stream=True, allow_redirects=False, timeout=timeout)
        except requests.exceptions.SSLError:
            raise Untrusted(f"{shown(url)}: its certificate is not trusted (REQUESTS_CA_BUNDLE names others)") from None
        except (requests.exceptions.ConnectionError, requests.exceptions.Timeout) as error:
            raise Again(type(error).__name__) from None
        except (requests.exceptions.RequestException, ValueError) as error:
            raise SourceError(f"{shown(url)} cannot be asked for ({type(error).__name__})") from None

    def _session(self) -> requests.Session:
        if not hasattr(self._local, "session"):
            self._local.session = requests.Session()
            # a cookie would make one answer depend on another
            self._local.session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        return self._local.session  # type: ignore[no-any-return]


def again_if_passing(response: requests.Response) -> None:
    """Raise Again for an answer that may be another one later, with the wait it asks for."""
    status = response.status_code
    if status in PASSING:
        wait = retry_after(response.headers.get("Retry-After")) if status in (429, 503) else None
        raise Again(f"answered {status}", wait_seconds=wait)


def chunks(response: requests.Response) -> Iterator[bytes]:
    """The body as it was sent, undecoded. Raises Again when it breaks off, also short of its Content-Length."""
    try:
        yield from response.raw.stream(READ_BYTES, decode_content=False)
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise Again(f"broke off ({type(error).__name__})") from None


def transfer(client: Client, part: Part, budget: Budget, *, inspect: Inspect | None = None, revision: str | None = None) -> None:
    """Bring a part to its end: every byte of one version of the file, synced.

    Invariant: bytes of two versions are never joined. A part is continued only under a strong entity tag (If-Range), and the answer has to
        be of that tag, offset and length; whatever else comes starts the file again.
    Raises: SourceError when the file cannot be had, Stopped when another file failed.
    """
    planned = part.planned

    def attempt() -> None:
        version = part.version
        if part.size and version.total == part.size:
            return  # a process that died after the last byte
        going_on = part.size > 0 and strong(version.etag) is not None
        headers = {"Range": f"bytes={part.size}-", "If-Range": version.etag or ""} if going_on else {}
        with client.get(planned.url, headers, inspect=inspect) as response:
            again_if_passing(response)
            status = response.status_code
            if going_on and status == 206:
                if not _continues(response, part):
                    part.discard()
                    raise Again("the answer is of another version; started again", wait_seconds=0)
                part.carry_on()
            elif going_on and status == 416:
                part.discard()
                raise Again("the range is beyond the file; started again", wait_seconds=0)
            elif status == 200:
                part.begin(_version(response, planned, revision))
            else:
                raise SourceError(f"{shown(planned.url)} answered {status}; expected 200. Correct the address, or leave it out")
            budget.claim(planned.path, part.version.total or part.size)
            try:
                for data in chunks(response):
                    part.write(data)
                    budget.claim(planned.path, part.size)
                    if client.stop.is_set():
                        raise Stopped
            finally:
                part.close()
            total = part.version.total
            if total is not None and part.size != total:
                raise Again(f"ended after {part.size} of {total} bytes")

    persist(attempt, what=shown(planned.url), settings=client.settings, stop=client.stop, progress=lambda: part.size)


def _continues(response: requests.Response, part: Part) -> bool:
    """Is this 206 the rest of exactly the version the part holds?"""
    found = CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    version = part.version
    return (
        found is not None
        and int(found[1]) == part.size
        and (version.total is None or found[3] == str(version.total))
        and response.headers.get("ETag") == version.etag
        and response.headers.get("Last-Modified", version.last_modified) == version.last_modified
        and encoding.normal(response.headers.get("Content-Encoding", version.encoding)) == version.encoding
    )


def _version(response: requests.Response, planned: Planned, revision: str | None) -> Version:
    headers = response.headers
    length = headers.get("Content-Length")
    if length is None and headers.get("Transfer-Encoding", "").lower() != "chunked":
        raise SourceError(f"{shown(planned.url)} states no length; a file that was cut could not be told from a whole one")
    coding = encoding.normal(headers.get("Content-Encoding"))
    total = int(length) if length is not None and length.isdigit() else None
    if planned.size_bytes is not None and total is not None and not coding and total != planned.size_bytes:
        raise SourceError(f"{shown(planned.url)}: {planned.size_bytes} bytes were listed, {total} are offered; nothing of it is kept")
    etag = headers.get("ETag")
    return Version(etag, headers.get("Last-Modified"), total, coding, revision or strong(etag))


def _without_gzip(body: bytes, url: str, max_bytes: int) -> bytes:
    for _ in range(2):  # the file's own, and one of the transfer
        if not body.startswith(encoding.GZIP_MAGIC):
            break
        machine = zlib.decompressobj(wbits=31)
        try:
            body = machine.decompress(body, max_bytes)
        except zlib.error:
            raise SourceError(f"{shown(url)} is not the gzip it begins as") from None
        if machine.unconsumed_tail or not machine.eof:
            raise SourceError(f"{shown(url)} breaks off, or is larger than the {max_bytes} bytes such a file may have")
    return body


class HttpsFiles:
    """The adapter for `kind = "https"`."""

    def __init__(self, source: str, fetch: Fetch, settings: Settings, stop: threading.Event) -> None:
        self._source, self._fetch = source, fetch
        self._client = Client(settings, robots=fetch.respect_robots, stop=stop)

    def plan(self) -> list[Planned]:
        """The addresses of the source file, or of its index."""
        urls = list(self._fetch.urls) or self._indexed(self._fetch.index)
        out = []
        for url in urls:
            try:
                out.append(Planned(file_path(url), url))
            except ValueError as error:
                raise SourceError(f"source {self._source}: {shown(url)} gives no file name: {error}; leave it out") from None
        return out

    def transfer(self, part: Part, budget: Budget) -> None:
        transfer(self._client, part, budget)

    def _indexed(self, index: str) -> list[str]:
        status, body = self._client.read(index, max_bytes=MAX_INDEX_BYTES)
        if not 200 <= status < 300:
            raise SourceError(f"source {self._source}: index {shown(index)} answered {status}; expected a list of URLs")
        try:
            lines = [line.strip() for line in body.decode().split("\n")]
        except UnicodeDecodeError:
            raise SourceError(f"source {self._source}: index {shown(index)} is not UTF-8 text") from None
        urls = list(dict.fromkeys(urljoin(index, line) for line in lines if line and not line.startswith("#")))
        for url in urls:
            if urlsplit(url).scheme not in ("http", "https") or credential_in(url):
                raise SourceError(
                    f"source {self._source}: index {shown(index)} lists {shown(url)}, which is no https address or holds a credential"
                )
        if not urls:
            raise SourceError(f"source {self._source}: index {shown(index)} lists nothing")
        return urls
