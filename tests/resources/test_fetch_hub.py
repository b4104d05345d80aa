"""Data sets from a server that speaks the hub's protocol: one commit, all of its selected files, verified."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from pipeline.errors import SourceError
from pipeline.recipe import Source
from resources.fetch import Landing
from resources.fetch.hub import _folders
from resources.sources import take_inventory
from tests.support.hub import Hub, Repository
from tests.support.landing import DAY, content, landed, source_of

CASE = json.loads((Path(__file__).parents[1] / "cases" / "C30" / "pins.json").read_text())["requests"]
COMMIT = {"rev-a": "a" * 40, "rev-b": "b" * 40, "rev-c": "c" * 40}
DATA = bytes(range(256)) * 1024


def files(mark: str) -> dict[str, bytes]:
    """FineWeb's layout: parquet files by subset, beside a card."""
    return {
        "README.md": f"# card {mark}\n".encode(),
        "data/CC-MAIN-2024-10/000_00000.parquet": DATA + mark.encode(),
        "data/CC-MAIN-2024-10/000_00001.parquet": b"second " + mark.encode(),
        "data/CC-MAIN-2024-18/000_00000.parquet": b"other subset " + mark.encode(),
        "sample/10BT/000_00000.parquet": b"sample " + mark.encode(),
    }


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as server:
        commits = {COMMIT[name]: files(name) for name in ("rev-a", "rev-b")}
        server.repositories["org/web"] = Repository(commits, {"main": COMMIT["rev-a"], "v1": COMMIT["rev-a"]})
        yield server


def of(revision: str | None = "main", include: str = "data/CC-MAIN-2024-10/*.parquet", dataset: str = "org/web") -> Source:
    pin = f'revision = "{revision}"\n' if revision else ""
    return source_of(f'kind = "hub"\ndataset = "{dataset}"\n{pin}include = ["{include}"]')


def get(hub: Hub, lake: Path, source: Source, **environment: str) -> Landing:
    return landed(source, lake, HF_ENDPOINT=hub.web.origin, **environment)


def revisions(landing: Landing) -> set[str | None]:
    return {file.revision for file in landing.files.values()}


def test_a_subset_lands_at_the_commit_of_its_branch(hub: Hub, tmp_path: Path) -> None:
    landing = get(hub, tmp_path, of())
    assert content(landing) == {path: data for path, data in files("rev-a").items() if path.startswith("data/CC-MAIN-2024-10/")}
    assert revisions(landing) == {COMMIT["rev-a"]}
    assert "main" not in (landing.folder / "landing.json").read_text().replace('"revision":"main"', "")  # only as what was asked for
    assert "s3cret" not in (landing.folder / "landing.json").read_text()
    containers = take_inventory(landing.source, landing.folder, landed=landing.files)
    assert {one.revision for one in containers} == {COMMIT["rev-a"]}
    asked = [one.path for one in hub.web.asked]
    assert asked[0] == "/api/datasets/org/web/revision/main"
    assert all(f"/{COMMIT['rev-a']}" in path for path in asked[1:] if not path.startswith("/storage"))
    assert any("tree" in path and "2024-10" in path for path in asked)  # not the whole repository
    assert constants.HF_HUB_OFFLINE  # lifted for the calls, and put back


def test_small_files_are_checked_by_their_git_blob(hub: Hub, tmp_path: Path) -> None:
    assert content(get(hub, tmp_path, of(include="*.md"))) == {"README.md": b"# card rev-a\n"}
    hub.tampered["README.md"] = b"# care rev-a\n"
    with pytest.raises(SourceError, match=r"git blob [0-9a-f]{40} was listed, [0-9a-f]{40} came, twice"):
        get(hub, tmp_path / "other", of(include="*.md"))
    assert not list((tmp_path / "other").rglob("*.md"))


def test_large_files_are_checked_by_their_sha256(hub: Hub, tmp_path: Path) -> None:
    import hashlib

    wrong = hashlib.sha256(files("rev-a")["sample/10BT/000_00000.parquet"]).hexdigest()
    hub.tampered[wrong] = b"Sample rev-a"
    with pytest.raises(SourceError, match=rf"sha256 {wrong} was listed, [0-9a-f]{{64}} came, twice"):
        get(hub, tmp_path, of(include="sample/**"))


def test_case_c30(hub: Hub, tmp_path: Path) -> None:
    gone, moved, unpinned = CASE
    held = get(hub, tmp_path, of(COMMIT[gone["cached"][0]]))  # what is held: rev-a
    with pytest.raises(SourceError, match=rf"revision 'no-such-rev' does not exist at the remote; copies of \['{COMMIT['rev-a']}'\]"):
        get(hub, tmp_path, of(gone["revision"]))
    hub.repositories["org/web"].refs["main"] = COMMIT[moved["remote_head"]]
    landing = get(hub, tmp_path, of(moved["revision"]), RUNVIEW_PRODUCTION="1")
    assert revisions(landing) == {COMMIT["rev-b"]}
    assert content(landing)["data/CC-MAIN-2024-10/000_00001.parquet"] == b"second rev-b"
    n_asked = len(hub.web.asked)
    with pytest.raises(SourceError, match="data set org/web is not pinned, and this is a production run"):
        get(hub, tmp_path, of(unpinned["revision"]), RUNVIEW_PRODUCTION="1")
    assert len(hub.web.asked) == n_asked
    assert revisions(get(hub, tmp_path, of(unpinned["revision"]))) == {COMMIT["rev-b"]}
    assert get(hub, tmp_path, of(COMMIT["rev-a"])).files == held.files


