"""A web server on loopback whose files change, break off and answer as a test scripts them. It writes down what it was asked."""

from __future__ import annotations

import contextlib
import hashlib
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PIECE = 2**14


@dataclass
class Asked:
    """One request: its path with query, its headers, the status it got, and how many bytes of body went out."""

    path: str
    headers: dict[str, str]
    status: int = 0
    sent: int = 0


@dataclass
class File:
    """What is served under a path.

    `script`: what the next requests get instead, one each: `("status", code, headers)`, `("cut", n_bytes)` (the connection ends after
    that many) or a function called before the answer. `pause_seconds` is waited after every 16 KiB;
    after `hold_at` bytes nothing comes until it is None.
    """

    data: bytes = b""
    etag: str | None = "auto"
    last_modified: str | None = None
    ranges: bool = True
    headers: dict[str, str] = field(default_factory=dict)
    chunked: bool = False
    no_length: bool = False
    pause_seconds: float = 0.0
    hold_at: int | None = None
    script: list[Any] = field(default_factory=list)

    @property
    def tag(self) -> str | None:
        return f'"{hashlib.md5(self.data).hexdigest()}"' if self.etag == "auto" else self.etag


class Web:
    """`with Web() as web: web.files["/a"] = File(b"..."); web.url("/a")`."""

    def __init__(self, certificate: Path | None = None) -> None:
        self.files: dict[str, File] = {}
        self.asked: list[Asked] = []
        self.dynamic: Callable[[str], File | None] = lambda path: None
        web = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                web._answer(self)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda request, address: None  # type: ignore[method-assign]  # clients are killed on purpose
        self.scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self.scheme = "https"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> Web:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def origin(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self._server.server_address[1]}"

    @property
    def host(self) -> str:
        """The folder its files land in."""
        return f"127.0.0.1_{self._server.server_address[1]}"

    def url(self, path: str) -> str:
        return self.origin + path

    def of(self, path: str) -> list[Asked]:
        """Requests for a path."""
        return [one for one in self.asked if one.path == path]

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        asked = Asked(request.path, dict(request.headers))
        self.asked.append(asked)
        file = self.files.get(request.path) or self.files.get(request.path.partition("?")[0]) or self.dynamic(request.path)
        if file is None:
            return self._plain(request, asked, 404, {})
        cut = None
        if file.script:
            order = file.script.pop(0)
            if callable(order):
                order()
            elif order[0] == "status":
                return self._plain(request, asked, order[1], order[2] if len(order) > 2 else {})
            else:
                cut = order[1]
        start, status = 0, 200
        found = re.fullmatch(r"bytes=(\d+)-", asked.headers.get("Range", ""))
        if found and file.ranges and asked.headers.get("If-Range", file.tag) == file.tag:
            start, status = int(found[1]), 206
            if start >= len(file.data):
                return self._plain(request, asked, 416, {"Content-Range": f"bytes */{len(file.data)}"})
        headers = {**file.headers}
        if file.tag:
            headers["ETag"] = file.tag
        if file.last_modified:
            headers["Last-Modified"] = file.last_modified
        if status == 206:
            headers["Content-Range"] = f"bytes {start}-{len(file.data) - 1}/{len(file.data)}"
        if file.chunked:
            headers["Transfer-Encoding"] = "chunked"
        elif file.no_length:
            headers["Connection"] = "close"
        else:
            headers["Content-Length"] = str(len(file.data) - start)
        asked.status = status
        body = file.data[start:]
        with contextlib.suppress(OSError):
            request.send_response(status)
            for name, value in headers.items():
                request.send_header(name, value)
            request.end_headers()
            for i in range(0, len(body), PIECE):
                piece = body[i : i + PIECE]
                if cut is not None:
                    piece = piece[: max(0, cut - asked.sent)]
                if file.chunked and piece:
                    request.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                else:
                    request.wfile.write(piece)
                asked.sent += len(piece)
                if cut is not None and asked.sent >= cut:
                    request.close_connection = True
                    request.wfile.flush()
                    return None
                while file.hold_at is not None and asked.sent >= file.hold_at:
                    time.sleep(0.01)
                if file.pause_seconds:
                    time.sleep(file.pause_seconds)
            if file.chunked:
                request.wfile.write(b"0\r\n\r\n")
            if file.no_length:
                request.close_connection = True
        return None

    def _plain(self, request: BaseHTTPRequestHandler, asked: Asked, status: int, headers: dict[str, str]) -> None:
        asked.status = status
        with contextlib.suppress(OSError):
            request.send_response(status)
            for name, value in {"Content-Length": "0", **headers}.items():
                request.send_header(name, value)
            request.end_headers()


@contextlib.contextmanager
def site(**files: bytes) -> Iterator[Web]:
    """A server with these files, by name."""
    with Web() as web:
        web.files.update({f"/{name}": File(data) for name, data in files.items()})
        yield web
