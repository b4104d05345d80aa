"""Profiles of a stored version: read the columns a profile needs, never payloads."""

import polars as pl
import pyarrow as pa

from assets.shard_steps import kept_documents, missing_files
from pipeline import profiles
from pipeline.errors import LakeError
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
    return profiles.candidate_profile(parse(project.files.read_view("candidates", view_id)), view_id=view_id)


PROFILES = {
    "evidence": evidence_profile_of,
    "documents": documents_profile_of,
    "clusters": clusters_profile_of,
    "decisions": decisions_profile_of,
    "shards": shards_profile_of,
    "candidate": candidate_profile_of,
}
"""How a version of each stage is profiled."""
