"""The same input and recipe give the same ids in every process, from every folder, and for two runs at once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.schemas import GATES, RELEASES, RUN_VIEWS, SNAPSHOTS
from resources.project import Project
from runview import RunView
from tests.support.project import RELEASE, VIEW, VIEW_ID, cli, command, environment, make_project, views

pytestmark = pytest.mark.slow


def content(project: Project) -> list[tuple[str, str]]:
    """Stage, version and content of everything; rows of evidence hold hashes under a key of the project's own."""
    out = []
    for snapshot in project.lake.snapshots():
        tables = sorted((path, table.content_sha256) for path, table in snapshot.tables.items() if path != "raw_evidence/evidence")
        out.append((snapshot.stage, f"{snapshot.version} {tables}"))
    return sorted(out)


def test_fresh_processes_with_other_hash_seeds_and_other_folders_give_the_same_ids(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "another folder" / "deeper"
    second.parent.mkdir()
    make_project(first)
    make_project(second)
    demo = cli(first, "--json", "demo", "--release", RELEASE, "--no-training", extra={"PYTHONHASHSEED": "1"}, cwd=tmp_path)
    assert demo.returncode == 0, demo.stderr
    value = json.loads(demo.stdout)
    assert (value["view_id"], value["published"], value["approval"]) == (VIEW_ID, True, "demo")
    program = "import sys; from tests.support import chain; chain.everything(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", program, str(second)], env=environment({"PYTHONHASHSEED": "2", "TZ": "Asia/Seoul", "LC_ALL": "C"}),
        cwd=Path(__file__).parents[2], check=True, timeout=300,
    )  # fmt: skip
    one, two = Project.at(first), Project.at(second)
    assert content(one) == content(two)
    names = {path.relative_to(one.files.root): path.read_bytes() for path in Path(one.files.root).rglob("*.safetensors")}
    assert {path.relative_to(two.files.root): path.read_bytes() for path in Path(two.files.root).rglob("*.safetensors")} == names
    for project in (one, two):
        assert views(project) == [f"{VIEW_ID}.json", f"{VIEW_ID}.record.json"]
        RunView.open(project.files.root, VIEW_ID, allowed_signers=Path(project.keys_root) / "allowed_signers")


def test_two_commands_at_once_end_as_one(tmp_path: Path) -> None:
    """On a project that neither has run in: Dagster's own state is created by one of them too."""
    folder = tmp_path / "project"
    project = make_project(folder)

    def both(*arguments: str) -> list[str]:
        running = [
            subprocess.Popen(
                command(folder, *arguments), env=environment(), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            for _ in range(2)
        ]
        ended = [process.communicate(timeout=300) for process in running]
        assert [process.returncode for process in running] == [0, 0], "\n".join(err for _, err in ended)
        return [out for out, _ in ended]

    assert all(f"view id {VIEW_ID}" in out for out in both("run", RELEASE))
    snapshots = project.lake.snapshots()
    assert len(snapshots) == len({snapshot.version for snapshot in snapshots}) == project.lake.table(SNAPSHOTS).num_rows == 12
    for snapshot in snapshots:
        project.lake.verify(snapshot.version)
    assert project.lake.table(RELEASES).num_rows == 1
    rows = project.lake.table(GATES).to_pylist()
    assert len({(row["version"], row["check"]) for row in rows}) == len(rows)

    assert all(out.startswith("published ") for out in both("approve", VIEW))
    assert views(project) == [f"{VIEW_ID}.json", f"{VIEW_ID}.record.json"]
    assert sorted(row["status"] for row in project.lake.table(RUN_VIEWS).to_pylist()) == ["candidate", "published"]
    RunView.open(project.files.root, VIEW_ID, allowed_signers=Path(project.keys_root) / "allowed_signers")
