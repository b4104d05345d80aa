"""The project folder: where sources, releases and recipes lie, and the stores that belong to it.

This is configuration: nothing in here changes an output byte.
"""

import os
import subprocess
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path

import dagster as dg

from pipeline.errors import ApprovalError, RecipeError
from pipeline.recipe import Recipe, Release, Source
from resources import sources as source_files
from resources.blobs import BlobStore
from resources.files import FileStore
from resources.lake import Lake
from resources.places import is_local
from resources.signer import KeyStore
from resources.tokenizers import TokenizerStore

PACKAGED_RECIPES = Path(__file__).resolve().parent.parent / "pipeline" / "recipes"


class Project(dg.ConfigurableResource):  # type: ignore[type-arg]
    """A folder with `sources/`, `releases/`, optionally `recipes/` and `tokenizers/`; its lake and its keys.

    Attributes:
        root: the project folder.
        lake_root: folder or `s3://bucket/prefix` of the lake; keys_root: place of keys and policy, outside the lake.
        proposer: name under which run views are proposed.
    """

    root: str
    lake_root: str
    keys_root: str
    proposer: str = "demo-proposer"

    @classmethod
    def at(cls, root: str | os.PathLike[str]) -> "Project":
        """The project at `root`; RUNVIEW_LAKE, RUNVIEW_KEYS and RUNVIEW_PROPOSER override where things are, unless they are empty."""
        base = Path(root).resolve()
        return cls(
            root=str(base),
            lake_root=os.environ.get("RUNVIEW_LAKE") or str(base / ".lake"),
            keys_root=os.environ.get("RUNVIEW_KEYS") or str(base / ".keys"),
            proposer=os.environ.get("RUNVIEW_PROPOSER") or "demo-proposer",
        )

    @cached_property
    def lake(self) -> Lake:
        """The Delta tables, in a folder or an object store; files and blobs follow them."""
        return Lake(self.lake_root)

    @property
    def state_root(self) -> Path:
        """Folder of this machine for what is no part of the lake: locks, and what the demonstration leaves. A local lake's own folder."""
        return Path(self.lake.root) if is_local(self.lake_root) else Path(self.root) / ".dagster_state"

    @cached_property
    def files(self) -> FileStore:
        """What the loader reads."""
        return FileStore(self.lake.files_root)

    @cached_property
    def blobs(self) -> BlobStore:
        """Large payloads."""
        return BlobStore(self.lake.blobs_root)

    @cached_property
    def keystore(self) -> KeyStore:
        """Deletion key, signers and policy. Raises ApprovalError when they would lie in the lake: who writes there could approve."""
        if not is_local(self.keys_root):
            raise ApprovalError("RUNVIEW_KEYS must be a folder of this machine: signing keys do not lie in an object store")
        if is_local(self.lake_root) and Path(self.keys_root).resolve().is_relative_to(Path(self.lake_root).resolve()):
            raise ApprovalError(f"keys at {self.keys_root} lie inside the lake {self.lake_root}; set RUNVIEW_KEYS to a place outside it")
        return KeyStore(self.keys_root)

    @cached_property
    def tokenizers(self) -> TokenizerStore:
        """The project's own tokenizer and every directory under `tokenizers/`."""
        return TokenizerStore([Path(self.root) / "tokenizers"])

    def source_dir(self) -> Path:
        """Folder of the source files; a source's `location` is relative to it."""
        return Path(self.root) / "sources"

    def source(self, name: str) -> Source:
        """Source file by name. Raises RecipeError naming the nearest."""
        return source_files.load_source(name, [self.source_dir()])

    def release(self, name: str) -> Release:
        """Release file by name."""
        return source_files.load_release(name, [Path(self.root) / "releases"])

    def recipe(self, name: str) -> Recipe:
        """Recipe by name: the project's own `recipes/`, then the packaged ones."""
        return source_files.load_recipe(name, [Path(self.root) / "recipes", PACKAGED_RECIPES])

    def release_of_view(self, view: str) -> Release:
        """The release whose `view` (by default its own name) is `view`. Raises RecipeError when there is none, or two."""
        releases = [self.release(path.stem) for path in sorted((Path(self.root) / "releases").glob("*.toml"))]
        found = [release for release in releases if (release.view or release.name) == view]
        if len(found) != 1:
            known = sorted(release.view or release.name for release in releases)
            raise RecipeError(f"run view {view!r} must be named by exactly one release file, found {len(found)}; known views are {known}")
        return found[0]

    def build_record(self) -> dict[str, object]:
        """Git commit, dirty flag and installed packages: recorded beside ids, never inside."""
        return {**_git(Path(__file__).resolve().parent), "packages": dict(_packages())}


@cache
def _packages() -> dict[str, str]:
    """Installed packages when this process first asked. Reading them takes 0.3 s of CPU, which every stage of every partition paid."""
    found = {dist.metadata["Name"]: dist.version for dist in metadata.distributions() if dist.metadata["Name"]}
    return dict(sorted(found.items()))


def _git(folder: Path) -> dict[str, object]:
    """Commit and state of the repository that tracks `folder`. An installed copy is not what the repository around it holds."""
    try:
        tracked = _run(folder, "ls-files", "--error-unmatch", Path(__file__).name)
        commit = _run(folder, "rev-parse", "HEAD")
        status = _run(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.TimeoutExpired):
        return {"git_commit": None, "git_dirty": None}  # a copy without git says so
    if tracked.returncode or commit.returncode:
        return {"git_commit": None, "git_dirty": None}
    return {"git_commit": commit.stdout.strip(), "git_dirty": bool(status.stdout.strip()) if status.returncode == 0 else None}


def _run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False, timeout=10)
