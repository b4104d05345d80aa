"""Receivers of alerts: real servers on this machine that can be down, refuse, and come back on the same port."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Receiver:
    """An HTTP receiver on a port of its own; `posts` holds (key, body) of every POST, also of those it refused."""

    def __init__(self) -> None:
        self.port = free_port()
        self.posts: list[tuple[str, dict[str, Any]]] = []
        self.answer: Callable[[str], int] = lambda _key: 200
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?token=hush"

    def start(self) -> None:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                key = self.headers["Idempotency-Key"]
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.posts.append((key, body))
                status = receiver.answer(key)
                try:
                    self.send_response(status)
                    if status == 302:
                        self.send_header("Location", "/elsewhere")
                    self.end_headers()
                except OSError:
                    pass  # the sender was killed

            def do_GET(self) -> None:
                receiver.posts.append(("followed a redirect", {}))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def keys(self) -> list[str]:
        return [key for key, _ in self.posts]

    def kinds(self) -> list[str]:
        return sorted(body["kind"] for _, body in self.posts)


class MailServer:
    """Speaks enough SMTP to take a letter; refuses recipients that begin with `nobody`."""

    def __init__(self) -> None:
        self.letters: list[str] = []
        letters = self.letters

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.wfile.write(b"220 here\r\n")
                while line := self.rfile.readline():
                    word = line[:4].upper()
                    if word == b"DATA":
                        self.wfile.write(b"354 go on\r\n")
                        held = []
                        while (line := self.rfile.readline()) not in (b".\r\n", b""):
                            held.append(line.decode())
                        letters.append("".join(held))
                    elif word == b"QUIT":
                        self.wfile.write(b"221 bye\r\n")
                        return
                    if b"<nobody" in line and word == b"RCPT":
                        self.wfile.write(b"550 unknown\r\n")
                    else:
                        self.wfile.write(b"250 ok\r\n")

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
