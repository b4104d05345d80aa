"""`runviewctl` called in this process, as a person or a machine does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from assets import cli

Answer = tuple[int, str, str]


class Terminal:
    """Calls the real entry point; exit code, stdout and stderr."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("DAGSTER_HOME", "RUNVIEW_PROJECT"):
            monkeypatch.setenv(name, str(folder))
        monkeypatch.chdir(folder)
        self.folder, self.capsys = folder, capsys

    def __call__(self, *arguments: str) -> Answer:
        self.capsys.readouterr()
        code = cli.main([*arguments, "--project", str(self.folder)])
        return (code, *self.capsys.readouterr())

    def text(self, *arguments: str, code: int = 0) -> str:
        """What a person reads; the exit code must be `code`."""
        found, out, err = self(*arguments)
        assert found == code, err
        return out

    def json(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """What a machine reads: JSON and nothing else on stdout."""
        return dict(json.loads(self.text(*arguments, "--json", code=code)))

    def refused(self, *arguments: str) -> str:
        """The message of a refusal: exit 1, nothing on stdout."""
        code, out, err = self(*arguments)
        assert (code, out) == (1, "")
        return err

    def misused(self, *arguments: str) -> str:
        """The message for wrong usage: exit 2, nothing on stdout."""
        with pytest.raises(SystemExit) as usage:
            self(*arguments)
        assert usage.value.code == 2
        out, err = self.capsys.readouterr()
        assert out == ""
        return err
