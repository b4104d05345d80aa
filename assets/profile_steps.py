"""Profiles of a stored version: read the columns a profile needs, never payloads."""

from fractions import Fraction

import polars as pl
import pyarrow as pa

from assets.shard_steps import kept_documents, missing_files
from pipeline import profiles
from pipeline.errors import LakeError
from pipeline.ids import sha256_hex
from pipeline.profiles import Profile
from pipeline.schemas import CLUSTERS, DECISIONS, DOCUMENTS, EVIDENCE, EVIDENCE_REJECTS, SHARD_DOCS, SHARDS, TableSpec
from resources.lake import Snapshot
from resources.project import Project
from runview.manifest import parse


def _snapshot(project: Project, version: str) -> Snapshot:
    snapshot = project.lake.snapshot(version)
    if snapshot is None:
        raise LakeError(f"version {version} is not complete; there is nothing to judge")
    return snapshot


def _frame(project: Project, spec: TableSpec, version: str, columns: list[str] | None = None) -> pl.DataFrame:
    frame = pl.from_arrow(project.lake.read(spec, version, columns=columns))
    assert isinstance(frame, pl.DataFrame)
    return frame


def _member_versions(snapshot: Snapshot) -> list[str]:
    return sorted(version for name, version in snapshot.identity["parents"].items() if name.startswith("documents/"))


def _members(project: Project, snapshot: Snapshot, columns: list[str]) -> pl.DataFrame:
    parts = [project.lake.read(DOCUMENTS, version, columns=columns) for version in _member_versions(snapshot)]
    return pl.DataFrame(pa.concat_tables(parts))


def evidence_profile_of(project: Project, version: str) -> Profile:
    """Profile of one evidence version."""
    snapshot = _snapshot(project, version)
    columns = ["evidence_id", "blob_sha256", "payload_sha256", "deletion_keys"]
    frame = project.lake.scan(EVIDENCE, version).select(*columns, pl.col("payload").is_not_null().alias("has_payload")).collect()
    n_rejects = snapshot.tables[EVIDENCE_REJECTS.path].n_rows
    declared = bool(snapshot.identity["recipe_part"]["source"]["deletion_key_fields"])
    return profiles.evidence_profile(frame, n_rejects=n_rejects, keys_declared=declared, ledgers=snapshot.ledgers)


def documents_profile_of(project: Project, version: str) -> Profile:
    """Profile of one documents version, against the evidence it was made from."""
    snapshot = _snapshot(project, version)
    evidence_ids = _frame(project, EVIDENCE, snapshot.identity["parents"]["evidence"], ["evidence_id"])["evidence_id"]
    frame = _frame(project, DOCUMENTS, version, ["doc_id", "evidence_id", "text", "decision", "reasons", "kind"])
    return profiles.documents_profile(frame, evidence_ids=evidence_ids, ledgers=snapshot.ledgers)


def clusters_profile_of(project: Project, version: str) -> Profile:
    """Profile of one clusters version."""
    snapshot = _snapshot(project, version)
    return profiles.clusters_profile(_frame(project, CLUSTERS, version), member_ids=_members(project, snapshot, ["doc_id"])["doc_id"])


def decisions_profile_of(project: Project, version: str) -> Profile:
    """Profile of one decisions version."""
    snapshot = _snapshot(project, version)
    members = _members(project, snapshot, ["doc_id", "text_sha256"])
    return profiles.decisions_profile(_frame(project, DECISIONS, version), members=members, ledgers=snapshot.ledgers)


def shards_profile_of(project: Project, version: str) -> Profile:
    """Profile of one shards version, against the decisions it obeys and the files on disk."""
    snapshot = _snapshot(project, version)
    shards = _frame(project, SHARDS, version)
    missing = missing_files(project, version)
    kept = kept_documents(project, snapshot.identity["parents"]["decisions"])["doc_id"]
    shard_docs = _frame(project, SHARD_DOCS, version, ["doc_id"])
    return profiles.shards_profile(shards, shard_docs, kept_ids=kept, missing_files=missing, ledgers=snapshot.ledgers)


def candidate_profile_of(project: Project, version: str) -> Profile:
    """Profile of one candidate: its bytes, components, caps and shares."""
    view_id = str(_snapshot(project, version).record["view_id"])
    data = project.files.read_view("candidates", view_id)
    manifest = parse(data)
    profile = Profile()
    packs = {component.name: component.n_packs for component in manifest.components}
    without = [name for name, n in packs.items() if n <= 0]
    delivered: dict[str, int] = {}
    caps: dict[str, Fraction] = {}
    deviation = Fraction(0)
    for stage in manifest.stages:
        for name, n in stage.counts.items():
            delivered[name] = delivered.get(name, 0) + n
        caps.update({name: Fraction(cap) for name, cap in stage.caps.items()})
        for name, share in (stage.shares or {}).items():
            deviation = max(deviation, abs(Fraction(share) - Fraction(stage.achieved_shares[name])))
    exceeded = [name for name, n in delivered.items() if packs[name] and Fraction(n, packs[name]) > caps[name]]
    profile.counts = {
        "component_rows": len(packs),
        "component_without_packs": len(without),
        "digest_mismatch": int(sha256_hex(data) != view_id),
        "cap_exceeded": len(exceeded),
        "share_deviation": float(deviation),
    }
    profile.examples = {key: names for key, names in (("component_without_packs", without), ("cap_exceeded", exceeded)) if names}
    return profile
