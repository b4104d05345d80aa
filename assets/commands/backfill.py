"""`backfill plan` and `backfill run`: a range of dates of one source, with what it would take said first."""

import argparse
import shutil
from datetime import UTC, date, datetime, timedelta
from typing import Any

import dagster as dg

from assets import partitions, steps
from assets.commands.common import Answer, project_of, runner_of, size
from assets.commands.source import containers
from assets.release_plan import Known, documents_config
from assets.runner import RunFailed
from pipeline.backfill import Measured, Rates, estimate, rates
from pipeline.errors import RecipeError, SourceError
from pipeline.recipe import Source
from resources.lake.upkeep import Upkeep
from resources.places import is_local
from resources.project import Project

FAILURES_IN_A_ROW = 3  # then the cause is not the date: a full disk, a source that is gone


def plan(arguments: argparse.Namespace) -> Answer:
    """Dates, what is complete, bytes, CPU hours and disk. Nothing is started."""
    value = make_plan(project_of(arguments), arguments)
    return value, text(value)


def run(arguments: argparse.Namespace) -> Answer:
    """Collect and clean what is missing, oldest date first. Complete dates are passed over, so a killed backfill goes on."""
    project = project_of(arguments)
    value = make_plan(project, arguments)
    wanted = [row for row in value["partitions"] if row["state"] in ("missing", "partial", "red")]
    runner = runner_of(project)
    runner.register("sources", value["source"])
    done, failed, in_a_row = [], [], 0
    for row in wanted:
        key = dg.MultiPartitionKey({"source": value["source"], "snapshot": row["snapshot"]})
        try:
            runner.execute("ingest", key, run_config=documents_config(value["recipe"]))
        except RunFailed as error:
            failed.append({"snapshot": row["snapshot"], "message": str(error)})
            in_a_row += 1
            if in_a_row == FAILURES_IN_A_ROW:
                break
        else:
            done.append(row["snapshot"])
            in_a_row = 0
    left = len(wanted) - len(done) - len(failed)
    result = {"ok": not failed, "source": value["source"], "made": done, "failed": failed, "left": left}
    result["already_complete"] = sum(row["state"] == "complete" for row in value["partitions"])
    lines = [f"backfill {value['source']}: {len(done)} made, {result['already_complete']} were complete, {len(failed)} failed, {left} left"]
    lines.extend(f"  {row['snapshot']}: {row['message']}" for row in failed)
    if left:
        lines.append(f"  stopped after {FAILURES_IN_A_ROW} failures in a row; correct the cause and run the same command again")
    return result, "\n".join(lines)


def make_plan(project: Project, arguments: argparse.Namespace) -> dict[str, Any]:
    """Every date of the range with its state and bytes, and the estimate for those that are not complete."""
    source, recipe = project.source(arguments.source), project.recipe(arguments.recipe)
    first, last = arguments.first, arguments.last
    if last < first:
        raise RecipeError(f"the range ends {last}, before it begins {first}; give the earlier date first")
    today = datetime.now(UTC).date()
    known = Known(project)
    rows, sizes = [], {}
    for day in (first + timedelta(n) for n in range((last - first).days + 1)):
        state = _state(source, recipe.name, day, today=today, known=known, project=project)
        row: dict[str, Any] = {"snapshot": day.isoformat(), "state": state, "size_bytes": None}
        if state in ("missing", "partial", "red"):
            row["size_bytes"], row["problem"] = _size(project, source, day, sizes)
            if row["problem"]:
                row["state"] = "absent"
        rows.append(row)
    rate = _rates(project, source)
    wanted = sum(row["size_bytes"] or 0 for row in rows)
    hours, disk = estimate(wanted, rate)
    free = shutil.disk_usage(project.lake.root).free if is_local(project.lake.root) else None
    return {
        "source": source.name,
        "recipe": recipe.name,
        "partitions": rows,
        "states": {state: sum(row["state"] == state for row in rows) for state in dict.fromkeys(row["state"] for row in rows)},
        "size_bytes": wanted,
        "cpu_hours": float(f"{hours:.3g}"),
        "disk_bytes": disk,
        "free_bytes": free,
        "rates": {
            "cpu_seconds_per_mb": round(rate.cpu_seconds_per_mb, 4),
            "disk_ratio": round(rate.disk_ratio, 4),
            "cpu_measured_on": rate.cpu_measured_on,
            "disk_measured_on": rate.disk_measured_on,
        },
    }


