"""`runviewctl gc`: what nothing needs goes, and what a published view lists stays, also when the collector is killed."""

import os
from collections import Counter
from pathlib import Path

import pytest

from assets import view_steps
from assets.commands import gc
from pipeline.errors import LakeError
from pipeline.schemas import GATES, RUN_VIEWS, SHARDS
from resources.lake.sharing import working
from resources.lake.upkeep import Upkeep
from resources.project import Project
from runview import Loader, RunView
from runview.verify import verify_view
from tests.support.project import VIEW
from tests.support.terminal import Terminal

NOW = ("--min-age-hours", "0")


def train(project: Project) -> list[str]:
    """Every pack of the published view; the view is verified first."""
    row = view_steps.view_row(project, VIEW, "published")
    assert row is not None
    view = RunView.open(project.files.view_place("views", row["view_id"]))
    assert list(verify_view(view)) == []
    with Loader(view, micro_batch=4) as loader:
        return [batch.input_ids.tobytes().hex() for batch in loader]


def stored(project: Project) -> Counter[str]:
    return Counter(snapshot.stage for snapshot in project.lake.snapshots())


def token_files(project: Project) -> set[str]:
    root = Path(project.files.root)
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def test_a_dry_run_names_what_would_go_and_removes_nothing(terminal: Terminal, past: Project) -> None:
    before, files = stored(past), token_files(past)
    value = terminal.json("gc", *NOW)
    assert value["removed"] is False
    assert value["stages"] == {"shards": 1, "view": 1}
    assert len(value["views"]) == 1
    assert value["strays"] == []
    assert {kind: one["files"] > 0 for kind, one in value["files"].items()} == dict.fromkeys(
        ["candidates", "catalogs", "packs", "shards", "stats"], True
    )
    assert value["bytes"] > 0
    out = terminal.text("gc", *NOW)
    assert "versions nothing needs: 1 shards, 1 view" in out
    assert "Remove it: runviewctl gc --yes" in out
    assert (stored(past), token_files(past)) == (before, files)
    assert terminal.json("gc")["stages"] == {}, "what is younger than a day is kept"


def test_what_a_published_view_lists_verifies_and_trains_afterwards(terminal: Terminal, past: Project) -> None:
    before = train(past)
    waiting = view_steps.current_candidate(past, "strict-view")["view_id"]
    old = stored(past)
    value = terminal.json("gc", "--yes", *NOW)
    assert value["removed"] is True
    assert value["removed_files"] > 0
    assert train(past) == before
    assert old - stored(past) == Counter({"view": 1, "shards": 1})
    assert view_steps.current_candidate(past, "strict-view")["view_id"] == waiting
    for snapshot in past.lake.snapshots():
        past.lake.verify(snapshot.version)
    kept = {snapshot.version for snapshot in past.lake.snapshots()}
    assert set(past.lake.table(GATES)["version"].to_pylist()) == kept
    assert {row.version for row in Upkeep(past.lake).rows()} <= kept
    assert {row["view_id"] for row in past.lake.table(RUN_VIEWS).to_pylist()} == {
        waiting,
        view_steps.view_row(past, VIEW, "published")["view_id"],
    }  # type: ignore[index]
    again = terminal.json("gc", "--yes", *NOW)
    assert (again["stages"], again["rows"], again["removed_files"], again["bytes"]) == ({}, 0, 0, 0)
    view_steps.check_files(past, waiting)
    assert terminal.json("doctor")["ok"] is True


@pytest.mark.slow
@pytest.mark.parametrize("after", ["snapshots", "shards rows", "run views", "files"])
def test_killed_in_the_middle_a_second_run_completes_it(
    past: Project, terminal: Terminal, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(past)

    class Killed(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        raise Killed

    upkeep, n_calls = Upkeep, Counter[str]()
    forget_keys, forget = upkeep.forget_keys, upkeep.forget

    def counted_keys(self: Upkeep, spec: object, values: object, **more: object) -> None:
        n_calls["keys"] += 1
        if n_calls["keys"] > {"snapshots": 1, "run views": 3}.get(after, 9):
            die()
        forget_keys(self, spec, values, **more)  # type: ignore[arg-type]

    def counted_rows(self: Upkeep, rows: object) -> None:
        n_calls["rows"] += 1
        if after == "shards rows" and n_calls["rows"] > 1:
            die()
        forget(self, rows)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Upkeep, "forget_keys", counted_keys)
        patch.setattr(Upkeep, "forget", counted_rows)
        if after == "run views":
            patch.setattr(gc.orphans, "remove", die)
        if after == "files":
            patch.setattr(Upkeep, "unused_files", lambda self, *, min_age_hours, remove=False: die() if remove else [])
        with pytest.raises(Killed):
            terminal("gc", "--yes", *NOW)
    assert train(past) == whole
    terminal.json("gc", "--yes", *NOW)
    value = terminal.json("gc", *NOW)
    assert (value["stages"], value["strays"], value["rows"], value["views"], value["files"]) == ({}, [], 0, [], {})
    assert train(past) == whole
    assert terminal.json("doctor")["ok"] is True


def test_nothing_is_removed_while_a_run_works_or_a_view_cannot_say_what_it_lists(terminal: Terminal, past: Project) -> None:
    before = stored(past), token_files(past)
    with working(str(past.state_root)):
        assert "nothing was removed" in terminal.refused("gc", "--yes", *NOW)
    catalog = next(Path(past.files.root, "catalogs").rglob("*.safetensors"))
    row = view_steps.view_row(past, VIEW, "published")
    assert row is not None
    listed = [component.catalog for component in gc.read_manifest(past, row["view_id"]).components]
    catalog = past.files.path("catalogs", listed[0])
    data = catalog.read_bytes()
    os.truncate(catalog, 100)
    assert "catalogs/" in terminal.refused("gc", "--yes", *NOW)
    catalog.write_bytes(data)
    assert (stored(past), token_files(past)) == before


def test_a_listed_file_is_never_removed_even_when_the_plan_says_so(past: Project) -> None:
    plan = gc.make_plan(past, min_age_hours=0)
    shard = past.lake.read(SHARDS, past.lake.snapshots(stage="shards")[0].version)["shard_id"][0].as_py()
    plan.files.append(gc.orphans.Found("shards", shard, past.files.path("shards", shard), 1, 1e9))
    with pytest.raises(LakeError, match="files that are listed were about to be removed"):
        gc.carry_out(past, plan, min_age_hours=0)
    assert past.files.path("shards", shard).exists()
