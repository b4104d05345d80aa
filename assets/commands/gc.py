"""`gc`: versions and files that nothing needs any more. It says what would go; with --yes it goes."""

import argparse
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from assets import steps, view_steps
from assets.commands.common import Answer, project_of, size
from assets.runner import persistent_instance
from assets.runs import in_progress
from pipeline.errors import LakeError, PipelineError
from pipeline.governance.retention import Version, needed, waiting_views
from pipeline.schemas import CATALOGS, EVIDENCE, GATES, RELEASES, RUN_VIEWS, SHARDS, SNAPSHOTS
from resources.files import ViewFolder
from resources.lake import orphans
from resources.lake.sharing import alone
from resources.lake.upkeep import Rows, Upkeep
from resources.project import Project
from runview.manifest import Manifest, parse


@dataclass
class Plan:
    """What is kept, why, and what may go.

    Attributes:
        kept: version -> reason. doomed: versions nothing needs, with their stage.
        rows: rows of doomed versions, and of versions that no snapshot knows. gates: versions that only `gates` knows.
        views: candidates nothing needs. listed: files something needs. files: files nothing lists; temporaries: left by killed writers.
        parquet: files the tables do not need, as far as they can be told before rows are deleted.
    """

    kept: dict[str, str]
    doomed: dict[str, str]
    rows: list[Rows]
    gates: set[str]
    views: set[str]
    listed: orphans.Listed = field(default_factory=set)
    files: list[orphans.Found] = field(default_factory=list)
    temporaries: list[orphans.Found] = field(default_factory=list)
    parquet: list[tuple[str, int]] = field(default_factory=list)


def gc(arguments: argparse.Namespace) -> Answer:
    """Plan, and with `--yes` carry out. Refused while anything works in the lake."""
    project = project_of(arguments)
    hours = arguments.min_age_hours
    if not arguments.yes:
        plan = make_plan(project, min_age_hours=hours)
        value = {"removed": False, **summary(plan)}
        return value, f"{text(value)}\nNothing was removed. Remove it: runviewctl gc --yes"
    with alone(str(project.state_root)):
        busy = in_progress(persistent_instance(project))
        if busy:
            raise LakeError(
                f"{len(busy)} Dagster runs are in progress, first {busy[0]}; nothing was removed: wait for them, or look for dead ones "
                "with `runviewctl doctor`"
            )
        plan = make_plan(project, min_age_hours=hours)
        value = {"removed": True, **summary(plan), **carry_out(project, plan, min_age_hours=hours)}
    return value, f"{text(value)}\nremoved {value['removed_files']} files, {size(value['removed_bytes'])}"


def make_plan(project: Project, *, min_age_hours: int) -> Plan:
    """What may go. Raises LakeError when a view cannot say what it lists: then nothing may go."""
    lake, upkeep = project.lake, Upkeep(project.lake)
    columns = ["version", "stage", "partition", "identity", "created_at"]
    known = [
        Version(row["version"], row["stage"], row["partition"], tuple(json.loads(row["identity"])["parents"].values()), row["created_at"])
        for row in lake.table(SNAPSHOTS, columns=columns).to_pylist()
    ]
    states = lake.table(RUN_VIEWS).to_pylist()
    published, waiting = published_views(project, states), waiting_candidates(project, states)
    manifests = {view_id: read_manifest(project, view_id) for view_id in (*published, *waiting)}
    version_of = {row["view_id"]: row["version"] for row in states}
    roots = {
        "published view": versions_of_views({v: manifests[v] for v in published}, version_of),
        "waiting view": versions_of_views({v: manifests[v] for v in waiting}, version_of),
        "sealed release": sealed_versions(project),
    }
    min_age = timedelta(hours=min_age_hours)
    kept = needed(known, roots=roots, now=steps.now(), min_age=min_age)
    doomed = {one.version: one.stage for one in known if one.version not in kept}
    old_ms = (steps.now() - min_age).timestamp() * 1000
    complete = {one.version for one in known}
    rows = [row for row in upkeep.rows() if row.version in doomed or (row.version not in complete and row.modified_ms <= old_ms)]
    judged = {row["version"]: row["judged_at"] for row in lake.table(GATES, columns=["version", "judged_at"]).to_pylist()}
    gates = {v for v, at in judged.items() if v in doomed or (v not in complete and at.timestamp() * 1000 <= old_ms)}
    views = {
        row["view_id"]
        for row in states
        if row["status"] == "candidate"
        and row["view_id"] not in manifests
        and (row["version"] in doomed or (row["version"] not in complete and row["created_at"].timestamp() * 1000 <= old_ms))
    }
    plan = Plan(kept, doomed, rows, gates, views)
    plan.listed = listed_files(project, kept, manifests)
    plan.listed |= {("candidates", row["view_id"]) for row in states if row["view_id"] not in views}
    seconds = min_age.total_seconds()
    plan.files = orphans.unlisted(project.files, project.blobs, plan.listed, min_age_seconds=seconds)
    plan.temporaries = orphans.stale_temporaries(lake.root, min_age_seconds=seconds)
    plan.parquet = upkeep.unused_files(min_age_hours=min_age_hours)
    return plan


