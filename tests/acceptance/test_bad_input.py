"""Bad input through the command: exit code 1, a message that names what and where, and nothing half-made."""

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from assets import cli
from resources.project import Project
from runview import RunView
from runview.errors import RunviewError
from tests.support import chain
from tests.support.project import RELEASE, VIEW_ID, edit, environment, make_project, views
from tests.support.project import cli as run_cli


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    make_project(folder)
    for name in ("DAGSTER_HOME", "RUNVIEW_PROJECT"):
        monkeypatch.setenv(name, str(folder))
    monkeypatch.chdir(folder)
    return folder


def only(folder: Path, source: str) -> None:
    """Leave one member in the release: the others have nothing to do with what is wrong."""
    release = folder / "releases" / "small.toml"
    lines = release.read_text().splitlines(keepends=True)
    release.write_text("".join(line for line in lines if "source =" not in line or f'"{source}"' in line))


def refused(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """stderr of a command that is refused with exit code 1, says nothing on stdout and leaves no view."""
    capsys.readouterr()
    assert cli.main(["--project", str(folder), *(arguments or ("run", RELEASE))]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    project = Project.at(folder)
    assert views(project) == []
    assert project.lake.snapshots(stage="view") == []
    return err


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("recipes/small.toml", "seq_len = 64", "seq_lenn = 64", "small.toml: unknown key 'packing.seq_lenn', did you mean 'seq_len'?"),
        ("recipes/small.toml", 'policy = "best_fit"', 'policy = "best-fit"', "did you mean 'best_fit'?"),
        ("recipes/small.toml", "english = 0.5\n", "english = 0.4\n", "shares of stage 'mixed' sum to 0.9, expected 1"),
        ("recipes/small.toml", 'metric = "n_words"', 'metric = "n_word"', "did you mean 'n_words'?"),
        ("recipes/small.toml", '"runview-bpe-8k"', '"runview-bpe-9k"', "tokenizer 'runview-bpe-9k': looked for runview-bpe-9k/tokenizer"),
        ("releases/small.toml", 'recipe = "small"', 'recipe = "smal"', "recipe 'smal': no smal.toml in"),
        ("releases/small.toml", 'source = "sums"', 'source = "sum"', "source 'sum': no sum.toml in ['sources']; did you mean 'sums'?"),
        ("releases/small.toml", "2026-11-02", "2026-11-03", "source handbook is pinned to snapshot 2026-11-02, asked for 2026-11-03"),
        ("releases/small.toml", "2026-11-02", "1999-11-02", "source handbook has snapshot 1999-11-02, expected 2026-01-01 or later"),
        ("sources/notes.toml", 'reader = "jsonl"', 'reader = "json"', "reader = 'json' is not known, did you mean 'jsonl'?"),
        ("sources/handbook.toml", "../data/handbook", "../data/handbok", "location '../data/handbok' does not exist beside the"),
        ("sources/handbook.toml", 'licence = "MIT"', 'licence = "MITT"', "licence 'MITT' is neither an SPDX expression nor `unknown`"),
    ],
)  # fmt: skip
def test_a_file_that_says_what_cannot_be_done(
    folder: Path, capsys: pytest.CaptureFixture[str], file: str, old: str, new: str, message: str
) -> None:
    edit(folder / file, old, new)
    assert message in refused(folder, capsys)


