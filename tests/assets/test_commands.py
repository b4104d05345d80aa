"""`runviewctl`: what each command answers, and that nothing it prints is a document's text."""

import json
from pathlib import Path

import polars as pl
import pytest

from assets import cli, view_steps
from pipeline.schemas import DECISIONS, DOCUMENTS
from resources.project import Project
from tests.support.project import RELEASE, VIEW, views

Answer = tuple[int, str, str]


class Command:
    """Calls the real entry point in this process; exit code, stdout and stderr."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys

    def __call__(self, *arguments: str) -> Answer:
        self.capsys.readouterr()
        code = cli.main(["--project", str(self.folder), *arguments])
        return (code, *self.capsys.readouterr())

    def json(self, *arguments: str) -> dict[str, object]:
        code, out, _ = self("--json", *arguments)
        assert code == 0
        return dict(json.loads(out))


@pytest.fixture
def command(candidate: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    for name in ("DAGSTER_HOME", "RUNVIEW_PROJECT"):
        monkeypatch.setenv(name, candidate.root)
    monkeypatch.chdir(candidate.root)
    return Command(Path(candidate.root), capsys)


def documents(project: Project) -> pl.DataFrame:
    return pl.concat(pl.DataFrame(project.lake.read(DOCUMENTS, made.version)) for made in project.lake.snapshots(stage="documents"))


def pieces(project: Project) -> list[str]:
    """Runs of three words (or 12 characters) of every document: none may be printed."""
    out = set()
    for text in documents(project)["text"].to_list():
        words = text.split()
        out |= {" ".join(words[i : i + 3]) for i in range(len(words) - 2)}
        out |= {text[i : i + 12] for i in range(0, max(1, len(text) - 12), 6)}
    return [piece for piece in out if len(piece) >= 12 and not piece.isspace()]


def test_explain_tells_of_a_kept_a_copied_and_a_short_document_and_never_their_text(command: Command, candidate: Project) -> None:
    decisions = pl.DataFrame(candidate.lake.read(DECISIONS, candidate.lake.snapshots(stage="decisions")[0].version))
    kept = decisions.filter(pl.col("decision") == "keep")["doc_id"][0]
    copy = decisions.filter(pl.col("primary_reason") == "duplicate")["doc_id"][0]
    short = decisions.filter(pl.col("primary_reason") == "quality")["doc_id"][0]
    answers = {}
    for name, doc_id in (("kept", kept), ("copy", copy), ("short", short)):
        code, out, _ = command("explain", doc_id[:10])
        assert code == 0
        assert f"document {doc_id}" in out
        whole = json.dumps(command.json("explain", doc_id), ensure_ascii=False)
        assert not [piece for piece in pieces(candidate) if piece in out or piece in whole]
        answers[name] = out
    assert "release small: keep" in answers["kept"]
    assert "with a label" in answers["kept"]
    assert "shard " in answers["kept"]
    assert "copy of" in answers["copy"]
    assert "primary reason duplicate" in answers["copy"]
    assert "shard " not in answers["copy"]
    assert "primary reason quality; quality.min_" in answers["short"]
    assert " against 5" in answers["short"]


@pytest.mark.parametrize(
    ("prefix", "message"), [("abc", "first 8 or more"), ("not-hex-at-all", "hex digits"), ("0" * 16, "0 documents begin")]
)
def test_explain_refuses(command: Command, prefix: str, message: str) -> None:
    code, out, err = command("explain", prefix)
    assert (code, out) == (1, "")
    assert message in err


def test_status_says_what_is_green_sealed_waiting_rejected_and_published(command: Command, candidate: Project) -> None:
    value = command.json("status")
    assert [row["gate"] for row in value["stages"]] == ["green"] * 12  # type: ignore[index, union-attr]
    assert [row["name"] for row in value["releases"]] == [RELEASE]  # type: ignore[index, union-attr]
    (waiting,) = value["waiting"]  # type: ignore[misc]
    assert (waiting["name"], waiting["proposer"], waiting["filed"]) == (VIEW, "demo-proposer", [])
    assert value["published"] == []

    code, out, _ = command("approve", VIEW, "--reject")
    assert (code, "reject of view" in out) == (0, True)
    _, out, _ = command("status")
    assert f"waits for approval: view {VIEW} {waiting['view_id']} (proposed by demo-proposer; filed: reject by demo-reviewer)" in out
    code, _, err = command("approve", VIEW)
    assert code == 1
    assert "rejected by demo-reviewer" in err
    assert views(candidate) == []


def test_approve_publishes_and_prints_the_lines_that_load_it(command: Command, candidate: Project) -> None:
    code, out, _ = command("approve", VIEW, "--sign-only")
    assert (code, views(candidate)) == (0, [])
    code, out, _ = command("approve", VIEW)
    assert code == 0
    published, *lines = out.strip().splitlines()
    path = published.removeprefix("published ")
    assert Path(path).exists()
    names: dict[str, object] = {}
    exec("\n".join(lines), names)
    assert names["batch"].is_last  # type: ignore[attr-defined]
    names["batch"] = None
    assert [row["name"] for row in command.json("status")["published"]] == [VIEW]  # type: ignore[index, union-attr]
    assert command.json("status")["waiting"] == []


def test_approve_by_id_refuses_another_candidate_than_the_release_makes(command: Command, candidate: Project) -> None:
    old = view_steps.current_candidate(candidate, VIEW)["view_id"]
    recipe = Path(candidate.root) / "recipes" / "small.toml"
    recipe.write_text(recipe.read_text().replace('seed = "5eed0f20"', 'seed = "5eed0f21"'))
    code, _, err = command("approve", VIEW)
    assert code == 1
    assert "run `runviewctl run small`" in err
    code, _, err = command("run", RELEASE)
    assert code == 0
    new = view_steps.current_candidate(candidate, VIEW)["view_id"]
    assert old != new
    code, _, err = command("approve", old)
    assert code == 1
    assert f"makes {new}, not {old}" in err
    assert views(candidate) == []
    code, _, _ = command("approve", new)
    assert (code, views(candidate)) == (0, [f"{new}.json", f"{new}.record.json"])


def test_run_prints_ledgers_that_add_up(command: Command) -> None:
    value = command.json("run", RELEASE)
    assert value["raw_evidence"] == {
        "unit": "payloads", "total_name": "in", "total": 55,
        "parts": {"parsed": 48, "empty": 3, "rejected": {"lone_surrogate": 1, "not_an_object": 1, "unparsable": 2}}, "extra": {},
    }  # fmt: skip
    assert value["cleaned_docs"]["release"]["parts"]["kept"] == 38  # type: ignore[index]
    assert (value["positions"], value["published"]) == (72, False)
    _, out, err = command("run", RELEASE)
    assert "made=48 dropped={duplicate:6 quality:4} kept=38" in out
    assert out.rstrip().endswith(f"runviewctl approve {VIEW}")
    assert f"propose {VIEW}" in err, "progress goes to stderr"


@pytest.mark.slow
def test_docs_builds_a_page_for_every_partition(command: Command) -> None:
    value = command.json("docs")
    assert Path(str(value["index"])).exists()
    assert len(value["pages"]) == 12  # type: ignore[arg-type]
    pages = "".join(path.read_text() for path in Path(str(value["index"])).parent.rglob("*.html"))
    assert "kept_duplicate_text" in pages
    assert "harbour master" not in pages


def test_keys_are_made_once_and_kept_apart_from_the_lake(command: Command, candidate: Project) -> None:
    folder = Path(candidate.keys_root)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    code, out, _ = command("keys", "init")
    assert (code, out.strip()) == (0, "keys and policy are there already; nothing was changed")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())
    assert not folder.is_relative_to(candidate.lake_root)


def test_wrong_usage_is_2_and_no_project_is_1(command: Command, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as usage:
        command("publish-everything")
    assert usage.value.code == 2
    (tmp_path / "nothing").mkdir()
    code, _, err = Command(tmp_path / "nothing", command.capsys)("status")
    assert code == 1
    assert "has no sources/ and releases/" in err
