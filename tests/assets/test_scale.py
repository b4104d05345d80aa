"""300 sources x 365 dates registered on a real SQLite instance, and a lake that has completed many."""

from pathlib import Path

import polars as pl
import pytest

from benchmarks import scale
from pipeline.schemas import GATES, SNAPSHOTS
from resources.lake import Lake, delta
from tests.support.project import copy_project, shared
from tests.support.tables import rows

N_SOURCES, N_DAYS, N_COMPLETE = 300, 365, 2


def _build(folder: Path) -> None:
    scale.make_project(folder, n_sources=N_SOURCES)
    scale.complete(folder, n_sources=N_SOURCES, n_days=N_COMPLETE)


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with all partitions to register and two days complete. Not to be changed."""
    return shared(tmp_path_factory, "scale", _build)


@pytest.mark.slow
def test_definitions_partitions_and_pages_at_scale(large: Path, tmp_path: Path) -> None:
    folder = Path(copy_project(large, tmp_path / "project").root)
    environ = scale.environment(folder, n_days=N_DAYS)
    # CPU seconds, since the machine may be busy; what is measured on an idle one stands in docs/deployment.md
    loaded = scale.inner(folder, environ, "--inner", "load")
    assert loaded["cpu_s"] < 6
    made = scale.inner(folder, environ, "--inner", "partition", "--sources", str(N_SOURCES), "--partitions", "2")
    assert made["cpu_s"] < 12
    assert made["overhead_s"] < 10
    with scale.webserver(folder, environ) as address:
        answers, seconds = scale.page(address, "evidence")
    node, health, events = (answers[name] for name in ("node", "health", "events"))
    assert node["assetNodeOrError"]["isPartitioned"]
    keys = {one["name"]: one["partitionKeys"] for one in health["assetNodeOrError"]["partitionKeysByDimension"]}
    assert keys["source"] == scale.source_names(N_SOURCES)
    assert len(keys["snapshot"]) >= N_DAYS
    assert health["assetNodeOrError"]["assetPartitionStatuses"]["__typename"] == "MultiPartitionStatuses"
    assert [event["partition"] for event in events["assetOrError"]["assetMaterializations"]] == [
        f"{scale.LAST_DAY}|source-{n:04d}" for n in (1, 0)
    ]
    assert sum(seconds.values()) < 60


def test_one_version_is_found_among_many_by_version_and_by_partition(large: Path) -> None:
    lake = Lake(large / ".lake")
    place = {"source": "source-0123", "snapshot": scale.days(1)[0].isoformat()}
    (found,) = lake.snapshots("documents", place)
    assert lake.snapshot(found.version) == found
    assert len(lake.snapshots("documents")) == N_SOURCES * N_COMPLETE
    assert lake.table(GATES, where={"version": found.version})["stage"].unique().to_pylist() == ["documents"]


def test_rows_are_found_in_files_that_hold_many_also_after_joining(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake(tmp_path)
    monkeypatch.setattr(delta, "MAX_CONTROL_FILES", 3)
    versions = [f"{n:064x}" for n in range(8)]
    for version in versions:
        lake.insert(GATES, rows(GATES, 5, version))
        for known in versions[: versions.index(version) + 1]:
            assert len(lake.table(GATES, where={"version": known})) == 5
            assert len(lake.table(GATES, where={"version": known, "check": "check-000003"})) == 1
    assert lake.insert(GATES, rows(GATES, 5, versions[2])) == 0, "twice is once, also among joined files"
    assert len(lake.table(SNAPSHOTS)) == 0
    assert pl.DataFrame(lake.table(GATES)).n_unique(["version", "check"]) == 40
