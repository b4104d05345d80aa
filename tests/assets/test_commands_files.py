"""`runviewctl source`, `recipe`, `release`, `view diff`, `candidates` and `backfill`: in text and in JSON, and refused as documented."""

import json
from pathlib import Path

import pytest

from assets import view_steps
from assets.runner import Runner, persistent_instance
from resources.project import Project
from tests.support.project import RELEASE, VIEW, add_release, edit
from tests.support.terminal import Terminal

BASIS = ("--consent-basis", "written for the tests")


def files(folder: Path) -> dict[str, bytes]:
    """Every file of a project but Dagster's own state and locks, which looking may touch."""
    kept = (path for path in folder.rglob("*") if path.is_file() and not {".dagster_state", ".locks"} & set(path.parts))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in kept}


# -- sources


def test_source_check_says_what_would_be_read_and_writes_nothing(terminal: Terminal, past: Project) -> None:
    before = files(terminal.folder)
    value = terminal.json("source", "check", "notes")
    assert value["counts"] == {"parsed": 19, "empty": 1, "rejected": 3}
    assert value["reasons"] == {"unparsable": 1, "lone_surrogate": 1, "not_an_object": 1}
    assert value["fields"]["author"]["mapped"] == ["deletion key"]
    assert (value["n_containers"], value["estimated_records"], value["exact"], value["ok"]) == (1, 23, True, True)
    out = terminal.text("source", "check", "sums", "--records", "4")
    assert "first 4 records: parsed=4 empty=0 rejected=0" in out
    assert files(terminal.folder) == before
    said = out + terminal.text("source", "check", "notes")
    for line in (terminal.folder / "data" / "notes.jsonl").read_text(errors="ignore").splitlines()[:15]:
        if line.startswith("{"):
            text = json.loads(line)["text"]
            assert not text or text not in said


def test_source_check_refuses_by_name(terminal: Terminal) -> None:
    assert "did you mean 'notes'" in terminal.refused("source", "check", "note")
    edit(terminal.folder / "sources" / "sums.toml", 'text = ["problem", "solution"]', 'text = ["question"]')
    value = terminal.json("source", "check", "sums", code=1)
    assert any("could be read" in problem for problem in value["problems"])
    assert value["unmapped"] == ["problem", "solution"]
    assert "field problem: not read" in terminal.text("source", "check", "sums", code=1)


def test_source_check_of_an_inbox_looks_at_the_newest_folder(terminal: Terminal) -> None:
    inbox = terminal.folder / "data" / "inbox"
    text = 'name = "inbox"\nreader = "text"\nlocation = "../data/inbox"\ndated = true\nsplit_lines = true\nconsent_basis = "test"\n'
    (terminal.folder / "sources" / "inbox.toml").write_text(text)
    inbox.mkdir()
    assert "has no dated folder" in terminal.refused("source", "check", "inbox")
    for day, n in (("2026-11-01", 3), ("2026-11-03", 5)):
        (inbox / day).mkdir()
        (inbox / day / "a.txt").write_text("a line\n" * n)
    assert terminal.json("source", "check", "inbox")["n_read"] == 5
    assert terminal.json("source", "check", "inbox", "--date", "2026-11-01")["n_read"] == 3


