"""`explain`: what became of a document, and why."""

import argparse
from typing import Any

import polars as pl

from assets.commands.common import Answer, project_of
from pipeline.errors import LakeError, RecipeError
from pipeline.schemas import CLUSTERS, DECISIONS, DOCUMENTS, EVIDENCE, SHARD_DOCS


def explain(arguments: argparse.Namespace) -> Answer:
    """What became of a document: evidence, measured facts, decisions, shard and views."""
    project = project_of(arguments)
    prefix = arguments.doc
    if len(prefix) < 8 or set(prefix) - set("0123456789abcdef"):
        raise RecipeError(f"a doc_id, or its first 8 or more lower-case hex digits, is needed; found {prefix!r}")
    found = []
    for snapshot in project.lake.snapshots(stage="documents"):
        rows = project.lake.read(DOCUMENTS, snapshot.version, filter=pl.col("doc_id").str.starts_with(prefix)).to_pylist()
        found.extend((snapshot, row) for row in rows)
    ids = sorted({row["doc_id"] for _, row in found})
    if len(ids) != 1:
        raise LakeError(f"{len(ids)} documents begin with {prefix!r}{': ' + ', '.join(ids[:5]) if ids else ''}; give more digits")
    doc_id = ids[0]
    versions = []
    for snapshot, row in found:
        evidence = project.lake.read(
            EVIDENCE,
            snapshot.identity["parents"]["evidence"],
            columns=["evidence_id", "uri", "licence", "consent_basis", "container_sha256", "size_bytes", "truncated"],
            filter=pl.col("evidence_id") == row["evidence_id"],
        ).to_pylist()
        facts = {key: value for key, value in row.items() if key not in ("text", "attributes", "meta")}
        versions.append(
            {**facts, "attributes": dict(row["attributes"]), "meta": dict(row["meta"]), "evidence": evidence[0] if evidence else None}
        )
    value: dict[str, Any] = {"doc_id": doc_id, "versions": versions, "releases": [], "shards": []}
    for stage, spec, key in (("clusters", CLUSTERS, "releases"), ("decisions", DECISIONS, "releases"), ("shards", SHARD_DOCS, "shards")):
        for snapshot in project.lake.snapshots(stage=stage):
            rows = project.lake.read(spec, snapshot.version, filter=pl.col("doc_id") == doc_id).to_pylist()
            value[key].extend({"stage": stage, **row} for row in rows)
    return value, explain_text(value)


def explain_text(value: dict[str, Any]) -> str:
    """The explanation as lines; ids, counts and rules, never the text itself."""
    lines = [f"document {value['doc_id']}"]
    for row in value["versions"]:
        evidence = row["evidence"] or {}
        lines.append(f"  documents version {row['version'][:12]}  source={row['source']} snapshot={row['snapshot']}")
        basis = f"licence {row['licence']}, basis: {evidence.get('consent_basis')}"
        lines.append(f"    evidence {row['evidence_id'][:12]} at {row['record_key']}, {basis}")
        score = "" if row["language_score"] is None else f" ({row['language_score']:.3f})"
        lines.append(f"    kind={row['kind']} language={row['language']}{score} domain={row['domain']} characters={row['n_chars']}")
        lines.append(f"    own rules: {row['decision']}{_reasons(row['reasons'])}")
    for row in value["releases"]:
        if row["stage"] == "clusters":
            place = "survivor" if row["survivor_id"] == row["doc_id"] else f"copy of {row['survivor_id'][:12]}"
            lines.append(
                f"  release {row['release']}: cluster {row['cluster_id'][:12]} of {row['cluster_size']}, {place} "
                f"(similarity {row['similarity']:.3f}, {row['method']}), split {row['split']}"
            )
        else:
            primary = f", primary reason {row['primary_reason']}" if row["primary_reason"] else ""
            lines.append(f"  release {row['release']}: {row['decision']}{primary}{_reasons(row['reasons'])}")
    for row in value["shards"]:
        lines.append(
            f"  shard {row['shard_id'][:12]} ({row['component']}, {row['split']}): document {row['ordinal']}, tokens "
            f"{row['start']} to {row['start'] + row['n_tokens']}, {row['n_loss_tokens']} with a label"
        )
    return "\n".join(lines)


def _reasons(reasons: list[dict[str, Any]]) -> str:
    return "".join(f"; {reason['rule']}: {reason['value']:g} against {reason['threshold']:g}" for reason in reasons)
