"""A red gate stops its own consumers, in the same run and in every later one, and nobody else (case C28)."""

import json
from pathlib import Path

import dagster as dg
import pytest

from assets import steps
from assets.gates import read_gate, require_gate, write_gate
from assets.runner import RunFailed, Runner
from pipeline.contracts import RULES, Verdict, expected_checks
from pipeline.errors import GateError
from pipeline.schemas import GATES
from resources.expectations import validate
from resources.project import Project
from tests.support.project import RELEASE, TOKENIZER, make_project

PLAN = json.loads((Path(__file__).parents[1] / "cases" / "C28" / "plan.json").read_text())
# the plan's partition and another one, as two dates of a source without a pinned one
RED_DAY, OTHER_DAY = PLAN["materialized_partition"], PLAN["check_reads_partition"]
BLANKS = '{"id": "1", "author": "a@example.org", "title": " ", "text": "\\u2060"}\n'


def key(source: str, day: str) -> dg.MultiPartitionKey:
    return dg.MultiPartitionKey({"source": source, "snapshot": day})


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    """A project whose source of notes may be collected on any day, with its partitions registered."""
    project = make_project(tmp_path / "project")
    notes = tmp_path / "project" / "sources" / "notes.toml"
    notes.write_text(notes.read_text().replace("snapshot = 2026-11-01\n", ""))
    runner = Runner(project, dg.DagsterInstance.ephemeral())
    runner.register("sources", "notes", "handbook")
    return runner


def ingest(runner: Runner, source: str, day: str) -> dict[str, str]:
    return runner.execute("ingest", key(source, day), run_config={"ops": {"documents": {"config": {"recipe": RELEASE}}}})


def evaluations(runner: Runner, asset: str) -> list[dg.AssetCheckEvaluation]:
    """Check evaluations of an asset, of all runs, oldest first."""
    found = []
    for run in reversed(runner.instance.get_runs()):
        for entry in runner.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION):
            found.append(entry.dagster_event.event_specific_data)
    return [one for one in found if one.asset_key.to_user_string() == asset]


def spoil(project: Project) -> None:
    """Notes without a single author: the source declares deletion keys, so the gate of its evidence is red."""
    notes = Path(project.root) / "data" / "notes.jsonl"
    rows = [json.loads(line) for line in notes.read_text().splitlines()[:5]]
    notes.write_text(
        "".join(json.dumps({name: value for name, value in row.items() if name not in ("author", "id")}) + "\n" for row in rows)
    )


def test_a_red_partition_stops_its_consumer_in_this_run_and_in_a_later_one_and_blocks_no_other(runner: Runner) -> None:
    project = runner.project
    good = (Path(project.root) / "data" / "notes.jsonl").read_bytes()
    spoil(project)
    with pytest.raises(RunFailed, match="deletion_keys_missing"):
        ingest(runner, "notes", RED_DAY)
    (evidence,) = project.lake.snapshots(stage="evidence", partition={"source": "notes", "snapshot": RED_DAY})
    assert project.lake.snapshots(stage="documents") == [], "the consumer did not run"

    # the check judged exactly what this run wrote, for the partition it wrote
    judged = evaluations(runner, "evidence")
    assert {str(one.metadata["version"].value) for one in judged} == {evidence.version}
    assert {one.partition for one in judged} == {str(key("notes", RED_DAY))}
    assert [one.check_name for one in judged if not one.passed] == ["deletion_keys_missing"]
    assert len(judged) == len(expected_checks("evidence"))
    (red,) = [verdict for verdict in read_gate(project, evidence.version) if not verdict.passed]
    assert (red.check, red.observed, red.n_evaluated) == ("deletion_keys_missing", 5.0, 5)

    # later, in another run: the consumer reads the gate itself
    later = Runner(project, dg.DagsterInstance.ephemeral())
    later.register("sources", "notes")
    with pytest.raises(RunFailed, match="gate of evidence version") as refused:
        later.execute("clean", key("notes", RED_DAY), run_config={"ops": {"documents": {"config": {"recipe": RELEASE}}}})
    assert evidence.version in str(refused.value)
    assert "deletion_keys_missing: failed, observed 5" in str(refused.value)
    with pytest.raises(GateError):
        steps.make_documents(project, project.recipe(RELEASE), "notes", steps.date.fromisoformat(RED_DAY), run_id="test")

    # other partitions are not blocked: another source, and another day of this one
    assert set(ingest(runner, "handbook", "2026-11-02")) == {"evidence", "documents"}
    (Path(project.root) / "data" / "notes.jsonl").write_bytes(good)
    made = ingest(runner, "notes", OTHER_DAY)
    assert project.lake.snapshot(made["documents"]) is not None
    assert {str(one.metadata["version"].value) for one in evaluations(runner, "evidence")[-7:]} == {made["evidence"]}


