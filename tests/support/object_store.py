"""An S3 API on loopback for tests: moto's server in a process of its own, and a proxy that answers badly."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

SECRET = "planted-secret-marker-2f9c"
ACCESS_KEY = "AKIAPLANTEDACCESSKEY"
BUCKET = "lakes"
HOP_BY_HOP = ("connection", "transfer-encoding", "keep-alive", "content-length")


@dataclass(frozen=True)
class ObjectStore:
    """A running server with one bucket."""

    endpoint: str

    def environment(self, prefix: str, **changed: str) -> dict[str, str]:
        """What a process needs to have its lake there."""
        return {
            "RUNVIEW_LAKE": f"s3://{BUCKET}/{prefix}",
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            **changed,
        }


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Start moto's server on a free port, make the bucket, and end the process at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    store = ObjectStore(f"http://127.0.0.1:{port}")
    try:
        for _ in range(300):
            if server.poll() is not None:
                raise RuntimeError(f"moto's server ended with code {server.returncode}")
            try:
                urllib.request.urlopen(urllib.request.Request(f"{store.endpoint}/{BUCKET}", method="PUT"), timeout=5).close()
                break
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.1)
        else:
            raise RuntimeError("moto's server did not answer in 30 s")
        yield store
    finally:
        server.kill()
        server.wait(timeout=30)


Rule = Callable[[str, str, Mapping[str, str]], tuple[int, str] | float | None]
"""Of method, path with query, and headers: a status and an error code to answer with, seconds to wait first, or nothing."""
Lost = Callable[[str, str, Mapping[str, str]], bool]


@contextmanager
def proxy(target: str, rule: Rule, *, lost: Lost = lambda *_: False) -> Iterator[str]:
    """A server that passes requests on to `target` unless the rule says otherwise. Yields its address.

    Where `lost` says so, the request is carried out and answered with an internal error.
    """
    host = urlsplit(target).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            verdict = rule(self.command, self.path, self.headers)
            if isinstance(verdict, tuple):
                status, code = verdict
                self._answer(status, {"content-type": "application/xml"}, f"<Error><Code>{code}</Code></Error>".encode())
                return
            if verdict is not None:
                time.sleep(verdict)
            connection = HTTPConnection(host, timeout=60)
            try:
                # the signature covers the host that was asked, so the header stays
                connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    connection.putheader(name, value)
                connection.endheaders(body)
                answer = connection.getresponse()
                data = answer.read()
                if lost(self.command, self.path, self.headers):
                    self._answer(500, {"content-type": "application/xml"}, b"<Error><Code>InternalError</Code></Error>")
                    return
                kept = {name: value for name, value in answer.getheaders() if name.lower() not in HOP_BY_HOP}
                length = answer.getheader("content-length") if self.command == "HEAD" else None
                self._answer(answer.status, kept, data, length=length)
            finally:
                connection.close()

        def _answer(self, status: int, headers: Mapping[str, str], data: bytes, *, length: str | None = None) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", length or str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
