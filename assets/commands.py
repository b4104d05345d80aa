"""What `runviewctl` does, as functions that return the result twice: as plain data and as text for a person."""

import argparse
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from assets import profile_steps, steps, view_steps
from assets.gates import read_gate
from assets.runner import Runner, persistent_instance, ticking
from pipeline.contracts import RULES, expected_checks, gate_problems
from pipeline.errors import ApprovalError, LakeError, RecipeError
from pipeline.ledger import Ledger
from pipeline.schemas import CLUSTERS, DECISIONS, DOCUMENTS, EVIDENCE, RELEASES, RUN_VIEWS, SHARD_DOCS
from resources.expectations import build_data_docs
from resources.lake import Snapshot
from resources.project import Project
from runview.manifest import parse

Answer = tuple[dict[str, Any], str]


def project_of(arguments: argparse.Namespace) -> Project:
    """The project the command runs in. Raises RecipeError when the folder is none."""
    root = Path(arguments.project).resolve()
    if not (root / "releases").is_dir() or not (root / "sources").is_dir():
        raise RecipeError(f"{root} has no sources/ and releases/; run in a project folder or give --project")
    return Project.at(root)


def runner_of(project: Project) -> Runner:
    """A runner on the project's persistent Dagster instance, with progress on stderr."""
    return Runner(project, persistent_instance(project), ticking)


def run(arguments: argparse.Namespace) -> Answer:
    """Materialize a release up to its candidate."""
    project = project_of(arguments)
    release = project.release(arguments.release)
    runner_of(project).run_release(arguments.release)
    row = view_steps.current_candidate(project, view_steps.view_name(release))
    value = {"release": release.name, **release_summary(project, release.name), **view_summary(project, row["view_id"])}
    next_step = load_lines(value["path"]) if value["published"] else f"It waits for approval: runviewctl approve {row['name']}"
    return value, f"{summary_text(value)}\n\n{next_step}"


def approve(arguments: argparse.Namespace) -> Answer:
    """Sign the candidate and publish it."""
    project = project_of(arguments)
    decision = "reject" if arguments.reject else "approve"
    row = view_steps.current_candidate(project, arguments.view)
    if not arguments.reject and not arguments.sign_only:
        now = view_steps.current_candidate(project, row["name"])
        if now["view_id"] != row["view_id"]:
            raise ApprovalError(
                f"view {row['name']}: its release file now makes {now['view_id']}, not {row['view_id']}; "
                "approve that one, or change release and recipe back and run the release"
            )
    view_id = view_steps.sign_approval(project, row["view_id"], approver=arguments.approver, decision=decision, nonce=secrets.token_hex(16))
    if arguments.reject or arguments.sign_only:
        return {"view_id": view_id, "decision": decision, "published": False}, f"{decision} of view {view_id} is signed and filed"
    runner_of(project).publish(row["name"])
    value = {"decision": decision, **view_summary(project, view_id)}
    return value, f"published {value['path']}\n{load_lines(value['path'])}"


def load_lines(path: str) -> str:
    """The three lines that load a view."""
    return f'from runview import Loader, RunView\nview = RunView.open("{path}")\nfor batch in Loader(view, micro_batch=4): ...'


def release_summary(project: Project, name: str) -> dict[str, Any]:
    """Ledgers of a release, summed over its members: per state in, kept, dropped by reason, rejected."""
    release = project.release(name)
    recipe = project.recipe(release.recipe)
    members = steps.require_sealed(project, name)
    versions = steps.release_documents(project, recipe, members)
    evidence = _sum([_of(project.lake.snapshot(m.evidence_version), "payloads") for m in members])
    documents = _sum([_of(project.lake.snapshot(version), "documents") for version in versions.values()])
    rejected = _sum([_of(project.lake.snapshot(version), "payloads") for version in versions.values()])
    decisions = _of(project.lake.snapshot(steps.decisions_stage(recipe, name, versions).version), "documents")
    return {
        "raw_evidence": evidence.to_json(),
        "cleaned_docs": {"payloads": rejected.to_json(), "local": documents.to_json(), "release": decisions.to_json()},
    }


def _of(snapshot: Snapshot | None, unit: str) -> Ledger:
    if snapshot is None:
        raise LakeError(f"no completed version that holds the {unit} ledger; run the release first")
    return next(ledger for ledger in snapshot.ledgers if ledger.unit == unit)


def _sum(ledgers: list[Ledger]) -> Ledger:
    def add(parts: list[Mapping[str, int | Mapping[str, int]]]) -> dict[str, int | Mapping[str, int]]:
        out: dict[str, Any] = {}
        for part in parts:
            for name, value in part.items():
                if isinstance(value, Mapping):
                    inner = out.setdefault(name, {})
                    for reason, n in value.items():
                        inner[reason] = inner.get(reason, 0) + n
                else:
                    out[name] = out.get(name, 0) + value
        return out

    first = ledgers[0]
    total = sum(ledger.total for ledger in ledgers)
    return Ledger(first.unit, first.total_name, total, add([ledger.parts for ledger in ledgers])).close()


