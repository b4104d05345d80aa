"""`status`: how far every source is, what is complete, what failed, what waits for whom, and how much disk it takes."""

import argparse
import json
from datetime import UTC, date, datetime
from typing import Any

import polars as pl

from assets import runs, view_steps
from assets.commands.common import Answer, project_of, size
from assets.release_plan import Known
from assets.runner import persistent_instance
from pipeline.contracts import RULES
from pipeline.errors import PipelineError
from pipeline.schemas import EVIDENCE, RELEASES, RUN_VIEWS, SHARDS, SNAPSHOTS, TABLES
from resources.lake.upkeep import Upkeep
from resources.project import Project

FILE_KINDS = "token files"


def status(arguments: argparse.Namespace) -> Answer:
    """Everything at a glance; each table is read once, and sizes come from the tables' logs."""
    project = project_of(arguments)
    known = Known(project)
    newest = newest_versions(project)
    disk = disk_usage(project)
    of_sources = sources(project, newest, disk["sources"])
    last_days = {row["source"]: row["newest"] for row in of_sources}
    stages = [row for row in (stage_row(row, known) for row in newest) if row["problems"] or _is_last(row["partition"], last_days)]
    views = project.lake.table(RUN_VIEWS).to_pylist()
    published = {row["view_id"] for row in views if row["status"] == "published"}
    value = {
        "sources": of_sources,
        "stages": stages,
        "releases": [
            {"name": row["name"], "sealed_at": row["sealed_at"].isoformat()}
            for row in project.lake.table(RELEASES, columns=["name", "sealed_at"]).to_pylist()
        ],
        "published": [{"name": row["name"], "view_id": row["view_id"]} for row in views if row["status"] == "published"],
        "waiting": [
            {
                "name": row["name"],
                "view_id": row["view_id"],
                "proposer": row["proposer"],
                "filed": view_steps.filed_decisions(project, row["view_id"]),
            }
            for row in views
            if row["status"] == "candidate" and row["view_id"] not in published
        ],
        "failures": failures(project, stages),
        "disk": disk,
        "lake_bytes": disk["lake"],
    }
    return value, text(value)


def newest_versions(project: Project) -> list[dict[str, Any]]:
    """The version of every stage and partition that was completed last, in the order in which they were."""
    rows = pl.DataFrame(project.lake.table(SNAPSHOTS, columns=["version", "stage", "partition", "tables", "created_at"]))
    last = rows.sort("created_at", "version").unique(["stage", "partition"], keep="last", maintain_order=True)
    return [{**row, "partition": json.loads(row["partition"])} for row in last.to_dicts()]


def stage_row(row: dict[str, Any], known: Known) -> dict[str, Any]:
    """A version with its gate."""
    stage = "candidate" if row["stage"] == "view" else row["stage"]
    problems = known.problems(stage, row["version"]) if stage in RULES else []
    return {
        "stage": stage,
        "partition": row["partition"],
        "version": row["version"],
        "created_at": row["created_at"].isoformat(),
        "rows": {name: table["n_rows"] for name, table in json.loads(row["tables"]).items()},
        "gate": "green" if not problems else "red",
        "problems": problems,
    }


def _is_last(partition: dict[str, str], last_days: dict[str, str | None]) -> bool:
    """Of a source only its newest date is shown, and what is red: years of days would hide both."""
    return "snapshot" not in partition or partition["snapshot"] == last_days.get(partition["source"])


def sources(project: Project, newest: list[dict[str, Any]], disk: dict[str, int]) -> list[dict[str, Any]]:
    """Per source: dates that are complete, the newest of them, and how many days it lies behind today. Pinned sources do not lag."""
    today = datetime.now(UTC).date()
    days: dict[str, list[date]] = {path.stem: [] for path in sorted(project.source_dir().glob("*.toml"))}
    for row in newest:
        if row["stage"] == "evidence":
            days.setdefault(row["partition"]["source"], []).append(date.fromisoformat(row["partition"]["snapshot"]))
    out = []
    for name, complete in sorted(days.items()):
        problem, pinned, hours = "", None, 0
        try:
            source = project.source(name)
            pinned, hours = source.snapshot, source.expect_every_hours
        except PipelineError as error:
            problem = str(error)
        last = max(complete, default=None)
        lag = None if pinned is not None or last is None else (today - last).days
        out.append(
            {
                "source": name,
                "complete": len(complete),
                "newest": last.isoformat() if last else None,
                "pinned": pinned.isoformat() if pinned else None,
                "lag_days": lag,
                "late": bool(hours and lag is not None and lag * 24 > hours),
                "disk_bytes": disk.get(name, 0),
                "problem": problem,
            }
        )
    return out


