"""The work behind a run view: its candidate, its approvals, its publication."""

import base64
import json
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from assets import shard_steps, steps
from assets.gates import require_gate
from pipeline.errors import ApprovalError, LakeError, PipelineError, ViewError
from pipeline.governance.approvals import Rules, approval_document, approval_id, parse_policy, require_quorum, tombstones_digest
from pipeline.ids import canonical_json, sha256_hex
from pipeline.ledger import Ledger
from pipeline.recipe import Recipe, Release, to_json
from pipeline.run_view import manifest as manifests
from pipeline.schemas import APPROVALS, CATALOGS, CLUSTERS, RUN_VIEWS, SHARDS
from pipeline.stages import StageVersion
from resources.lake import Snapshot
from resources.mirror import opened
from resources.project import Project
from runview.errors import RunviewError
from runview.manifest import Manifest, parse
from runview.shards import read_stats
from runview.verify import verify_view

REPAIR = "Move damaged files away and run the release again, which makes missing ones anew"


@dataclass(frozen=True)
class Published:
    """A published view."""

    view_id: str
    path: str
    approvers: tuple[str, ...]
    policy_label: str
    reused: bool


def view_name(release: Release) -> str:
    """Name of the release's run view."""
    return release.view or release.name


def rules_in_force(project: Project) -> Rules:
    """Policy, signers and deletion list a publication is judged against. No deletions exist yet, so the list is empty."""
    return project.keystore.rules(tombstones_digest([]))


def candidate_stage(project: Project, release: Release, recipe: Recipe) -> tuple[StageVersion, StageVersion, str, dict[steps.Member, str]]:
    """Version of the candidate, and the versions it is made of."""
    tokenizer = project.tokenizers.load(recipe.tokenization.tokenizer)
    shards, decisions_version, versions = shard_steps.shards_stage(project, release, recipe, tokenizer)
    named = recipe.named(view_name(release))
    stage = manifests.candidate_version(
        named, release=release.name, tokenizer=tokenizer.name, shards_version=shards.version, decisions_version=decisions_version
    )
    return stage, shards, decisions_version, versions


def make_candidate(project: Project, release: Release, recipe: Recipe, *, run_id: str) -> steps.Done:
    """Build the manifest of the release's run view and file it under `candidates/`, where no loader reads."""
    start = time.perf_counter()
    stage, shards_stage, decisions_version, versions = candidate_stage(project, release, recipe)

    def make() -> steps.Made:
        require_gate(project, "shards", shards_stage.version)
        data = candidate_bytes(
            project, release, recipe, shards_version=shards_stage.version, decisions_version=decisions_version, versions=versions
        )
        view_id = sha256_hex(data)
        project.files.put_view("candidates", view_id, data)
        _insert_state(project, view_id, stage.version, release, "candidate")
        parsed = parse(data)
        delivered: Counter[str] = Counter()
        for part in parsed.stages:
            delivered.update(part.counts)
        return (
            [],
            [Ledger("packs", "positions", sum(part.length for part in parsed.stages), {"delivered": dict(delivered)})],
            {"view_id": view_id},
        )

    def lacks_file(made: Snapshot) -> bool:
        return not project.files.has_view("candidates", str(made.record["view_id"]))

    return steps.once(project, stage, make, run_id=run_id, start=start, lacks_files=lacks_file)


def candidate_bytes(
    project: Project, release: Release, recipe: Recipe, *, shards_version: str, decisions_version: str, versions: dict[steps.Member, str]
) -> bytes:
    """The manifest of a release's view, from the completed versions it is made of."""
    shards = project.lake.snapshot(shards_version)
    decisions = project.lake.snapshot(decisions_version)
    sealed = steps.sealed_row(project, release.name)
    if shards is None or decisions is None or sealed is None:
        raise LakeError(f"release {release.name}: shards, decisions or the seal are missing; run `runviewctl run {release.name}`")
    catalogs = project.lake.read(CATALOGS, shards.version)
    stats = {stats_id: read_stats(project.files.get("stats", stats_id)) for stats_id in catalogs["stats_id"].to_pylist()}
    files = manifests.component_files(
        catalogs, project.lake.read(SHARDS, shards.version), stats=stats, ledgers={ledger.unit: ledger for ledger in shards.ledgers}
    )
    clusters_version = steps.clusters_stage(recipe, release.name, versions).version
    return manifests.build_manifest(
        recipe.named(view_name(release)),
        release={"name": release.name, "release_id": sealed["release_id"]},
        stage_versions={
            "evidence": {f"{m.source}/{m.snapshot}": m.evidence_version for m in versions},
            "documents": steps.by_place(versions),
            "clusters": clusters_version,
            "decisions": decisions_version,
            "shards": shards.version,
        },
        tokenizer=project.tokenizers.load(recipe.tokenization.tokenizer).manifest_entry(),
        files=files,
        quarantine=None,
        duplicates=duplicate_rates(project, recipe, clusters_version),
        ledgers={"documents": decisions.ledgers[0].to_json(), "tokens": shards.ledgers[0].to_json()},
    )