def view_summary(project: Project, view_id: str) -> dict[str, Any]:
    """What a person wants to know of a view."""
    published = project.files.has_view("views", view_id)
    manifest = parse(project.files.read_view("candidates", view_id))
    return {
        "view": manifest.name,
        "view_id": view_id,
        "published": published,
        "path": str(view_steps.view_path(project, "views" if published else "candidates", view_id)),
        "seq_len": manifest.seq_len,
        "positions": sum(stage.length for stage in manifest.stages),
        "mixture": view_steps.mixture_rows(manifest),
        "tokens": dict((manifest.ledgers or {}).get("tokens", {})),
    }


def summary_text(value: dict[str, Any]) -> str:
    """The summary as aligned lines."""
    lines = [f"release {value['release']}"]
    lines.append("  raw_evidence      " + Ledger.from_json(value["raw_evidence"]).line())
    cleaned = value["cleaned_docs"]
    lines.append("  cleaned_docs      " + Ledger.from_json(cleaned["payloads"]).line())
    lines.append("    by its own rules  " + Ledger.from_json(cleaned["local"]).line())
    lines.append("    in the release    " + Ledger.from_json(cleaned["release"]).line())
    lines.append("  tokenized_shards  " + Ledger.from_json(value["tokens"]).line())
    lines.append(f"  run_view          {value['view']}: {value['positions']} sequences of {value['seq_len']} tokens")
    head = (
        f"    {'stage':<10} {'component':<14} {'declared':>9} {'achieved':>11} {'packs':>8} {'epochs':>7} {'documents':>10} {'tokens':>12}"
    )
    lines.append(head)
    for row in value["mixture"]:
        lines.append(
            f"    {row['stage']:<10} {row['component']:<14} {row['declared_share'] or '-':>9} {row['achieved_share']:>11} "
            f"{row['packs']:>8} {row['epochs']:>7} {row['n_docs']:>10} {row['n_tokens']:>12}"
        )
    lines.append(f"  view id {value['view_id']}")
    lines.append(f"  {'published' if value['published'] else 'candidate'} {value['path']}")
    return "\n".join(lines)


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


def status(arguments: argparse.Namespace) -> Answer:
    """What is complete, red or waiting."""
    project = project_of(arguments)
    newest: dict[tuple[str, str], Snapshot] = {}
    for snapshot in project.lake.snapshots():
        newest[(snapshot.stage, json.dumps(dict(snapshot.partition), sort_keys=True))] = snapshot
    stages = []
    for snapshot in newest.values():
        judged = snapshot.stage in RULES or snapshot.stage == "view"
        stage = "candidate" if snapshot.stage == "view" else snapshot.stage
        problems = gate_problems(expected_checks(stage), read_gate(project, snapshot.version)) if judged else []
        stages.append(
            {
                "stage": stage,
                "partition": dict(snapshot.partition),
                "version": snapshot.version,
                "created_at": snapshot.created_at.isoformat(),
                "rows": {name: table.n_rows for name, table in snapshot.tables.items()},
                "gate": "green" if not problems else "red",
                "problems": problems,
            }
        )
    views = project.lake.table(RUN_VIEWS).to_pylist()
    published = {row["view_id"] for row in views if row["status"] == "published"}
    value = {
        "stages": stages,
        "releases": [{"name": row["name"], "sealed_at": row["sealed_at"].isoformat()} for row in project.lake.table(RELEASES).to_pylist()],
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
        "lake_bytes": sum(path.stat().st_size for path in Path(project.lake.root).rglob("*") if path.is_file()),
    }
    return value, status_text(value)


def status_text(value: dict[str, Any]) -> str:
    """The status as lines."""
    lines = []
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
    lines.append(f"lake {value['lake_bytes'] / 2**20:.1f} MiB")
    return "\n".join(lines)


def keys(arguments: argparse.Namespace) -> Answer:
    """Make the keys of the demonstration where there are none."""
    made = project_of(arguments).keystore.make_demo_keys()
    return {"made": made}, f"made {', '.join(made)}" if made else "keys and policy are there already; nothing was changed"


PROFILES = {
    "evidence": profile_steps.evidence_profile_of,
    "documents": profile_steps.documents_profile_of,
    "clusters": profile_steps.clusters_profile_of,
    "decisions": profile_steps.decisions_profile_of,
    "shards": profile_steps.shards_profile_of,
    "candidate": profile_steps.candidate_profile_of,
}


def docs(arguments: argparse.Namespace) -> Answer:
    """Data Docs of the newest version of every partition."""
    project = project_of(arguments)
    profiles = {}
    for snapshot in project.lake.snapshots():
        stage = "candidate" if snapshot.stage == "view" else snapshot.stage
        title = " ".join([stage, *dict(snapshot.partition).values()])
        profiles[title] = (RULES[stage], PROFILES[stage](project, snapshot.version).counts)
    if not profiles:
        raise LakeError("the lake has no completed version yet; run a release first")
    page = build_data_docs(Path(project.root) / "site", profiles)
    return {"index": str(page), "pages": sorted(profiles)}, f"Data Docs: {page}"