def test_an_unknown_release(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "release 'smal': no smal.toml in ['releases']; did you mean 'small'?" in refused(folder, capsys, "run", "smal")


def test_an_empty_source(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only(folder, "sayings")
    edit(folder / "sources" / "sayings.toml", '"sayings.txt"', '"proverbs.txt"')
    err = refused(folder, capsys)
    assert "source sayings: include pattern 'proverbs.txt' selects none of" in err
    assert "ingest 2026-11-01|sayings" in err


def test_a_source_of_blank_lines_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only(folder, "sayings")
    (folder / "data" / "sayings.txt").write_text("\n\n  \n")
    assert "source sayings 2026-11-01: nothing could be read: 1 containers, 3 payloads, 3 empty" in refused(folder, capsys)


def test_only_rejects(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only(folder, "sums")
    (folder / "data" / "sums.jsonl").write_text('{"problem": "a secret\n["another secret"]\n')
    err = refused(folder, capsys)
    assert "source sums 2026-11-01: nothing could be read: 1 containers, 2 payloads, 0 empty" in err
    assert "'not_an_object': 1, 'unparsable': 1" in err
    assert "secret" not in err


def test_a_file_that_breaks_off(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only(folder, "notes")
    whole = gzip.compress((folder / "data" / "notes.jsonl").read_bytes(), mtime=0)
    (folder / "data" / "notes.jsonl").unlink()
    (folder / "data" / "notes.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    edit(folder / "sources" / "notes.toml", '"notes.jsonl"', '"notes.jsonl.gz"')
    err = refused(folder, capsys)
    assert "source notes 2026-11-01: 1 of 1 files are incomplete, max_incomplete_files is 0: notes.jsonl.gz" in err
    assert "Fetch them again" in err


def test_a_file_that_cannot_be_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Root reads everything, so there the file is a link that leads nowhere."""
    saw = folder / "data" / "handbook" / "saw.md"
    if os.geteuid():
        saw.chmod(0)
        assert "source handbook: file saw.md cannot be read: Permission denied" in refused(folder, capsys)
    else:
        saw.unlink()
        saw.symlink_to("nowhere.md")
        assert "source handbook: link saw.md leads nowhere" in refused(folder, capsys)


def test_without_a_deletion_key_nothing_is_taken_in(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / ".keys" / "deletion_key.json").unlink()
    err = refused(folder, capsys)
    assert "no deletion key at" in err
    assert "runviewctl keys init" in err
    assert Project.at(folder).lake.snapshots() == []


def test_everything_dropped_is_not_a_view(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only(folder, "sayings")
    edit(folder / "recipes" / "small.toml", 'allowed_licences = ["CC0-1.0", "MIT"]', 'allowed_licences = ["Apache-2.0"]')
    err = refused(folder, capsys)
    assert "judge small" in err
    assert "kept_rows" in err


def test_a_component_without_documents_is_refused_by_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only(folder, "sums")
    edit(folder / "recipes" / "small.toml", 'kinds = ["math"]', 'kinds = ["chat"]')
    err = refused(folder, capsys)
    assert "(source=sums" in err
    assert "kind=math" in err
    assert "Change the predicates under [[components]]" in err


def test_the_command_itself_exits_1_and_2(tmp_path: Path) -> None:
    make_project(tmp_path / "project")
    failed = run_cli(tmp_path / "project", "run", "smal", cwd=tmp_path)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.splitlines()[-1].startswith("runviewctl: release 'smal'")
    usage = run_cli(tmp_path / "project", "runn", cwd=tmp_path)
    assert (usage.returncode, usage.stdout) == (2, "")
    assert "invalid choice: 'runn'" in usage.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["project"], "nothing is left where the command was called from"


def test_a_published_view_edited_by_hand_or_with_a_damaged_shard_is_refused_by_the_loaders_command(published: Path) -> None:
    project = Project.at(published)
    (name,) = [name for name in views(project) if not name.endswith(".record.json")]
    path = Path(project.files.root) / "views" / name
    whole = path.read_bytes()

    def loader_command(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "runview", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=120, check=False)

    assert loader_command("verify", str(path)).returncode == 0
    path.write_bytes(whole.replace(b'"seq_len":64', b'"seq_len":65'))
    edited = loader_command("show", str(path))
    assert edited.returncode == 1
    assert f"sha256 {path.stem} expected from its name" in edited.stderr
    with pytest.raises(RunviewError):
        RunView.open(path)
    path.write_bytes(whole)

    shard = next(Path(project.files.root, "shards").rglob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    damaged = loader_command("verify", str(path))
    assert damaged.returncode == 1
    assert shard.stem in damaged.stdout + damaged.stderr


FULL_DISK = """
import os, subprocess, sys
from pathlib import Path
mount, folder = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", mount], check=True)
os.environ["RUNVIEW_LAKE"] = mount + "/lake"
from pipeline.errors import LakeError
from resources.project import Project
from tests.support import chain
from tests.support.project import RELEASE, views

filler = Path(mount) / "filler"
seen = []
assert views(Project.at(folder)) == []  # opens the lake while there is room for its marker
for title, make in chain.stages(Project.at(folder)):
    free = os.statvfs(mount).f_bavail * os.statvfs(mount).f_frsize
    filler.write_bytes(bytes(free))
    try:
        make()
    except LakeError as error:
        seen.append(f"{title}: {error}")
    else:
        raise SystemExit(f"{title}: a full disk went unnoticed")
    assert views(Project.at(folder)) == []
    filler.unlink()
    make()  # the same again, with room: completes
for snapshot in Project.at(folder).lake.snapshots():
    Project.at(folder).lake.verify(snapshot.version)
filler.write_bytes(bytes(os.statvfs(mount).f_bavail * os.statvfs(mount).f_frsize))
try:
    chain.publish(folder)
except LakeError as error:
    seen.append(f"publish: {error}")
assert views(Project.at(folder)) == []
filler.unlink()
chain.publish(folder)
print("\\n".join(seen))
print("view", next(name for name in views(Project.at(folder)) if "record" not in name))
"""


@pytest.mark.slow
def test_a_full_disk_is_named_in_every_stage_and_a_rerun_completes(tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    probe = subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", str(mount)], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("this machine lets no test mount a small disk of its own")
    make_project(tmp_path / "project")
    done = subprocess.run(
        ["unshare", "-rm", sys.executable, "-c", FULL_DISK, str(mount), str(tmp_path / "project")],
        capture_output=True, text=True, env=environment(), cwd=Path(__file__).parents[2], timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    *lines, view = done.stdout.strip().splitlines()
    named = dict(line.split(": ", 1) for line in lines)
    assert set(named) == {*(title for title, _ in chain.stages(Project.at(tmp_path / "project"))), "publish"}
    for message in named.values():
        assert message.startswith("disk full while writing ")
        assert "nothing of it was published: free space and run the same command again" in message
    assert view == f"view {VIEW_ID}.json"