def _state(source: Source, recipe: str, day: date, *, today: date, known: Known, project: Project) -> str:
    """complete, partial (evidence without this recipe's documents), red, missing; or why the date cannot be collected."""
    if source.snapshot is not None and source.snapshot != day:
        return f"pinned to {source.snapshot}"
    if day > today:
        return "in the future"
    if not partitions.dates.has_partition_key(day.isoformat()):
        return f"before {partitions.FIRST_DATE}"
    evidence = known.evidence(source.name, day)
    if evidence is None:
        return "missing"
    documents = steps.documents_stage(project.recipe(recipe), steps.Member(source.name, day, evidence)).version
    if known.problems("evidence", evidence):
        return "red"
    if not known.complete(documents):
        return "partial"
    return "red" if known.problems("documents", documents) else "complete"


def _size(project: Project, source: Source, day: date, sizes: dict[str, int]) -> tuple[int | None, str]:
    """Bytes of a date by its listing, and why there are none."""
    place = source.at(day).location
    try:
        if place not in sizes:
            sizes[place] = sum(one.size_bytes for one in containers(project, source, day=day if source.dated else None))
    except SourceError as error:
        if source.fetch is not None:
            return None, ""  # known when it is fetched
        return None, str(error)
    return sizes[place], ""


def _rates(project: Project, source: Source) -> Rates:
    """What earlier snapshots of the source took, evidence and documents together."""
    stored: dict[str, int] = {}
    for row in Upkeep(project.lake).rows():
        stored[row.version] = stored.get(row.version, 0) + row.size_bytes
    made: dict[str, list[Any]] = {}
    for snapshot in project.lake.snapshots(stage="documents"):
        made.setdefault(str(snapshot.identity["parents"]["evidence"]), []).append(snapshot)
    earlier = []
    for evidence in project.lake.snapshots(stage="evidence"):
        if evidence.partition["source"] != source.name:
            continue
        parts = [evidence, *made.get(evidence.version, [])[-1:]]
        cpu = [part.record.get("cpu_seconds") for part in parts]
        timed = float(sum(cpu)) if all(isinstance(one, int | float) for one in cpu) else None
        inventory = int(evidence.identity["recipe_part"]["size_bytes"])
        earlier.append(Measured(inventory, timed, sum(stored.get(part.version, 0) for part in parts)))
    return rates(earlier)


def text(value: dict[str, Any]) -> str:
    """The plan as lines."""
    states = ", ".join(f"{n} {state}" for state, n in value["states"].items())
    lines = [f"backfill {value['source']} with recipe {value['recipe']}: {len(value['partitions'])} dates: {states}"]
    for row in value["partitions"]:
        extra = f"  {size(row['size_bytes'])}" if row["size_bytes"] is not None else ""
        problem = f"  {row['problem']}" if row.get("problem") else ""
        lines.append(f"  {row['snapshot']} {row['state']}{extra}{problem}")
    cpu, disk = (_basis(value["rates"][f"{name}_measured_on"]) for name in ("cpu", "disk"))
    cost = f"about {value['cpu_hours']} CPU hours ({cpu}) and {size(value['disk_bytes'])} of disk ({disk})"
    lines.append(f"to collect: {size(value['size_bytes'])}; {cost}")
    if value["free_bytes"] is not None and value["disk_bytes"] > value["free_bytes"]:
        lines.append(f"NOT ENOUGH DISK: {size(value['free_bytes'])} are free")
    return "\n".join(lines)


def _basis(n_snapshots: int) -> str:
    return f"measured on {n_snapshots} earlier snapshots" if n_snapshots else "the stated default: nothing was measured yet"