def published_views(project: Project, states: list[dict[str, Any]]) -> list[str]:
    """Every view under `views/` or said to be there. A withdrawn one stays until it is erased: runs that read it are audited by it."""
    return sorted({row["view_id"] for row in states if row["status"] != "candidate"} | set(manifests_in(project, "views")))


def manifests_in(project: Project, folder: ViewFolder) -> list[str]:
    """Ids of the manifests that lie in a folder."""
    names = (name.removesuffix(".json") for name in project.files.names(folder))
    return [name for name in names if len(name) == 64]


def waiting_candidates(project: Project, states: list[dict[str, Any]]) -> list[str]:
    """The newest candidate of each name that is not published, and what each release file makes now."""
    out = {str(row["view_id"]) for row in waiting_views(states)}
    published = {row["view_id"] for row in states if row["status"] != "candidate"}
    for name in sorted({row["name"] for row in states}):
        try:
            out.add(str(view_steps.current_candidate(project, name)["view_id"]))
        except PipelineError:
            continue  # its release file is gone, or makes a candidate that was never built
    return sorted(out - published)


def read_manifest(project: Project, view_id: str) -> Manifest:
    """A view's manifest, published or candidate."""
    folder: ViewFolder = "views" if project.files.has_view("views", view_id) else "candidates"
    return parse(project.files.read_view(folder, view_id))


def versions_of_views(manifests: Mapping[str, Manifest], version_of: Mapping[str, str]) -> set[str]:
    """The versions views are made of, and their own."""
    out = {version_of[view_id] for view_id in manifests if view_id in version_of}
    for manifest in manifests.values():
        for value in manifest.stage_versions.values():
            out |= set(value.values()) if isinstance(value, Mapping) else {str(value)}
    return out


def sealed_versions(project: Project) -> set[str]:
    """Evidence versions that releases have sealed."""
    rows = project.lake.table(RELEASES, columns=["members"]).to_pylist()
    return {member["evidence_version"] for row in rows for member in json.loads(row["members"])}


def listed_files(project: Project, kept: Mapping[str, str], manifests: Mapping[str, Manifest]) -> orphans.Listed:
    """Files that views or the catalogs of kept versions list, and blobs that kept evidence holds."""
    listed: orphans.Listed = set()
    for manifest in manifests.values():
        listed |= orphans.listed_by(project.files, manifest)
    for snapshot in project.lake.snapshots(stage="shards"):
        if snapshot.version in kept:
            shards = project.lake.read(SHARDS, snapshot.version, columns=["shard_id", "pack_index_id"])
            catalogs = project.lake.read(CATALOGS, snapshot.version, columns=["catalog_id", "stats_id"])
            listed |= {("shards", v) for v in shards["shard_id"].to_pylist()} | {("packs", v) for v in shards["pack_index_id"].to_pylist()}
            listed |= {("catalogs", v) for v in catalogs["catalog_id"].to_pylist()}
            listed |= {("stats", v) for v in catalogs["stats_id"].to_pylist()}
    for snapshot in project.lake.snapshots(stage="evidence"):
        if snapshot.version in kept and snapshot.ledgers[0].extra.get("blobs"):
            held = project.lake.scan(EVIDENCE, snapshot.version).select("blob_sha256").drop_nulls().collect()
            listed |= {("blobs", digest) for digest in held["blob_sha256"].to_list()}
    return listed


