"""The work behind each asset, without Dagster: find the versions, read, call one transform, write.

Every step first looks for its completed snapshot and stops there when it exists, so a step that is run twice, or killed and
run again, ends as one copy. Consumers read the gate of what they consume again: blocking inside one run is not enough.
"""

import functools
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from assets.gates import require_gate
from pipeline.cleaned_docs import decide, documents, duplicates
from pipeline.errors import GateError, LakeError, RecipeError
from pipeline.ids import canonical_json, digest
from pipeline.ledger import Ledger
from pipeline.raw_evidence import capture
from pipeline.recipe import Recipe, Release, source_from_identity
from pipeline.schemas import CLUSTERS, DECISIONS, DOCUMENT_REJECTS, DOCUMENTS, EVIDENCE, EVIDENCE_REJECTS, RELEASES, TableSpec
from pipeline.stages import StageVersion
from resources import workers
from resources.fetch import land
from resources.lake import Snapshot
from resources.lake.sharing import working
from resources.project import Project
from resources.sources import open_all, take_inventory

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Done:
    """A completed step: its snapshot, whether it was there before, and the seconds it took."""

    snapshot: Snapshot
    reused: bool
    seconds: float

    def line(self) -> str:
        """One line per partition with counts that add up."""
        place = " ".join(f"{key}={value}" for key, value in self.snapshot.partition.items())
        counts = " | ".join(f"{ledger.unit}: {ledger.line()}" for ledger in self.snapshot.ledgers)
        return f"{self.snapshot.stage} {place} {counts} {self.seconds:.1f} s{' (already there)' if self.reused else ''}"


@dataclass(frozen=True)
class Member:
    """One source snapshot of a sealed release."""

    source: str
    snapshot: date
    evidence_version: str


Made = tuple[list[tuple[TableSpec, pa.Table]], list[Ledger], dict[str, Any]]
"""What a stage makes: tables, closed ledgers, and what goes on the snapshot's record beside the build."""


def _working(step: Callable[..., Done]) -> Callable[..., Done]:
    """While the step runs, housekeeping removes nothing."""

    @functools.wraps(step)
    def held(project: Project, *args: Any, **kwargs: Any) -> Done:
        with working(str(project.state_root)):
            return step(project, *args, **kwargs)

    return held


