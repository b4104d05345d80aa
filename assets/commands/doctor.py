"""`doctor`: does the lake hold what its records say, and does nothing lie about or hang? Reads everything, changes nothing.

With --fix, dead Dagster runs are marked as failed and give back their slots.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import dagster as dg

from assets import runs, steps
from assets.commands.common import Answer, project_of, size
from assets.commands.gc import listed_files, make_plan, manifests_in
from assets.runner import persistent_instance, ticking
from pipeline.errors import LakeError, PipelineError
from pipeline.schemas import GATES, RELEASES, RUN_VIEWS, SNAPSHOTS
from resources.files import ViewFolder
from resources.lake.upkeep import Upkeep, versioned
from resources.mirror import opened
from resources.project import Project
from runview.errors import RunviewError
from runview.verify import verify_view

AGE_HOURS = 24  # what is younger may be the work of a run


@dataclass
class Findings:
    """What one check looked at and what it found wrong. `next_step`: what to do about it."""

    name: str
    what: str
    next_step: str
    n_looked_at: int = 0
    problems: list[dict[str, str]] = field(default_factory=list)

    def wrong(self, where: str, message: str) -> None:
        """Add a problem."""
        self.problems.append({"where": where, "message": message})


def doctor(arguments: argparse.Namespace) -> Answer:
    """Every check in order. `ok` is false, and the exit code 1, when any found something."""
    project = project_of(arguments)
    fixed: list[str] = []
    home = Findings("lake", "lake.json", "restore it from a copy, or run the release that matches")
    found = [home]
    home.n_looked_at = 1
    try:
        project.lake  # noqa: B018 (opening it is the check)
    except LakeError as error:
        home.wrong(project.lake_root, str(error))
    else:
        instance = persistent_instance(project)
        for title, check in _checks(project, instance, quick=arguments.quick):
            with ticking(f"doctor: {title}"):
                found.append(check())
        if arguments.fix:
            for run in runs.stuck(instance):
                runs.mark_failed(instance, run)
                fixed.append(run.run_id)
            for one in found:
                if one.name == "stuck runs":
                    one.problems = [problem for problem in one.problems if problem["where"] not in fixed]
    problems = [{"check": one.name, **problem} for one in found for problem in one.problems]
    value = {
        "ok": not problems,
        "checks": [{"check": one.name, "looked_at": one.n_looked_at, "problems": len(one.problems)} for one in found],
        "problems": problems,
        "fixed": fixed,
    }
    return value, text(found, fixed)


def text(found: list[Findings], fixed: list[str]) -> str:
    """One line per check, its problems below it, and what to do."""
    lines = []
    for one in found:
        state = "ok" if not one.problems else f"{len(one.problems)} wrong"
        lines.append(f"{state:<10} {one.name:<12} {one.n_looked_at} {one.what}")
        lines.extend(f"    {problem['where']}: {problem['message']}" for problem in one.problems)
        if one.problems:
            lines.append(f"    -> {one.next_step}")
    lines.extend(f"marked as failed: run {run_id}" for run_id in fixed)
    return "\n".join(lines)


def _checks(project: Project, instance: dg.DagsterInstance, *, quick: bool) -> Iterator[tuple[str, Callable[[], Findings]]]:
    yield "table files", lambda: table_files(project)
    if not quick:
        yield "digests of versions", lambda: digests(project)
        yield "files of views", lambda: view_files(project)
    yield "registry", lambda: registry(project)
    yield "partitions", lambda: partition_keys(project, instance)
    yield "orphans", lambda: left_over(project)
    yield "runs", lambda: stuck_runs(instance)


def table_files(project: Project) -> Findings:
    """Parquet files the tables' logs list and the disk does not have."""
    found = Findings("table files", "files in the tables' logs", "restore the file from a copy of the lake, or collect its version again")
    upkeep = Upkeep(project.lake)
    found.n_looked_at = upkeep.stored().height
    for table, path in upkeep.missing_files():
        found.wrong(f"{table}/{path}", "listed in the table's log and missing")
    return found


def digests(project: Project) -> Findings:
    """Content of every complete version against its digest."""
    found = Findings("digests", "complete versions", "restore the table from a copy of the lake")
    for snapshot in project.lake.snapshots():
        found.n_looked_at += 1
        try:
            project.lake.verify(snapshot.version)
        except PipelineError as error:
            found.wrong(f"{snapshot.stage} {' '.join(snapshot.partition.values())} {snapshot.version}", str(error))
    return found


def view_files(project: Project) -> Findings:
    """Every file that published and candidate views list, against every digest."""
    found = Findings("views", "views", "restore the files from a copy, or run the release again: it writes what is missing")
    published = manifests_in(project, "views")
    open_views = [view_id for view_id in published if project.files.withdrawal(view_id) is None]
    waiting = sorted(set(manifests_in(project, "candidates")) - set(published))
    places: list[tuple[ViewFolder, str]] = [("views", view_id) for view_id in open_views]
    places += [("candidates", view_id) for view_id in waiting]
    for folder, view_id in places:
        found.n_looked_at += 1
        try:
            with opened(project.files, folder, view_id) as view:
                for problem in verify_view(view):
                    found.wrong(f"{folder}/{view_id}", f"{problem.where}: {problem.message}")
        except (PipelineError, RunviewError) as error:
            found.wrong(f"{folder}/{view_id}", str(error))
    return found