def duplicate_rates(project: Project, recipe: Recipe, clusters_version: str) -> dict[str, Any]:
    """How duplicates were judged and how many there were."""
    table = project.lake.read(CLUSTERS, clusters_version, columns=["doc_id", "survivor_id"])
    n_duplicates = pc.sum(pc.not_equal(table["doc_id"], table["survivor_id"])).as_py() or 0
    judged = {"n_documents": len(table), "n_duplicates": n_duplicates, "near": None, "semantic": None}
    return {"parameters": to_json(recipe.duplicates), **judged}


def _insert_state(project: Project, view_id: str, version: str, release: Release, status: str) -> None:
    row = {
        "view_id": view_id,
        "version": version,
        "name": view_name(release),
        "status": status,
        "release": release.name,
        "parent": None,
        "relation": None,
        "proposer": project.proposer,
        "created_at": steps.now(),
    }
    project.lake.insert(RUN_VIEWS, pa.Table.from_pylist([row], schema=RUN_VIEWS.schema))


def view_row(project: Project, view: str, status: str) -> dict[str, Any] | None:
    """The newest row of a view, by name or id, in the given status; None when there is none."""
    rows = [row for row in project.lake.table(RUN_VIEWS).to_pylist() if row["status"] == status and view in (row["name"], row["view_id"])]
    return max(rows, key=lambda row: (row["created_at"], row["view_id"])) if rows else None


def current_candidate(project: Project, view: str) -> dict[str, Any]:
    """Row of the candidate to decide about: by id, or by name the one that its release file makes now.

    That need not be the newest: a recipe that is changed back has its old candidate again. Raises ApprovalError when there is none.
    """
    row = view_row(project, view, "candidate")
    if row is None:
        raise ApprovalError(f"no candidate named {view!r}; run the release first, or see `runviewctl status`")
    if view == row["view_id"]:
        return row
    release = project.release_of_view(view)
    stage, *_ = candidate_stage(project, release, project.recipe(release.recipe))
    snapshot = project.lake.snapshot(stage.version)
    row = view_row(project, str(snapshot.record["view_id"]), "candidate") if snapshot else None
    if row is None:
        raise ApprovalError(f"view {view}: its release file and recipe now make another candidate; run `runviewctl run {release.name}`")
    return row


def filed_approvals(project: Project, view_id: str) -> list[tuple[bytes, str]]:
    """Every approval filed for these bytes, valid or not."""
    rows = project.lake.table(APPROVALS).to_pylist()
    return [(row["document"], row["signature"]) for row in rows if row["kind"] == "publish" and row["subject"] == view_id]


def filed_decisions(project: Project, view_id: str) -> list[str]:
    """What the filed documents say, `reject by reviewer`: claims for a person to read, whose signatures publication judges."""
    out = []
    for document, _ in filed_approvals(project, view_id):
        fields = json.loads(document)
        out.append(f"{fields['decision']} by {fields['approver']}")
    return sorted(out)


def sign_approval(project: Project, view: str, *, approver: str, decision: str, nonce: str) -> str:
    """Sign a decision about a candidate with a key of this machine and file it. Returns the view id."""
    row = current_candidate(project, view)
    if not approver:
        own = [name for name in project.keystore.principals() if name != row["proposer"]]
        if len(own) != 1:
            raise ApprovalError(f"choose who signs with --as; private keys here besides the proposer's: {own}")
        approver = own[0]
    document = approval_document(
        "publish",
        row["view_id"],
        approver=approver,
        proposer=row["proposer"],
        rules=rules_in_force(project),
        now=steps.now(),
        nonce=nonce,
        decision=decision,
    )
    signature = project.keystore.sign(approver, document, "publish")
    filed = {
        "approval_id": approval_id(document, signature),
        "kind": "publish",
        "subject": row["view_id"],
        "document": document,
        "signature": signature,
        "received_at": steps.now(),
    }
    project.lake.insert(APPROVALS, pa.Table.from_pylist([filed], schema=APPROVALS.schema))
    return str(row["view_id"])


