"""Lakes of every format that ever landed, packed under tests/fixtures/lakes/, and migrations made for tests.

A new format gets a lake of its own before it lands: `python -m tests.support.old_lakes v2`. What is packed is never made again.
"""

from __future__ import annotations

import os
import sys
import tarfile
import tempfile
from pathlib import Path

from pipeline.ids import canonical_json
from resources.lake.home import Stand
from resources.lake.migrate import Step, migrate
from resources.places import LocalPlace, Place
from resources.project import Project
from tests.support.project import ROOT, make_project

FOLDER = ROOT / "tests" / "fixtures" / "lakes"
PACKED = ("dagster.yaml", "recipes", "releases", "sources", ".lake")
OLD, MIDDLE, NEW = Stand(1, 1), Stand(1, 2), Stand(2, 2)


def unpack(name: str, folder: Path) -> Project:
    """The project of a packed lake, with new keys."""
    with tarfile.open(FOLDER / name / "project.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    project = Project.at(folder)
    project.keystore.make_demo_keys()
    return project


def pack(name: str) -> None:
    """The fixture project with a published view, in the format of this release."""
    from tests.support import chain

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "project"
        make_project(folder)
        chain.everything(str(folder))
        for log in (folder / ".lake").rglob("_delta_log/*.json"):
            log.write_text(log.read_text().replace(str(folder.parent), ""))  # where a table was made is noted there, and used by nobody
        (FOLDER / name).mkdir(parents=True)
        with tarfile.open(FOLDER / name / "project.tar.gz", "w:gz") as archive:
            for part in PACKED:
                archive.add(folder / part, part, filter=_plain)


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Without locks, owners and times."""
    if ".locks" in entry.name:
        return None
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def _flat(place: Place) -> list[str]:
    return sorted(name for name, _ in place.files("files/candidates") if name.count("/") == 2)


def _spread(place: Place) -> None:
    """Candidates into folders by their first digits."""
    assert isinstance(place, LocalPlace)
    for name in _flat(place):
        path = place.path(name)
        folder = path.parent / path.name[:2]
        os.makedirs(folder, exist_ok=True)
        os.replace(path, folder / path.name)


def _count(place: Place) -> None:
    """A file that says how many there are."""
    n_candidates = sum(1 for _ in place.files("files/candidates"))
    place.replace("files/about.json", canonical_json({"n_candidates": n_candidates}))


STEPS = (
    Step(MIDDLE, NEW, "count candidates", lambda _: ["1 file made"], _count),
    Step(OLD, MIDDLE, "candidates into folders", lambda place: [f"{len(_flat(place))} candidates moved"], _spread),
)


def migrate_test(root: str) -> None:
    """The steps of the tests, to their end."""
    migrate(root, steps=STEPS, current=NEW)


if __name__ == "__main__":
    pack(sys.argv[1])
