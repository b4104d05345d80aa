"""Kill a process with SIGKILL at its n-th durable act, for every n, and see what a later process finds.

A durable act is a call that changes what another process can see: a rename, a new folder, an fsync, a Delta commit. There is a
kill point before each, which is also the one after the act before it, and one after each opening of a file for writing.
`Crasher` runs a function in processes of its own:

    with Crasher("tests.resources.chain:publish") as crasher:
        n_points = crasher.run(folder).n_points
        for n in range(1, n_points + 1):
            assert crasher.run(folder_n, kill_at=n).killed
            assert not crasher.run(folder_n).error
            ...look at folder_n

The function takes strings. By default one server process imports it and forks for each run, which is quick but wants a module
that starts no threads when imported; `fork=False` starts a new interpreter for each run.
"""

from __future__ import annotations

import builtins
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

ACTS = ("replace", "rename", "link", "unlink", "mkdir", "fsync", "truncate")


@dataclass(frozen=True)
class Outcome:
    """How a run ended: killed or not, kill points it passed, and the error it raised (class and message), if any."""

    killed: bool
    n_points: int
    error: str = ""


class Crasher:
    """Runs `module:function` in processes of its own, to be killed at will."""

    def __init__(self, target: str, *, fork: bool = True) -> None:
        self.target = target
        self.fork = fork
        self._server: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        if self.fork:
            self._server = self._start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._stop(self._server)

    def run(self, *args: str, kill_at: int | None = None, kill_after_seconds: float | None = None) -> Outcome:
        """One run; with `kill_at` killed at that point (from 1), with `kill_after_seconds` from outside at that time."""
        server = self._server or self._start()
        assert server.stdin is not None
        assert server.stdout is not None
        order = {"args": [str(arg) for arg in args], "kill_at": kill_at, "kill_after": kill_after_seconds}
        server.stdin.write(json.dumps(order) + "\n")
        server.stdin.flush()
        line = server.stdout.readline()
        if server is not self._server:
            self._stop(server)
        if not line:
            raise RuntimeError(f"the crash server for {self.target} ended without an answer")
        return Outcome(**json.loads(line))

    def _start(self) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [sys.executable, os.path.abspath(__file__), self.target]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def _stop(self, server: subprocess.Popen[str]) -> None:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.close()
        server.wait(timeout=30)
        server.stdout.close()


def serve(target: str) -> None:
    """Import the target, then fork one child per order read from stdin, and answer with its outcome."""
    module, _, name = target.partition(":")
    function = getattr(importlib.import_module(module), name)
    for line in sys.stdin:
        order = json.loads(line)
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read_end)
            _run(function, order, write_end)
        os.close(write_end)
        if order["kill_after"] is not None:
            time.sleep(order["kill_after"])
            os.kill(child, signal.SIGKILL)
        with os.fdopen(read_end, "rb") as report:
            said = report.read()
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        error = said.lstrip(b".").decode()
        if not killed and status != 0 and not error:
            error = f"the process ended with status {status}"
        outcome = Outcome(killed, len(said) - len(said.lstrip(b".")), error)
        sys.stdout.write(json.dumps(outcome.__dict__) + "\n")
        sys.stdout.flush()


def _run(function: Callable[..., object], order: dict[str, Any], write_end: int) -> None:
    os.dup2(2, 1)  # stdout is the answer's channel
    try:
        _arm(order["kill_at"], write_end)
        function(*order["args"])
    except BaseException as error:
        os.write(write_end, f"{type(error).__name__}: {error}".encode())
        if not isinstance(error, Exception):
            traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _arm(kill_at: int | None, write_end: int) -> None:
    n_passed = 0

    def point() -> None:
        nonlocal n_passed
        n_passed += 1
        os.write(write_end, b".")
        if n_passed == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def armed(original: Callable[..., Any]) -> Callable[..., Any]:
        def act(*args: Any, **kwargs: Any) -> Any:
            point()
            return original(*args, **kwargs)

        return act

    plain_open = builtins.open

    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        result = plain_open(file, mode, *args, **kwargs)
        if set(mode) & set("wxa+"):
            point()  # the file is there, and empty
        return result

    builtins.open = opened
    for name in ACTS:
        setattr(os, name, armed(getattr(os, name)))
    if "deltalake" in sys.modules:
        import deltalake
        from deltalake.table import TableMerger, TableOptimizer

        deltalake.DeltaTable.create = armed(deltalake.DeltaTable.create)
        for owner, name in ((deltalake.DeltaTable, "delete"), (deltalake.DeltaTable, "vacuum"), (TableMerger, "execute")):
            setattr(owner, name, armed(getattr(owner, name)))
        TableOptimizer.compact = armed(TableOptimizer.compact)
        original = deltalake.write_deltalake
        for module in list(sys.modules.values()):
            if getattr(module, "write_deltalake", None) is original:
                module.write_deltalake = armed(original)  # type: ignore[attr-defined]


if __name__ == "__main__":
    serve(sys.argv[1])