def publish_view(project: Project, release: Release, recipe: Recipe, *, run_id: str) -> Published:
    """Publish the candidate of the release's view. Verified here, whoever starts it: gate, bytes, approvals, every file.

    The record is written first and the view last, so that a view that exists is whole; both are read back.
    """
    stage, shards_stage, _, _ = candidate_stage(project, release, recipe)
    candidate = project.lake.snapshot(stage.version)
    if candidate is None:
        raise LakeError(f"view {view_name(release)} has no candidate in version {stage.version}; run `runviewctl run {release.name}`")
    view_id = str(candidate.record["view_id"])
    row = view_row(project, view_id, "candidate")
    if row is None:
        raise LakeError(f"candidate {view_id} has no row in {RUN_VIEWS.path}; run `runviewctl run {release.name}`")
    require_gate(project, "candidate", stage.version)
    data = project.files.read_view("candidates", view_id)
    if sha256_hex(data) != view_id:
        raise ApprovalError(f"candidate {view_id} was changed after it was filed: its bytes have digest {sha256_hex(data)}")
    rules = rules_in_force(project)
    label = parse_policy(rules.policy_text).label
    final = project.files.view_place("views", view_id)
    already = view_row(project, view_id, "published")
    if already is not None and project.files.has_view("views", view_id) and project.files.read_view("views", view_id) == data:
        listed = json.loads(project.files.read_record(view_id))["approvals"]
        approvers = tuple(json.loads(base64.b64decode(item["document"]))["approver"] for item in listed)
        return Published(view_id, final, approvers, label, reused=True)
    accepted = require_quorum(
        filed_approvals(project, view_id), kind="publish", subject=view_id, proposer=row["proposer"], rules=rules, now=steps.now()
    )
    check_files(project, view_id)
    shards = project.lake.snapshot(shards_stage.version)
    build = project.build_record()
    record = manifests.build_record(
        view_id=view_id,
        created_at=candidate.created_at.isoformat(),
        run_ids=[candidate.run_id, run_id],
        git_commit=build["git_commit"],  # type: ignore[arg-type]
        git_dirty=build["git_dirty"],  # type: ignore[arg-type]
        packages=build["packages"],  # type: ignore[arg-type]
        delta_versions={name: table.delta_version for name, table in (shards.tables if shards else {}).items()},
        approvals=[{"document": base64.b64encode(a.document).decode(), "signature": a.signature} for a in accepted],
    )
    project.files.write_record(view_id, canonical_json({**record, "approval": label}))
    project.files.put_view("views", view_id, data)
    if project.files.read_view("views", view_id) != data:
        raise LakeError(f"view {view_id} was written but reads back differently from the approved bytes; check the storage")
    _insert_state(project, view_id, stage.version, release, "published")
    return Published(view_id, final, tuple(a.approver for a in accepted), label, reused=False)


def check_files(project: Project, view_id: str) -> None:
    """Read every file a candidate lists against every digest. Raises ViewError naming the first problems.

    Cost: one full read of the view. From an object store that is one download of it, of which at most RUNVIEW_MIRROR_BYTES (by default
    8 GiB) lie on this machine at a time.
    """
    try:
        with opened(project.files, "candidates", view_id) as view:
            problems = [f"{problem.where}: {problem.message}" for problem in verify_view(view)]
    except (RunviewError, PipelineError) as error:  # anything else is a fault of ours and stops the publication as it is
        raise ViewError(f"view {view_id} cannot be verified: {error}. {REPAIR}") from error
    if problems:
        raise ViewError(f"view {view_id}: {len(problems)} files are not what was approved: {'; '.join(problems[:5])}. {REPAIR}")


def mixture_rows(manifest: Manifest) -> list[dict[str, Any]]:
    """Per stage and component: declared and achieved share, packs, epochs, documents and tokens of the component."""
    by_name = {component.name: component for component in manifest.components}
    rows = []
    for stage in manifest.stages:
        for name, count in stage.counts.items():
            component = by_name[name]
            rows.append(
                {
                    "stage": stage.name,
                    "component": name,
                    "declared_share": (stage.shares or {}).get(name, ""),
                    "achieved_share": stage.achieved_shares[name],
                    "packs": count,
                    "epochs": f"{count / component.n_packs:.3f}",
                    "n_docs": component.n_docs,
                    "n_tokens": component.n_tokens,
                }
            )
    return rows


def view_metadata(project: Project, view_id: str) -> dict[str, Any]:
    """The manifest as a person reads it."""
    manifest = parse(project.files.read_view("candidates", view_id))
    return {
        "view_id": view_id,
        "approval_state": "published" if view_row(project, view_id, "published") else "waits for approval",
        "mixture": dg.MetadataValue.table([dg.TableRecord(row) for row in mixture_rows(manifest)]),
        "sequence_length": manifest.seq_len,
        "positions": sum(stage.length for stage in manifest.stages),
        "quarantine": "none: contamination is not checked yet"
        if manifest.quarantine is None
        else dg.MetadataValue.json(dict(manifest.quarantine)),
    }