def carry_out(project: Project, plan: Plan, *, min_age_hours: int) -> dict[str, int]:
    """Remove what the plan says. A version loses its snapshot first, so that no reader meets half of it; killed, a second run goes on."""
    upkeep = Upkeep(project.lake)
    upkeep.forget_keys(SNAPSHOTS, plan.doomed)
    upkeep.forget_keys(GATES, plan.gates)
    for row in plan.rows:
        upkeep.forget(row)
    upkeep.forget_keys(RUN_VIEWS, plan.views, also="status = 'candidate'")
    wrong = [item for item in plan.files if (item.kind, item.digest) in plan.listed]
    if wrong:
        raise LakeError(f"{len(wrong)} files that are listed were about to be removed, first {wrong[0].digest}; nothing was: report this")
    n_bytes = orphans.remove(plan.files) + orphans.remove(plan.temporaries)
    parquet = upkeep.unused_files(min_age_hours=min_age_hours, remove=True)
    return {
        "removed_files": len(plan.files) + len(plan.temporaries) + len(parquet),
        "removed_bytes": n_bytes + sum(n for _, n in parquet),
    }


def summary(plan: Plan) -> dict[str, Any]:
    """The plan in numbers."""
    counted: dict[str, dict[str, int]] = {}
    for item in (*plan.files, *plan.temporaries):
        there = counted.setdefault(item.kind, {"files": 0, "bytes": 0})
        there["files"] += 1
        there["bytes"] += item.size_bytes
    stages = dict(sorted(Counter(plan.doomed.values()).items()))
    return {
        "kept": dict(sorted(Counter(plan.kept.values()).items())),
        "versions": [{"version": version, "stage": stage} for version, stage in sorted(plan.doomed.items(), key=lambda i: (i[1], i[0]))],
        "stages": stages,
        "strays": sorted({row.version for row in plan.rows if row.version not in plan.doomed}),
        "rows": sum(row.n_rows for row in plan.rows),
        "row_bytes": sum(row.size_bytes for row in plan.rows),
        "views": sorted(plan.views),
        "files": counted,
        "unused_parquet": {"files": len(plan.parquet), "bytes": sum(n for _, n in plan.parquet)},
        "bytes": sum(row.size_bytes for row in plan.rows) + sum(one["bytes"] for one in counted.values()) + sum(n for _, n in plan.parquet),
    }


def text(value: dict[str, Any]) -> str:
    """The plan as lines."""
    kept = ", ".join(f"{n} {reason}" for reason, n in value["kept"].items()) or "none"
    lines = [f"kept versions: {kept}"]
    stages = ", ".join(f"{n} {stage}" for stage, n in value["stages"].items()) or "none"
    lines.append(f"versions nothing needs: {stages}; {value['rows']} rows, {size(value['row_bytes'])}")
    lines.extend(f"  {row['stage']:<10} {row['version']}" for row in value["versions"])
    lines.extend(f"  rows without a snapshot: version {version}" for version in value["strays"])
    lines.extend(f"  candidate {view_id}" for view_id in value["views"])
    lines.extend(f"{kind}: {one['files']} files nothing lists, {size(one['bytes'])}" for kind, one in sorted(value["files"].items()))
    unused = value["unused_parquet"]
    lines.append(f"table files no table needs: {unused['files']}, {size(unused['bytes'])}")
    lines.append(f"in all {size(value['bytes'])}")
    return "\n".join(lines)