def failures(project: Project, stages: list[dict[str, Any]]) -> dict[str, Any]:
    """Red gates, failed runs that nothing repaired, and runs whose process is gone."""
    instance = persistent_instance(project)
    return {
        "red_gates": [
            {"stage": row["stage"], "partition": row["partition"], "problems": row["problems"]} for row in stages if row["gate"] == "red"
        ],
        "failed_runs": runs.failed_since_success(instance),
        "stuck_runs": [{"run_id": run.run_id, "job": run.job, "partition": run.partition, "why": run.why} for run in runs.stuck(instance)],
    }


def disk_usage(project: Project) -> dict[str, Any]:
    """Bytes by state and by source of what the tables hold now, of token files and of large payloads. No folder is walked.

    Files that no table needs any more are not in it; `runviewctl gc` counts them.
    """
    files = Upkeep(project.lake).stored()
    states = {state: int(n) for state, n in files.group_by("state").agg(pl.col("size_bytes").sum()).sort("state").iter_rows()}
    dated = [spec.path for spec in TABLES.values() if spec.partition_by == ("source",)]
    by_source = files.filter(pl.col("table").is_in(dated)).group_by("partition").agg(pl.col("size_bytes").sum())
    shards = pl.DataFrame(project.lake.table(SHARDS, columns=["shard_id", "size_bytes"])).unique("shard_id")
    tokens = int(shards["size_bytes"].sum())
    blobs = 0
    for snapshot in project.lake.snapshots(stage="evidence"):
        if snapshot.ledgers[0].extra.get("blobs"):
            held = project.lake.scan(EVIDENCE, snapshot.version).filter(pl.col("blob_sha256").is_not_null())
            blobs += int(held.select(pl.col("size_bytes").sum()).collect().item() or 0)
    return {
        "states": states,
        "sources": {source: int(n) for source, n in by_source.sort("partition").iter_rows()},
        FILE_KINDS: tokens,
        "blobs": blobs,
        "lake": sum(states.values()) + tokens + blobs,
    }


def text(value: dict[str, Any]) -> str:
    """The status as lines."""
    lines = []
    for row in value["sources"]:
        lag = "pinned" if row["pinned"] else "nothing yet" if row["lag_days"] is None else f"{row['lag_days']} days behind"
        late = "  LATE" if row["late"] else ""
        what = f"{row['complete']} snapshots, newest {row['newest'] or '-'} ({lag}), {size(row['disk_bytes'])}"
        lines.append(f"source {row['source']:<16} {what}{late}" + (f"  {row['problem']}" if row["problem"] else ""))
    for row in value["stages"]:
        place = " ".join(f"{key}={item}" for key, item in row["partition"].items())
        rows = " ".join(f"{name.split('/')[-1]}={n}" for name, n in row["rows"].items())
        lines.append(f"{row['gate']:<6} {row['stage']:<10} {place}  {rows}  {row['version'][:12]}")
        lines.extend(f"         {problem}" for problem in row["problems"])
    lines.extend(f"sealed release {row['name']}" for row in value["releases"])
    lines.extend(f"published view {row['name']} {row['view_id']}" for row in value["published"])
    for row in value["waiting"]:
        filed = f"; filed: {', '.join(row['filed'])}" if row["filed"] else ""
        lines.append(f"waits for approval: view {row['name']} {row['view_id']} (proposed by {row['proposer']}{filed})")
    failed = value["failures"]
    lines.extend(f"failed run {row['run_id']}: {row['job']} {row['partition']}" for row in failed["failed_runs"])
    lines.extend(f"dead run {row['run_id']}: {row['job']} {row['partition']}: {row['why']}" for row in failed["stuck_runs"])
    disk = value["disk"]
    parts = [*disk["states"].items(), (FILE_KINDS, disk[FILE_KINDS]), ("blobs", disk["blobs"])]
    lines.append(f"lake {size(disk['lake'])}: " + ", ".join(f"{name} {size(n)}" for name, n in parts if n))
    return "\n".join(lines)