def test_a_revision_that_moves_on_the_way_is_never_mixed(hub: Hub, tmp_path: Path) -> None:
    hub.script = [("cut", 100_000), ("status", 403)]
    with pytest.raises(SourceError, match="answered 403"):
        get(hub, tmp_path, of(), RUNVIEW_FETCH_WORKERS="1")
    hub.repositories["org/web"].refs["main"] = COMMIT["rev-b"]
    hub.web.asked.clear()
    landing = get(hub, tmp_path, of())
    assert revisions(landing) == {COMMIT["rev-a"]}  # the list it was begun with
    assert content(landing)["data/CC-MAIN-2024-10/000_00000.parquet"] == DATA + b"rev-a"
    rest = [one for one in hub.web.asked if "Range" in one.headers and one.path.startswith("/storage")]
    assert [one.headers["Range"] for one in rest] == ["bytes=100000-"]


def test_answers_of_another_commit_are_refused(hub: Hub, tmp_path: Path) -> None:
    hub.answered_commit = COMMIT["rev-b"]
    with pytest.raises(SourceError, match=f"is answered from commit {COMMIT['rev-b']}, {COMMIT['rev-a']} was asked for"):
        get(hub, tmp_path, of())


def test_the_token_goes_to_the_hub_and_nowhere_else(hub: Hub, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with Hub() as elsewhere:
        # the files' storage is another origin
        answer = hub._file

        def moved(name: str, revision: str, path: str) -> Any:
            file = answer(name, revision, path)
            if file is not None and file.script:
                file.script[0][2]["Location"] = elsewhere.web.url(file.script[0][2]["Location"])
            return file

        hub._file = moved  # type: ignore[method-assign]
        elsewhere.repositories = hub.repositories
        landing = get(hub, tmp_path, of(), HF_TOKEN="hf_secret")
        assert len(landing.files) == 2
        assert {one.headers.get("Authorization", one.headers.get("authorization")) for one in hub.web.asked} == {"Bearer hf_secret"}
        assert len(elsewhere.web.asked) == 2
        assert not any("uthorization" in name for one in elsewhere.web.asked for name in one.headers)
    assert not any(b"hf_secret" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert "hf_secret" not in caplog.text


def test_refusals(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"data set org/none is not to be had at http://127.0.0.1:\d+ \(RepositoryNotFoundError\)"):
        get(hub, tmp_path, of(dataset="org/none"))
    with pytest.raises(SourceError, match=r"pattern 'data/CC-MAIN-1999-01/\*.parquet' selects none of 0 listed files"):
        get(hub, tmp_path, of(include="data/CC-MAIN-1999-01/*.parquet"))
    with pytest.raises(SourceError, match="HF_ENDPOINT is plain http"):
        get(hub, tmp_path, of(), RUNVIEW_FETCH_ALLOW_HTTP="0")
    hub.repositories["org/web"].refs["odd"] = "odd-commit"
    hub.repositories["org/web"].commits["odd-commit"] = files("odd")
    with pytest.raises(SourceError, match="resolves data set org/web to 'odd-commit', expected a commit id"):
        get(hub, tmp_path, of("odd"))
    hub.repositories["org/web"].commits[COMMIT["rev-c"]] = {"../up.parquet": b"x", "ok.parquet": b"y"}
    assert content(get(hub, tmp_path, of(COMMIT["rev-c"], include="**/*.parquet"))) == {"ok.parquet": b"y"}
    assert not list((tmp_path / "landing").rglob("up.parquet"))


def test_a_busy_hub_is_asked_again(hub: Hub, tmp_path: Path) -> None:
    from tests.support.web import File

    hub.web.files["/api/datasets/org/web/revision/main"] = File(
        json.dumps({"id": "org/web", "sha": COMMIT["rev-a"]}).encode(), script=[("status", 503, {"Retry-After": "0"})]
    )
    assert revisions(get(hub, tmp_path, of())) == {COMMIT["rev-a"]}
    assert len(hub.web.of("/api/datasets/org/web/revision/main")) == 2


def test_only_the_folders_of_the_patterns_are_listed() -> None:
    assert _folders(["data/a/*.parquet", "data/a/b/*.parquet", "sample/**"]) == ["data/a", "sample"]
    assert _folders(["data/*/x.parquet", "data/a.parquet"]) == ["data"]
    assert _folders(["*.md", "data/*.parquet"]) == [""]


def test_snapshots_of_two_days_stand_beside_each_other(hub: Hub, tmp_path: Path) -> None:
    from datetime import timedelta

    from resources.fetch import land
    from tests.support.landing import QUICK

    first = get(hub, tmp_path, of())
    hub.repositories["org/web"].refs["main"] = COMMIT["rev-b"]
    environment = {**QUICK, "HF_ENDPOINT": hub.web.origin}
    second = land(of(), DAY + timedelta(days=1), lake_root=str(tmp_path), environment=environment)
    assert (revisions(first), revisions(second)) == ({COMMIT["rev-a"]}, {COMMIT["rev-b"]})
    assert revisions(get(hub, tmp_path, of())) == {COMMIT["rev-a"]}