def test_a_corrected_partition_is_a_new_version_with_a_gate_of_its_own(runner: Runner) -> None:
    project = runner.project
    good = (Path(project.root) / "data" / "notes.jsonl").read_bytes()
    spoil(project)
    with pytest.raises(RunFailed):
        ingest(runner, "notes", RED_DAY)
    (Path(project.root) / "data" / "notes.jsonl").write_bytes(good)
    made = ingest(runner, "notes", RED_DAY)
    first, second = project.lake.snapshots(stage="evidence", partition={"source": "notes", "snapshot": RED_DAY})
    assert (second.version, first.version != second.version) == (made["evidence"], True)
    require_gate(project, "evidence", second.version)
    with pytest.raises(GateError, match="deletion_keys_missing"):
        require_gate(project, "evidence", first.version)


def test_a_red_release_is_not_tokenized(candidate: Project) -> None:
    (decisions,) = candidate.lake.snapshots(stage="decisions")
    verdicts = {verdict.check: verdict for verdict in read_gate(candidate, decisions.version)}
    red = Verdict("kept_duplicate_text", False, "error", 48, 2.0)
    write_gate(candidate, "decisions", decisions.version, [*({**verdicts, red.check: red}).values()], run_id="test")
    recipe = Path(candidate.root) / "recipes" / "small.toml"
    recipe.write_text(recipe.read_text().replace("seq_len = 64", "seq_len = 32"))
    runner = Runner(candidate, dg.DagsterInstance.ephemeral())
    runner.register("releases", RELEASE)
    runner.register("tokenizers", TOKENIZER)
    with pytest.raises(RunFailed, match="gate of decisions version .* is red: kept_duplicate_text: failed, observed 2"):
        runner.execute("tokenize", dg.MultiPartitionKey({"release": RELEASE, "tokenizer": TOKENIZER}))
    assert len(candidate.lake.snapshots(stage="shards")) == 1, "only the one from before"


@pytest.mark.parametrize("stage", sorted(RULES))
def test_a_gate_with_a_missing_or_an_idle_check_is_red(stage: str, tmp_path: Path) -> None:
    project = make_project(tmp_path / "project")
    names = expected_checks(stage)
    version = "ab" * 32
    with pytest.raises(GateError, match=f"{names[0]}: expected but did not run"):
        require_gate(project, stage, version)
    whole = [Verdict(name, True, "error", 1, 0.0) for name in names]
    write_gate(project, stage, version, whole[1:], run_id="test")
    with pytest.raises(GateError, match=f"{names[0]}: expected but did not run"):
        require_gate(project, stage, version)
    write_gate(project, stage, version, [Verdict(names[0], True, "error", 0, 0.0)], run_id="test")
    with pytest.raises(GateError, match=f"{names[0]}: judged nothing"):
        require_gate(project, stage, version)
    write_gate(project, stage, version, whole[:1], run_id="test")
    require_gate(project, stage, version)
    assert len(project.lake.table(GATES)) == len(names)


def test_a_shard_file_that_is_gone_turns_the_gate_red(candidate: Project) -> None:
    from assets.profile_steps import shards_profile_of

    (shards,) = candidate.lake.snapshots(stage="shards")
    gone = next(Path(candidate.files.root, "shards").rglob("*.safetensors"))
    gone.unlink()
    profile = shards_profile_of(candidate, shards.version)
    red = [verdict for verdict in validate(RULES["shards"], profile.counts) if not verdict.passed]
    assert [(verdict.check, verdict.observed) for verdict in red] == [("shard_file_missing", 1.0)]
    assert profile.examples["shard_file_missing"] == [gone.stem]
