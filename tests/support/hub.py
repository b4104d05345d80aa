"""A server that speaks the hub's protocol as `huggingface_hub` calls it: revision, tree (in pages) and resolve, with branches that move."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.web import File, Web

PAGE = 2  # entries of one page of a tree


@dataclass
class Repository:
    """Commits by id, each a dict from path to bytes; branches and tags by name; which suffixes are large files (LFS)."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    large: tuple[str, ...] = (".parquet",)


def git_blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0%b" % (len(data), data)).hexdigest()


class Hub:
    """`with Hub() as hub: hub.repositories["org/name"] = Repository(...)`; give HF_ENDPOINT = hub.web.origin."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.web = Web()
        self.web.dynamic = self._answer
        self.script: list[Any] = []  # what the next transfers of files meet, see web.File
        self.answered_commit: str | None = None  # lie about the commit that answers a file
        self.tampered: dict[str, bytes] = {}

    def __enter__(self) -> Hub:
        self.web.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.web.__exit__()

    def _answer(self, path: str) -> File | None:
        parts = urlsplit(path)
        names = parts.path.strip("/").split("/")
        if names[:2] == ["api", "datasets"]:
            return self._api("/".join(names[2:4]), [unquote(name) for name in names[4:]], parse_qs(parts.query))
        if names[0] == "datasets" and names[3] == "resolve":
            return self._file("/".join(names[1:3]), unquote(names[4]), unquote("/".join(names[5:])))
        if names[0] == "storage":
            return File(self.tampered.get(names[1]) or self._stored(names[1]), script=self.script)
        return None

    def _stored(self, sha256: str) -> bytes:
        every = (data for repository in self.repositories.values() for files in repository.commits.values() for data in files.values())
        return next(data for data in every if hashlib.sha256(data).hexdigest() == sha256)

    def _commit(self, name: str, revision: str) -> str | None:
        repository = self.repositories[name]
        found = repository.refs.get(revision, revision)
        return found if found in repository.commits else None

    def _api(self, name: str, rest: list[str], query: dict[str, list[str]]) -> File | None:
        if name not in self.repositories:
            return _error(404, "RepoNotFound")
        if not rest or rest[0] == "revision":
            commit = self._commit(name, rest[1] if rest else "main")
            return _error(404, "RevisionNotFound") if commit is None else _json({"id": name, "sha": commit})
        commit = self._commit(name, rest[1])
        if commit is None:
            return _error(404, "RevisionNotFound")
        below = rest[2] + "/" if len(rest) > 2 else ""
        files = {path: data for path, data in self.repositories[name].commits[commit].items() if path.startswith(below)}
        if not files:
            return _error(404, "EntryNotFound")
        folders = {"/".join(path.split("/")[:i]) for path in files for i in range(1, path.count("/") + 1)}
        entries: list[dict[str, Any]] = [
            {"type": "directory", "path": path, "oid": "0" * 40, "size": 0} for path in sorted(folders) if path != rest[-1]
        ]
        for path, data in sorted(files.items()):
            entry: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": git_blob(data)}
            if path.endswith(self.repositories[name].large):
                entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            entries.append(entry)
        start = int(query.get("cursor", ["0"])[0])
        answer = _json(entries[start : start + PAGE])
        if start + PAGE < len(entries):
            where = f"{self.web.origin}/api/datasets/{name}/tree/{commit}" + (f"/{rest[2].replace('/', '%2F')}" if len(rest) > 2 else "")
            answer.headers["Link"] = f'<{where}?recursive=True&expand=False&cursor={start + PAGE}>; rel="next"'
        return answer

    def _file(self, name: str, revision: str, path: str) -> File | None:
        commit = self._commit(name, revision)
        data = self.repositories[name].commits[commit].get(path) if commit else None
        if commit is None or data is None:
            return _error(404, "EntryNotFound")
        headers = {"X-Repo-Commit": self.answered_commit or commit}
        if path.endswith(self.repositories[name].large):
            sha256 = hashlib.sha256(data).hexdigest()
            return File(
                script=[("status", 302, {**headers, "X-Linked-Etag": f'"{sha256}"', "Location": f"/storage/{sha256}?signature=s3cret"})]
            )
        return File(self.tampered.get(path, data), headers=headers, script=self.script)


def _json(value: Any) -> File:
    return File(json.dumps(value).encode(), headers={"Content-Type": "application/json"})


def _error(status: int, code: str) -> File:
    return File(script=[("status", status, {"X-Error-Code": code})])