def registry(project: Project) -> Findings:
    """Do snapshots, rows, gates, seals and views know the same versions?"""
    found = Findings("registry", "records", "`runviewctl gc --yes` removes what no snapshot knows; restore what is missing from a copy")
    lake, limit = project.lake, (steps.now() - timedelta(hours=AGE_HOURS)).timestamp() * 1000
    snapshots = lake.table(SNAPSHOTS, columns=["version", "stage", "partition", "tables"]).to_pylist()
    complete = {row["version"] for row in snapshots}
    stored = {(row.table, row.version): row for row in Upkeep(lake).rows()}
    known = {spec.path for spec in versioned()}
    for row in snapshots:
        for table, made in json.loads(row["tables"]).items():
            there = stored[table, row["version"]].n_rows if (table, row["version"]) in stored else 0
            if table in known and there != made["n_rows"]:
                found.wrong(f"{row['stage']} {row['version']}", f"table {table}: expected {made['n_rows']} rows, found {there}")
    for (table, version), rows in stored.items():
        if version not in complete and rows.modified_ms <= limit:
            found.wrong(f"{table} {version}", f"{rows.n_rows} rows, {size(rows.size_bytes)}, and no snapshot: left by a killed run")
    judged = {
        (row["version"], row["stage"]): row["judged_at"] for row in lake.table(GATES, columns=["version", "stage", "judged_at"]).to_pylist()
    }
    for (version, stage), at in judged.items():
        if version not in complete and at.timestamp() * 1000 <= limit:
            found.wrong(f"gates {version}", f"verdicts on a version of {stage} that no snapshot knows")
    releases = lake.table(RELEASES, columns=["name", "members"]).to_pylist()
    for release in releases:
        gone = [m for m in json.loads(release["members"]) if m["evidence_version"] not in complete]
        for member in gone:
            found.wrong(f"release {release['name']}", f"sealed evidence {member['evidence_version']} of {member['source']} is not complete")
    views = lake.table(RUN_VIEWS).to_pylist()
    lying = {"candidate": set(manifests_in(project, "candidates")), "published": set(manifests_in(project, "views"))}
    for row in views:
        if row["status"] in lying and row["view_id"] not in lying[row["status"]]:
            found.wrong(f"view {row['view_id']}", f"is {row['status']} and its manifest is not there")
    told = {row["view_id"] for row in views if row["status"] == "published"}
    for view_id in sorted(lying["published"] - told):
        found.wrong(f"view {view_id}", "lies under views/ and no row says that it is published: publish it again")
    found.n_looked_at = len(snapshots) + len(stored) + len(judged) + len(releases) + len(views)
    return found


def partition_keys(project: Project, instance: dg.DagsterInstance) -> Findings:
    """Dynamic partitions whose file is gone."""
    found = Findings("partitions", "dynamic partitions", "bring the file back, or delete the partition in the Dagster UI")
    root = Path(project.root)
    views = set()
    for path in (root / "releases").glob("*.toml"):
        try:
            release = project.release(path.stem)
            views.add(release.view or release.name)
        except PipelineError as error:
            found.wrong(f"releases/{path.name}", str(error))
    known = {
        "sources": {path.stem for path in (root / "sources").glob("*.toml")},
        "releases": {path.stem for path in (root / "releases").glob("*.toml")},
        "run_views": views,
        "tokenizers": set(project.tokenizers.names()),
    }
    for name, there in known.items():
        keys = instance.get_dynamic_partitions(name)
        found.n_looked_at += len(keys)
        for key in sorted(set(keys) - there):
            found.wrong(f"{name}/{key}", "is a partition in Dagster and has no file in the project")
    return found


def left_over(project: Project) -> Findings:
    """Files nothing lists, older than a day. Versions nothing needs are no problem: `gc` shows them."""
    found = Findings("orphans", "files", "`runviewctl gc` shows them, `runviewctl gc --yes` removes them")
    try:
        plan = make_plan(project, min_age_hours=AGE_HOURS)
    except (PipelineError, RunviewError) as error:
        found.wrong("views", f"what they list cannot be told, so nothing can be called left over: {error}")
        return found
    # files of complete versions are listed, even when nothing needs the version
    listed = {digest for _, digest in listed_files(project, plan.doomed, {})} | plan.views
    found.n_looked_at = len(plan.listed) + len(plan.files)
    for item in (*plan.files, *plan.temporaries):
        if item.digest not in listed:
            found.wrong(f"{item.kind}/{item.path.name}", f"{size(item.size_bytes)} ({item.size_bytes} bytes), listed by nothing")
    return found


def stuck_runs(instance: dg.DagsterInstance) -> Findings:
    """Runs in progress whose process is gone."""
    found = Findings("stuck runs", "runs in progress", "`runviewctl doctor --fix` marks them as failed and frees their slots")
    found.n_looked_at = len(runs.in_progress(instance))
    for run in runs.stuck(instance):
        found.wrong(run.run_id, f"{run.job} {run.partition}: {run.why}")
    return found
