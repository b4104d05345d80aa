"""The project folder: files found by name, places that the environment can change, and what is recorded about the build."""

import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from pipeline.errors import ApprovalError, RecipeError
from resources import project as module
from resources.project import PACKAGED_RECIPES, Project

FIXTURE = Path(__file__).parents[1] / "fixtures" / "project"
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not on this machine")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("RUNVIEW_LAKE", "RUNVIEW_KEYS", "RUNVIEW_PROPOSER"):
        monkeypatch.delenv(name, raising=False)
    shutil.copytree(FIXTURE, tmp_path / "project")
    return tmp_path / "project"


def release(root: Path, name: str, view: str = "") -> None:
    text = (root / "releases" / "small.toml").read_text().replace('name = "small"', f'name = "{name}"')
    (root / "releases" / f"{name}.toml").write_text(text.replace('view = "small-view"\n', f'view = "{view}"\n' if view else ""))


def test_files_by_name(root: Path) -> None:
    project = Project.at(root)
    assert project.source("notes").name == "notes"
    assert project.release("small").recipe == "small"
    assert project.recipe("small").name == "small"
    for find, name, nearest in ((project.source, "note", "notes"), (project.release, "smal", "small"), (project.recipe, "smal", "small")):
        with pytest.raises(RecipeError, match=nearest):
            find(name)


def test_own_recipes_come_before_the_packaged_ones(root: Path) -> None:
    packaged = Project.at(root).recipe("default")
    assert packaged.text == (PACKAGED_RECIPES / "default.toml").read_text()
    own = packaged.text + "\n# our own\n"
    (root / "recipes" / "default.toml").write_text(own)
    assert Project.at(root).recipe("default").text == own


def test_a_folder_without_recipes_uses_the_packaged_ones(root: Path) -> None:
    shutil.rmtree(root / "recipes")
    assert Project.at(root).recipe("default").name == "default"


def test_places(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project.at(root)
    assert (project.root, project.lake_root, project.keys_root) == (str(root), str(root / ".lake"), str(root / ".keys"))
    assert project.proposer == "demo-proposer"
    assert project.source_dir() == root / "sources"
    monkeypatch.chdir(root.parent)
    assert Project.at("project") == project, "a relative folder is the same project"
    for name in ("RUNVIEW_LAKE", "RUNVIEW_KEYS", "RUNVIEW_PROPOSER"):
        monkeypatch.setenv(name, "")
    assert Project.at(root) == project, "an empty variable is none"
    monkeypatch.setenv("RUNVIEW_LAKE", str(root.parent / "lake"))
    monkeypatch.setenv("RUNVIEW_KEYS", str(root.parent / "keys"))
    monkeypatch.setenv("RUNVIEW_PROPOSER", "ann")
    moved = Project.at(root)
    assert (moved.lake_root, moved.keys_root, moved.proposer) == (str(root.parent / "lake"), str(root.parent / "keys"), "ann")
    moved.keystore.make_demo_keys()
    assert moved.lake.files_root == moved.files.root
    assert (root.parent / "keys" / "policy.toml").exists()
    assert sorted(path.name for path in root.iterdir()) == ["data", "recipes", "releases", "sources"], "nothing is written to the project"


@pytest.mark.parametrize("keys", [".lake", ".lake/keys", ".lake/files/../keys", "link/keys"])
def test_keys_never_lie_in_the_lake(root: Path, monkeypatch: pytest.MonkeyPatch, keys: str) -> None:
    (root / ".lake").mkdir()
    (root / "link").symlink_to(root / ".lake")
    monkeypatch.setenv("RUNVIEW_KEYS", str(root / keys))
    with pytest.raises(ApprovalError, match="lie inside the lake .*; set RUNVIEW_KEYS"):
        _ = Project.at(root).keystore


def test_a_view_is_named_by_exactly_one_release(root: Path) -> None:
    project = Project.at(root)
    assert project.release_of_view("small-view").name == "small"
    release(root, "plain")
    assert project.release_of_view("plain").name == "plain", "a view is called like its release unless the release says otherwise"
    for name in ("small", "none"):
        with pytest.raises(RecipeError, match=rf"'{name}' must be named by exactly one release file, found 0; known .*'small-view'"):
            project.release_of_view(name)
    release(root, "second", view="small-view")
    with pytest.raises(RecipeError, match="found 2"):
        project.release_of_view("small-view")


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@needs_git
def test_the_record_names_the_commit_of_this_code_and_no_other(tmp_path: Path) -> None:
    repository, nothing = tmp_path / "repository", {"git_commit": None, "git_dirty": None}
    folder = repository / "site-packages" / "resources"
    folder.mkdir(parents=True)
    shutil.copy(module.__file__, folder)
    assert module._git(folder) == nothing, "no repository"
    git(repository, "init", "-q")
    (repository / "other.txt").write_text("x")
    git(repository, "add", "other.txt")
    git(repository, "commit", "-qm", "first")
    assert module._git(folder) == nothing, "a copy that lies in somebody else's repository is not that repository's commit"
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "second")
    head = git(repository, "rev-parse", "HEAD")
    assert module._git(folder) == {"git_commit": head, "git_dirty": False}
    (folder / "untracked.txt").write_text("x")
    assert module._git(folder) == {"git_commit": head, "git_dirty": False}
    (repository / "other.txt").write_text("y")
    assert module._git(folder) == {"git_commit": head, "git_dirty": True}


def test_the_record_names_the_packages(root: Path) -> None:
    packages = Project.at(root).build_record()["packages"]
    assert isinstance(packages, dict)
    assert list(packages) == sorted(packages)
    assert packages["polars"] == metadata.version("polars")


def test_a_machine_without_git_says_so(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    record = Project.at(root).build_record()
    assert (record["git_commit"], record["git_dirty"]) == (None, None)
    assert module._git(tmp_path / "missing") == {"git_commit": None, "git_dirty": None}
