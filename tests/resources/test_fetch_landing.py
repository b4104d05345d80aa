"""Landings: whole or not there, continued after a death, never fetched twice, and read into evidence with what is known of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import pytest

from assets import steps
from pipeline.errors import SourceError
from pipeline.raw_evidence.capture import stage_version
from pipeline.schemas import EVIDENCE
from resources.fetch.landing import _check_paths, landing_root
from resources.fetch.parts import SYNC_BYTES, Part, Planned, Version
from resources.fetch.settings import Settings
from resources.project import Project
from resources.sources import take_inventory
from tests.support.crash import Crasher
from tests.support.landing import DAY, HEAD, QUICK, content, landed, of_urls
from tests.support.project import environment, make_project
from tests.support.web import File, Web, site

BIG = os.urandom(2**20)


def text_of(*urls: str) -> str:
    return f'{HEAD}[fetch]\nkind = "https"\nurls = {list(urls)!r}\n'


def folder_of(lake: Path) -> Path:
    return lake / "landing" / "faq" / "2026-11-01"


def test_a_killed_download_goes_on_where_it_stopped(tmp_path: Path) -> None:
    with site(z=BIG, b=b"small\n") as web:
        web.files["/z"].hold_at = 300_000
        code = "import sys; from tests.support.landing import of_env; of_env(*sys.argv[1:])"
        text = text_of(web.url("/b"), web.url("/z"))
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path), text], env=environment({**QUICK, "RUNVIEW_FETCH_TIMEOUT_SECONDS": "120"})
        )
        end = time.monotonic() + 60
        small = folder_of(tmp_path) / "files" / web.host / "b"
        while not (small.exists() and any(path.stat().st_size > 200_000 for path in tmp_path.rglob("*.part"))) and time.monotonic() < end:
            time.sleep(0.02)
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        assert not (folder_of(tmp_path) / "landing.json").exists()
        web.files["/z"].hold_at = None
        web.asked.clear()
        landing = landed(of_urls(web.url("/b"), web.url("/z")), tmp_path)
        assert content(landing) == {f"{web.host}/z": BIG, f"{web.host}/b": b"small\n"}
        (again,) = web.of("/z")
        start = int(again.headers["Range"].removeprefix("bytes=").rstrip("-"))
        assert 0 < start < len(BIG)
        assert again.sent == len(BIG) - start  # only the rest
        assert not web.of("/b")  # that one was whole
        assert sorted(path.name for path in landing.folder.iterdir()) == ["files", "landing.json"]


@pytest.mark.slow
def test_killed_at_every_durable_act(tmp_path: Path) -> None:
    with site(a=b"one\n" * 50) as web, Crasher("tests.support.landing:of_env") as crasher:
        text = text_of(web.url("/a"))
        run = crasher.run(str(tmp_path / "whole"), text)
        assert run.error == ""
        assert run.n_points > 10
        for n in range(1, run.n_points + 1):
            lake = tmp_path / str(n)
            assert crasher.run(str(lake), text, kill_at=n).killed
            assert content(landed(of_urls(web.url("/a")), lake)) == {f"{web.host}/a": b"one\n" * 50}
            assert sorted(path.name for path in folder_of(lake).iterdir()) == ["files", "landing.json"]


@pytest.mark.parametrize("path", ["../a", "/a", "a//b", "a/./b", "a\0", "x" * 2000, "\udcff"])
def test_listed_paths_that_cannot_be_files_here(path: str) -> None:
    with pytest.raises(SourceError, match="cannot be a file here"):
        _check_paths("faq", ["ok", path])


def test_the_first_error_keeps_what_came(tmp_path: Path) -> None:
    with site(a=b"x", b=b"y") as web:
        web.files["/b"].script = [("status", 404)]
        source = of_urls(web.url("/a"), web.url("/b"))
        with pytest.raises(SourceError, match="answered 404"):
            landed(source, tmp_path, RUNVIEW_FETCH_WORKERS="1")
        assert not (folder_of(tmp_path) / "landing.json").exists()
        assert len(landed(source, tmp_path).files) == 2
        assert len(web.of("/a")) == 1


def test_offline_uses_complete_landings_only(tmp_path: Path) -> None:
    with site(a=b"x") as web:
        with pytest.raises(SourceError, match="no complete landing, and RUNVIEW_FETCH_OFFLINE=1"):
            landed(of_urls(web.url("/a")), tmp_path, RUNVIEW_FETCH_OFFLINE="1")
        assert not web.asked
        landing = landed(of_urls(web.url("/a")), tmp_path)
    assert landed(of_urls(web.url("/a")), tmp_path, RUNVIEW_FETCH_OFFLINE="1").files == landing.files


def test_another_fetch_never_gets_these_files(tmp_path: Path) -> None:
    with site(a=b"x", b=b"y") as web:
        first, second = of_urls(web.url("/a")), of_urls(web.url("/b"))
        kept = landed(first, tmp_path)
        assert content(landed(second, tmp_path)) == {f"{web.host}/b": b"y"}
        n_asked = len(web.asked)
        back = landed(first, tmp_path)
        assert back.files == kept.files
        assert content(back) == {f"{web.host}/a": b"x"}
        assert len(web.asked) == n_asked  # it was set aside, not thrown away


def test_what_lies_in_a_landing_is_checked_when_it_is_read(tmp_path: Path) -> None:
    with site(**{"a.txt": b"x\n", "b.txt": b"y\n"}) as web:
        landing = landed(of_urls(web.url("/a.txt"), web.url("/b.txt")), tmp_path)

    def inventory() -> tuple[object, ...]:
        return take_inventory(landing.source, landing.folder, landed=landing.files)

    containers = take_inventory(landing.source, landing.folder, landed=landing.files)
    assert [one.revision for one in containers] == [web.files["/a.txt"].tag, web.files["/b.txt"].tag]
    assert all(one.fetched_at == landing.files[one.path].fetched_at for one in containers)
    place = landing.folder / "files" / web.host
    (place / "c.txt").write_bytes(b"z\n")
    with pytest.raises(SourceError, match="c.txt lies in the landing and is not listed there"):
        inventory()
    (place / "c.txt").unlink()
    (place / "a.txt").write_bytes(b"changed\n")
    with pytest.raises(SourceError, match=r"landed file .*a.txt has sha256 .*, expected .*; remove the landing's folder"):
        inventory()
    (place / "a.txt").unlink()
    with pytest.raises(SourceError, match=r"1 landed files are gone, the first .*a.txt"):
        inventory()
    (landing.folder / "landing.json").write_bytes(b"{")
    with pytest.raises(SourceError, match="landing.json is damaged"):
        landed(of_urls(web.url("/a.txt"), web.url("/b.txt")), tmp_path)


def test_the_time_of_fetching_is_in_no_id(tmp_path: Path) -> None:
    with site(a=b"x\n") as web:
        one, two = landed(of_urls(web.url("/a")), tmp_path / "1"), landed(of_urls(web.url("/a")), tmp_path / "2")
    versions = {stage_version(x.source, DAY, take_inventory(x.source, x.folder, landed=x.files)).version for x in (one, two)}
    assert len(versions) == 1
    assert next(iter(one.files.values())).fetched_at != next(iter(two.files.values())).fetched_at


def test_a_power_cut_trusts_synced_bytes_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = Planned("a", "https://h/a")
    part = Part(tmp_path, planned)
    part.begin(Version('"e"', None, 3 * SYNC_BYTES))
    part.write(bytes(SYNC_BYTES))
    part.write(b"not synced")
    part._file.flush()  # type: ignore[union-attr]
    assert Part(tmp_path, planned).size == SYNC_BYTES + 10  # the process died
    monkeypatch.setattr("resources.fetch.parts._boot", lambda: "another start of the machine")
    assert Part(tmp_path, planned).size == SYNC_BYTES
    monkeypatch.setattr("resources.fetch.parts._boot", lambda: "")
    assert Part(tmp_path, planned).size == SYNC_BYTES
    part.path.write_bytes(b"less than was synced")
    assert Part(tmp_path, planned).size == 0
    assert Part(tmp_path, Planned("a", "https://h/a", etag='"other"')).size == 0


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("RUNVIEW_PRODUCTION", "yes", "RUNVIEW_PRODUCTION must be 1 or 0"),
        ("RUNVIEW_FETCH_RETRIES", "many", "RUNVIEW_FETCH_RETRIES must be a number of at least 0"),
        ("RUNVIEW_FETCH_WORKERS", "0", "RUNVIEW_FETCH_WORKERS must be a number of at least 1"),
        ("RUNVIEW_FETCH_TIMEOUT_SECONDS", "nan", "must be a number"),
    ],
)
def test_settings_that_make_no_sense(name: str, value: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        Settings.of({name: value})


def test_waits_grow_to_a_limit() -> None:
    settings = Settings.of({"RUNVIEW_FETCH_BACKOFF_SECONDS": "1", "RUNVIEW_FETCH_MAX_WAIT_SECONDS": "20"})
    assert [settings.wait_after(n) for n in (1, 2, 3, 9)] == [1, 2, 4, 20]


def test_a_lake_in_an_object_store_needs_a_folder_to_land_in(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="set RUNVIEW_LANDING to a folder"):
        landing_root("s3://bucket/lake", {})
    assert landing_root("s3://bucket/lake", {"RUNVIEW_LANDING": str(tmp_path)}) == tmp_path


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Part, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    with site(a=b"x") as web:
        monkeypatch.setattr(Part, "write", full)
        with pytest.raises(SourceError, match=r"landing 2026-11-01: disk full, \d+ bytes are free; what came is kept"):
            landed(of_urls(web.url("/a")), tmp_path)
        monkeypatch.undo()
        assert landed(of_urls(web.url("/a")), tmp_path).files


def evidence_rows(project: Project, version: str) -> list[dict[str, object]]:
    return project.lake.read(EVIDENCE, version).to_pylist()


def test_evidence_says_what_was_fetched_and_when(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in QUICK.items():
        monkeypatch.setenv(name, value)
    project = make_project(tmp_path / "project")
    with Web() as web:
        web.files["/notes.jsonl"] = File(b'{"text": "A first note."}\n{"text": "A second one."}\n')
        text = (
            'name = "fetched"\nreader = "jsonl"\nconsent_basis = "test"\nfields = { text = "text" }\n'
            f'[fetch]\nkind = "https"\nurls = ["{web.url("/notes.jsonl")}"]\n'
        )
        (tmp_path / "project" / "sources" / "fetched.toml").write_text(text)
        done = steps.collect_evidence(project, "fetched", date(2026, 11, 5), run_id="test")
        rows = evidence_rows(project, done.snapshot.version)
        assert len(rows) == 2
        landing = Path(project.lake.root) / "landing" / "fetched" / "2026-11-05"
        (file,) = json.loads((landing / "landing.json").read_text())["files"]
        assert {row["resolved_revision"] for row in rows} == {file["revision"]} == {web.files["/notes.jsonl"].tag}
        assert {row["fetched_at"].isoformat() for row in rows} == {file["fetched_at"]}
        assert {row["container_sha256"] for row in rows} == {file["sha256"]}
        assert all(row["record_key"].startswith(f"{web.host}/notes.jsonl#") for row in rows)
        n_asked = len(web.asked)
        again = steps.collect_evidence(project, "fetched", date(2026, 11, 5), run_id="test")
        assert again.reused
        assert len(web.asked) == n_asked
        shutil.rmtree(landing)  # fetched again, the same bytes are the same version
        assert steps.collect_evidence(project, "fetched", date(2026, 11, 5), run_id="test").reused
        web.files["/notes.jsonl"].data = b'{"text": "Another note."}\n'
        assert steps.collect_evidence(project, "fetched", date(2026, 11, 6), run_id="test").snapshot.version != done.snapshot.version