def _cpu_seconds() -> float:
    """CPU time of this process and of those it has waited for, its worker processes included."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@_working
def once(
    project: Project,
    stage: StageVersion,
    make: Callable[[], Made],
    *,
    run_id: str,
    start: float,
    lacks_files: Callable[[Snapshot], bool] = lambda _: False,
) -> Done:
    """Complete a version, or stop where it is complete already.

    Args: start, `time.perf_counter()` when the step began; lacks_files, asked of a complete version: are files of it gone? Then it
        is made again, which puts them back, and compared with what was completed.
    """
    snapshot = project.lake.snapshot(stage.version)
    reused = snapshot is not None and not lacks_files(snapshot)
    if snapshot is None or not reused:
        cpu = _cpu_seconds()
        tables, ledgers, more = make()
        record = {**project.build_record(), "cpu_seconds": round(_cpu_seconds() - cpu, 3), **more}
        snapshot = project.lake.publish(stage, tables, ledgers, run_id=run_id, now=now(), record=record)
    done = Done(snapshot, reused, time.perf_counter() - start)
    logger.info(done.line())
    return done


def now() -> datetime:
    """The clock: only times that enter no id are taken from it."""
    return datetime.now(UTC)


def collect_evidence(project: Project, source_name: str, snapshot_date: date, *, run_id: str) -> Done:
    """Capture a source snapshot: fetched files land first, then the inventory, then every record as evidence or a reject."""
    start = time.perf_counter()
    source = project.source(source_name)
    if source.snapshot is not None and source.snapshot != snapshot_date:
        raise RecipeError(f"source {source_name} is pinned to snapshot {source.snapshot}, asked for {snapshot_date}")
    landing = land(source, snapshot_date, lake_root=project.lake.root) if source.fetch else None
    base, place = (landing.folder, landing.source) if landing else (project.source_dir(), source.at(snapshot_date))
    containers = take_inventory(place, base, landed=landing.files if landing else None)
    stage = capture.stage_version(source, snapshot_date, containers)

    def make() -> Made:
        captured = capture.capture(
            source,
            snapshot_date,
            open_all(place, base, containers),
            version=stage.version,
            deletion_key=project.keystore.deletion_key(),
            put_blob=project.blobs.put,
        )
        more = {"landing": landing.record()} if landing else {}
        return [(EVIDENCE, captured.evidence), (EVIDENCE_REJECTS, captured.rejects)], list(captured.ledgers), more

    return once(project, stage, make, run_id=run_id, start=start)


def newest(project: Project, stage: str, partition: dict[str, str]) -> Snapshot:
    """The snapshot of a partition that was completed last. Raises LakeError when there is none."""
    found = project.lake.snapshots(stage=stage, partition=partition)
    if not found:
        raise LakeError(f"no completed version of {stage} for {partition}; materialize it first")
    return found[-1]


def make_documents(
    project: Project, recipe: Recipe, source_name: str, snapshot_date: date, *, run_id: str, evidence_version: str | None = None
) -> Done:
    """Documents of one source snapshot: of the evidence version given, or of the newest."""
    start = time.perf_counter()
    partition = {"source": source_name, "snapshot": snapshot_date.isoformat()}
    evidence = project.lake.snapshot(evidence_version) if evidence_version else newest(project, "evidence", partition)
    if evidence is None:
        raise LakeError(f"evidence version {evidence_version} of {partition} is not complete; materialize it first")
    stage = documents_stage(recipe, Member(source_name, snapshot_date, evidence.version))
    evidence_part = evidence.identity["recipe_part"]["source"]

    def make() -> Made:
        require_gate(project, "evidence", evidence.version)
        n_workers = workers.worker_count(_payload_bytes(evidence))
        made = documents.clean(
            project.lake.batches(EVIDENCE, evidence.version, columns=documents.EVIDENCE_COLUMNS),
            source=source_from_identity(evidence_part),
            cleaning=recipe.cleaning,
            version=stage.version,
            read_blob=project.blobs.read,
            each=functools.partial(workers.mapped, n_workers=n_workers, what=f"documents source={source_name} snapshot={snapshot_date}"),
        )
        return [(DOCUMENTS, made.documents), (DOCUMENT_REJECTS, made.rejects)], list(made.ledgers.values()), {}

    return once(project, stage, make, run_id=run_id, start=start)


def _payload_bytes(evidence: Snapshot) -> int:
    """What the payloads of an evidence version weigh, by its ledger."""
    weights = (ledger.extra.get("payload_bytes", 0) for ledger in evidence.ledgers)
    return sum(weight for weight in weights if isinstance(weight, int))


def documents_stage(recipe: Recipe, member: Member) -> StageVersion:
    """Version of the documents a recipe makes of one member."""
    return documents.stage_version(
        recipe.cleaning, source=member.source, snapshot=member.snapshot, evidence_version=member.evidence_version
    )


def places(release: Release) -> list[tuple[str, date]]:
    """Source and date of every member, in their order of identity."""
    return sorted((member.source, day) for member in release.members for day in member.dates)


def seal_release(
    project: Project, release: Release, *, run_id: str, evidence: Mapping[tuple[str, date], str] | None = None
) -> list[Member]:
    """Members of a release with explicit evidence versions. A sealed release never changes: it is read back as it was.

    Args: evidence, the version to seal of each source and date; where it names none, the one completed last.
    Raises RecipeError when the release file now names other members or another parent than were sealed, LakeError when evidence
    is missing.
    """
    wanted = places(release)
    sealed = sealed_members(project, release.name)
    if sealed is None:
        members = []
        for source, day in wanted:
            place = {"source": source, "snapshot": day.isoformat()}
            version = (evidence or {}).get((source, day)) or newest(project, "evidence", place).version
            require_gate(project, "evidence", version)
            members.append({**place, "evidence_version": version})
        row = {
            "name": release.name,
            "release_id": digest("release", release.name, release.parent, members),
            "parent": release.parent or None,
            "members": canonical_json(members).decode(),
            "recipe": release.recipe,
            "sealed_at": now(),
            "run_id": run_id,
        }
        try:
            project.lake.insert(RELEASES, pa.Table.from_pylist([row], schema=RELEASES.schema))
        except LakeError:
            # another run sealed it first: what it sealed is the release
            if sealed_members(project, release.name) is None:
                raise
        sealed = sealed_members(project, release.name)
        assert sealed is not None
    parent = (sealed_row(project, release.name) or {})["parent"] or ""
    if parent != release.parent:
        raise RecipeError(
            f"release {release.name} is sealed with parent {parent!r}, its file now names {release.parent!r}; "
            "a sealed release never changes: write a new release file"
        )
    found = [(member.source, member.snapshot) for member in sealed]
    if found != wanted:
        raise RecipeError(
            f"release {release.name} is sealed with {len(found)} members, its file now names {len(wanted)} others; "
            "a sealed release never changes: write a new release file with `parent`"
        )
    return sealed


def sealed_row(project: Project, name: str) -> dict[str, Any] | None:
    """The row of a sealed release, None when it is not sealed."""
    rows = [row for row in project.lake.table(RELEASES).to_pylist() if row["name"] == name]
    return rows[0] if rows else None


def sealed_members(project: Project, name: str) -> list[Member] | None:
    """Members of a sealed release, None when it is not sealed."""
    row = sealed_row(project, name)
    if row is None:
        return None
    return [Member(m["source"], date.fromisoformat(m["snapshot"]), m["evidence_version"]) for m in json.loads(row["members"])]


def require_sealed(project: Project, name: str) -> list[Member]:
    """Members of a sealed release. Raises LakeError when it is not sealed."""
    members = sealed_members(project, name)
    if members is None:
        raise LakeError(f"release {name} is not sealed; run `runviewctl run {name}`")
    return members


def release_documents(project: Project, recipe: Recipe, members: list[Member]) -> dict[Member, str]:
    """Documents version of every member, each complete and green. Raises LakeError or GateError naming the member."""
    versions = {}
    for member in members:
        version = documents_stage(recipe, member).version
        if project.lake.snapshot(version) is None:
            raise LakeError(f"documents of source={member.source} snapshot={member.snapshot} are not complete in version {version}")
        require_gate(project, "documents", version)
        versions[member] = version
    return versions


def read_documents(project: Project, versions: dict[Member, str], columns: list[str]) -> pa.Table:
    """The given columns of all documents of a release, in doc_id order."""
    parts = [project.lake.read(DOCUMENTS, version, columns=columns) for version in versions.values()]
    return pa.concat_tables(parts).sort_by("doc_id")


def clusters_stage(recipe: Recipe, release: str, versions: dict[Member, str]) -> StageVersion:
    """Version of the clusters of a release."""
    return duplicates.clusters_version(release=release, duplicates=recipe.duplicates, split=recipe.split, documents=by_place(versions))


def decisions_stage(recipe: Recipe, release: str, versions: dict[Member, str]) -> StageVersion:
    """Version of the decisions of a release."""
    clusters = clusters_stage(recipe, release, versions).version
    return decide.decisions_version(release=release, decisions=recipe.decisions, clusters=clusters, documents=by_place(versions))


def by_place(versions: dict[Member, str]) -> dict[str, str]:
    """Documents version by `source/date`."""
    return {f"{member.source}/{member.snapshot}": version for member, version in versions.items()}


def make_clusters(project: Project, release: Release, recipe: Recipe, *, run_id: str) -> Done:
    """Duplicate clusters and splits over all documents of a sealed release."""
    start = time.perf_counter()
    versions = release_documents(project, recipe, require_sealed(project, release.name))
    stage = clusters_stage(recipe, release.name, versions)

    def make() -> Made:
        table = duplicates.clusters(
            read_documents(project, versions, list(duplicates.COLUMNS)),
            release=release.name,
            duplicates=recipe.duplicates,
            split=recipe.split,
            version=stage.version,
        )
        alone = pc.sum(pc.equal(table["cluster_size"], 1)).as_py() or 0
        ledger = Ledger("documents", "judged", len(table), {"alone": alone, "in_clusters": len(table) - alone})
        return [(CLUSTERS, table)], [ledger], {}

    return once(project, stage, make, run_id=run_id, start=start)


def make_decisions(project: Project, release: Release, recipe: Recipe, *, run_id: str) -> Done:
    """Keep or drop, with all reasons, for every document of a sealed release."""
    start = time.perf_counter()
    versions = release_documents(project, recipe, require_sealed(project, release.name))
    stage = decisions_stage(recipe, release.name, versions)

    def make() -> Made:
        clusters_version = clusters_stage(recipe, release.name, versions).version
        require_gate(project, "clusters", clusters_version)
        table, ledger = decide.decisions(
            read_documents(project, versions, list(decide.COLUMNS)),
            project.lake.read(CLUSTERS, clusters_version),
            release=release.name,
            decisions=recipe.decisions,
            version=stage.version,
        )
        return [(DECISIONS, table)], [ledger], {}

    return once(project, stage, make, run_id=run_id, start=start)


def documents_ready(project: Project, recipe: Recipe, member: Member) -> bool:
    """Are the documents of a member complete in the version this recipe makes, and judged green?"""
    version = documents_stage(recipe, member).version
    if project.lake.snapshot(version) is None:
        return False
    try:
        require_gate(project, "documents", version)
    except GateError:
        return False
    return True