def test_source_add_writes_a_commented_file_after_a_look_and_never_over_another(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    (terminal.folder / "data" / "letters.jsonl").write_text('{"no": 1, "body": "Dear reader", "to": ["x"]}\n' * 3)
    new = terminal.folder / "sources" / "letters.toml"
    monkeypatch.chdir(terminal.folder / "data")
    start = ("source", "add", "letters", "--reader", "jsonl", "--location", "letters.jsonl", *BASIS)
    message = terminal.refused(*start)
    assert "Fields with text: body (3 of 3 records); with lists: to" in message
    assert not new.exists()

    monkeypatch.chdir(terminal.folder / "data")
    value = terminal.json(*start, "--text", "body", "--id", "no", "--licence", "CC0-1.0", "--kind", "prose", "--snapshot", "2026-11-05")
    assert (value["written"], value["path"], value["unmapped"]) == (True, "sources/letters.toml", ["to"])
    text = new.read_text()
    assert text.count("#") > 4
    assert 'location = "../data/letters.jsonl"' in text
    source = Project.at(terminal.folder).source("letters")
    assert (source.fields, source.snapshot and source.snapshot.isoformat()) == ({"text": ("body",), "id": ("no",)}, "2026-11-05")
    assert terminal.json("source", "check", "letters")["counts"]["parsed"] == 3

    monkeypatch.chdir(terminal.folder / "data")
    assert "is there already" in terminal.refused(*start, "--text", "body")
    assert new.read_text() == text


def test_source_add_writes_nothing_when_the_look_finds_a_problem(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(terminal.folder / "data")
    start = ("source", "add", "odd", "--reader", "jsonl", "--location", "sums.jsonl", *BASIS, "--text", "nothing")
    assert "was not written" in terminal.text(*start, code=1)
    assert not (terminal.folder / "sources" / "odd.toml").exists()
    assert "must match" in terminal.refused("source", "add", "Odd Name", "--reader", "tree", "--location", "x", *BASIS)


def test_quotes_and_backslashes_survive_in_a_source_file(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    basis = 'said "yes" \\ on paper, 동의\n2026'
    terminal.text(
        "source", "add", "odd", "--reader", "tree", "--location", str(terminal.folder / "data" / "handbook"), "--consent-basis", basis
    )
    assert Project.at(terminal.folder).source("odd").consent_basis == basis


# -- recipes


def test_recipe_check_counts_the_documents_of_a_release_by_component(terminal: Terminal) -> None:
    value = terminal.json("recipe", "check", "small", "--release", RELEASE)
    assert value["assignment"]["components"] == {"code": 4, "english": 18, "korean": 8, "sums": 8}
    assert (value["ok"], value["assignment"]["judged_by"], value["assignment"]["kept"]) == (True, "this recipe", 38)
    assert "english          18 documents" in terminal.text("recipe", "check", "small", "--release", RELEASE)

    edit(terminal.folder / "recipes" / "small.toml", 'languages = ["ko"]', 'languages = ["ja"]')
    value = terminal.json("recipe", "check", "small", "--release", RELEASE, code=1)
    assert sum(int(problem.split()[0]) for problem in value["problems"] if "language=ko" in problem and "in no component" in problem) == 8
    assert "component korean would have no documents" in value["problems"]


def test_recipe_check_names_a_missing_tokenizer_and_an_unknown_recipe(terminal: Terminal) -> None:
    edit(terminal.folder / "recipes" / "small.toml", 'tokenizer = "runview-bpe-8k"', 'tokenizer = "runview-bpe-9k"')
    value = terminal.json("recipe", "check", "small", code=1)
    assert any("did you mean 'runview-bpe-8k'" in problem for problem in value["problems"])
    assert "did you mean 'small'" in terminal.refused("recipe", "check", "smal")


def test_recipe_diff_names_values_and_the_stages_made_anew(terminal: Terminal) -> None:
    value = terminal.json("recipe", "diff", "small", "strict")
    assert value["values"] == {
        "cleaning.rules[min_words].bound": {"before": "5", "after": "18"},
        "packing.seed": {"before": "7b1d5a90", "after": "7b1d5a91"},
    }
    assert value["new_versions"]["documents"] == value["new_versions"]["shards"] == "changed"
    assert "cleaning.rules[min_words].bound: '5' -> '18'" in terminal.text("recipe", "diff", "small", "strict")
    assert "no stage gets a new version" in terminal.text("recipe", "diff", "small", "small")


# -- releases


def test_release_seal_pins_what_show_then_shows(terminal: Terminal) -> None:
    add_release(terminal.folder, "third", old='    { source = "sums", dates = [2026-11-01] },\n')
    shown = terminal.json("release", "show", "third")
    assert (shown["sealed"], len(shown["members"]), shown["stages"]) == (False, 3, [])
    value = terminal.json("release", "seal", "third")
    assert (value["already_sealed"], len(value["members"])) == (False, 3)
    assert "was sealed already" in terminal.text("release", "seal", "third")
    shown = terminal.json("release", "show", "third")
    assert (shown["sealed"], shown["release_id"]) == (True, value["release_id"])
    assert {row["gate"] for row in shown["members"]} == {"green"}
    assert {row["gate"] for row in shown["stages"]} == {"missing"}
    edit(terminal.folder / "releases" / "third.toml", "2026-11-02", "2026-11-01")
    assert "a sealed release never changes" in terminal.refused("release", "seal", "third")


def test_release_show_has_counts_gates_and_views(terminal: Terminal) -> None:
    value = terminal.json("release", "show", RELEASE)
    assert {row["source"]: row["counts"]["documents"].split()[0] for row in value["members"]}["notes"] == "made=19"
    assert [row["gate"] for row in value["stages"]] == ["green"] * 4
    assert {row["status"] for row in value["views"]} == {"candidate", "published"}
    assert "published view small-view" in terminal.text("release", "show", RELEASE)


def test_release_diff_counts_members_documents_and_sides(terminal: Terminal) -> None:
    value = terminal.json("release", "diff", RELEASE, "strict")
    assert value["members"] == {"added": [], "removed": [], "changed": [], "same": 4}
    assert (value["n_new"], value["n_gone"], value["unit"]) == (0, 0, "documents")
    assert (value["decisions"]["to_dropped"], value["decisions"]["to_kept"]) == (2, 0)
    assert {"before": "kept", "after": "quality", "n_docs": 2} in value["decisions"]["changed"]
    assert "kept -> quality: 2" in terminal.text("release", "diff", RELEASE, "strict")

    add_release(terminal.folder, "less", old='    { source = "sums", dates = [2026-11-01] },\n')
    value = terminal.json("release", "diff", RELEASE, "less")
    assert value["members"]["removed"] == ["sums/2026-11-01"]
    assert (value["unit"], value["n_new"], value["n_gone"], value["decisions"]) == ("documents", 0, 9, None)
    assert "decisions: not made for both" in terminal.text("release", "diff", RELEASE, "less")


# -- views


def test_candidates_tells_who_waits_and_what_was_superseded(terminal: Terminal, past: Project) -> None:
    rows = terminal.json("candidates")["candidates"]
    assert [row["name"] for row in rows] == ["strict-view", "strict-view"]
    assert [row["current"] for row in rows] == [True, False]
    assert {(row["gate"], row["proposer"], row["release"]) for row in rows} == {("green", "demo-proposer", "strict")}
    out = terminal.text("candidates")
    assert out.count("superseded") == 1
    terminal.text("approve", "strict-view")
    assert [row["current"] for row in terminal.json("candidates")["candidates"]] == [False]


def test_view_diff_compares_shares_documents_and_decisions(terminal: Terminal, past: Project) -> None:
    value = terminal.json("view", "diff", VIEW, "strict-view")
    documents = value["documents"]
    assert (documents["n_before"], documents["n_after"], documents["added"], documents["moved"]) == (38, 36, {}, [])
    assert sum(documents["removed"].values()) == 2
    assert value["decisions"]["changed"] == [{"before": "kept", "after": "quality", "n_docs": 2}]
    assert value["recipe"]["cleaning.rules[min_words].bound"] == {"before": "5", "after": "18"}
    declared = {(row["stage"], row["component"]): row["declared_share"] for row in value["mixture"]}
    assert declared["mixed", "korean"] == {"before": "0.3", "after": "0.3"}
    assert not all(row["same"] for row in value["mixture"])
    view_id = view_steps.current_candidate(past, "strict-view")["view_id"]
    out = terminal.text("view", "diff", VIEW, view_id)
    assert "documents in shards: 38 -> 36, 36 stayed where they were" in out
    assert "kept -> quality: 2" in out
    same = terminal.json("view", "diff", VIEW, VIEW)
    assert (same["settings"], same["recipe"], same["decisions"]["changed"]) == ({}, {}, [])
    assert "known names are ['small-view', 'strict-view']" in terminal.refused("view", "diff", VIEW, "nothing")


# -- backfill


def test_backfill_says_first_what_it_takes_then_makes_it_in_order_and_goes_on(terminal: Terminal, past: Project) -> None:
    inbox = terminal.folder / "data" / "inbox"
    text = 'name = "inbox"\nreader = "text"\nlocation = "../data/inbox"\ndated = true\nsplit_lines = true\nconsent_basis = "test"\n'
    (terminal.folder / "sources" / "inbox.toml").write_text(text + 'kind = "prose"\nlicence = "CC0-1.0"\n')
    for day in ("2026-11-01", "2026-11-03"):
        (inbox / day).mkdir(parents=True)
        (inbox / day / "a.txt").write_text(f"A line of the day {day} about the weather.\n" * 3)
    span = ("inbox", "2026-11-01", "2026-11-03", "--recipe", "small")
    value = terminal.json("backfill", "plan", *span)
    assert value["states"] == {"missing": 2, "absent": 1}
    assert value["size_bytes"] == sum(path.stat().st_size for path in inbox.rglob("*.txt"))
    assert (value["rates"]["cpu_measured_on"], value["rates"]["disk_measured_on"]) == (0, 0)
    value = terminal.json("backfill", "run", *span)
    assert (value["made"], value["failed"], value["left"]) == (["2026-11-01", "2026-11-03"], [], 0)
    (inbox / "2026-11-02").mkdir()
    (inbox / "2026-11-02" / "a.txt").write_text("Late, but a line of the second day all the same.\n")
    plan = terminal.json("backfill", "plan", *span)
    assert plan["states"] == {"complete": 2, "missing": 1}
    assert (plan["rates"]["cpu_measured_on"], plan["rates"]["disk_measured_on"]) == (2, 2)
    assert plan["cpu_hours"] > 0 and plan["disk_bytes"] > 0
    assert "measured on 2 earlier snapshots" in terminal.text("backfill", "plan", *span)
    value = terminal.json("backfill", "run", *span)
    assert (value["made"], value["already_complete"]) == (["2026-11-02"], 2)
    out = terminal.text("status")
    assert "source sums" in out and "(pinned)" in out
    rows = {row["source"]: row for row in terminal.json("status")["sources"]}
    assert (rows["inbox"]["complete"], rows["inbox"]["newest"]) == (3, "2026-11-03")
    assert rows["inbox"]["lag_days"] is not None and rows["inbox"]["disk_bytes"] > 0
    assert rows["sums"]["pinned"] == "2026-11-01"


def test_backfill_tells_a_failed_date_and_status_shows_it_until_it_is_repaired(terminal: Terminal, past: Project) -> None:
    sums = terminal.folder / "data" / "sums.jsonl"
    good = sums.read_bytes()
    (terminal.folder / "sources" / "sums.toml").write_text(
        (terminal.folder / "sources" / "sums.toml").read_text().replace("snapshot = 2026-11-01\n", "")
    )
    sums.write_bytes(b"not a record\n")
    span = ("sums", "2026-11-04", "2026-11-04", "--recipe", "small")
    value = terminal.json("backfill", "run", *span, code=1)
    assert [row["snapshot"] for row in value["failed"]] == ["2026-11-04"]
    assert "nothing could be read" in value["failed"][0]["message"]
    failures = terminal.json("status")["failures"]
    assert [(row["job"], row["partition"]) for row in failures["failed_runs"]] == [("ingest", "2026-11-04|sums")]
    assert "failed run" in terminal.text("status")
    sums.write_bytes(good)
    assert terminal.json("backfill", "run", *span)["made"] == ["2026-11-04"]
    assert terminal.json("status")["failures"]["failed_runs"] == []


def test_backfill_of_a_pinned_source_and_of_days_to_come(terminal: Terminal) -> None:
    plan = terminal.json("backfill", "plan", "sums", "2026-10-31", "2026-11-01", "--recipe", "small")
    assert plan["states"] == {"pinned to 2026-11-01": 1, "complete": 1}
    assert terminal.json("backfill", "run", "sums", "2026-11-01", "2026-11-01", "--recipe", "small")["made"] == []
    edit(terminal.folder / "sources" / "sums.toml", "snapshot = 2026-11-01\n", "")
    assert terminal.json("backfill", "plan", "sums", "2199-01-01", "2199-01-02")["states"] == {"in the future": 2}
    assert terminal.json("backfill", "plan", "sums", "2000-01-01", "2000-01-01")["states"] == {"before 2026-01-01": 1}
    assert "give the earlier date first" in terminal.refused("backfill", "plan", "sums", "2026-11-02", "2026-11-01")


# -- usage


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "required: COMMAND"),
        (("source",), "required: COMMAND"),
        (("source", "add", "x"), "required: --reader"),
        (("source", "add", "x", "--reader", "pdf", *BASIS), "invalid choice: 'pdf'"),
        (("backfill", "plan", "sums", "yesterday", "2026-11-01"), "expected a date like 2026-11-01, found 'yesterday'"),
        (("gc", "--min-age-hours", "-1"), "expected"),
        (("view", "diff", "a"), "required: B"),
        (("releases",), "invalid choice: 'releases'"),
    ],
)
def test_wrong_usage_is_2(terminal: Terminal, arguments: tuple[str, ...], message: str) -> None:
    assert message in terminal.misused(*arguments)


def test_json_may_stand_before_or_after_the_command(terminal: Terminal) -> None:
    code, out, _ = terminal("--json", "candidates")
    assert (code, json.loads(out)) == (0, terminal.json("candidates"))


def test_runs_of_the_terminal_carry_their_process(terminal: Terminal, past: Project) -> None:
    runner = Runner(past, persistent_instance(past))
    runner.register("releases", RELEASE)
    runner.execute("judge", RELEASE)
    (record,) = runner.instance.get_run_records(limit=1)
    assert record.dagster_run.tags["runview/process"].count(":") == 2
