"""`run` and `approve`: a release up to its candidate, and the signature that publishes it."""

import argparse
import secrets
from collections.abc import Mapping
from typing import Any

from assets import steps, view_steps
from assets.commands.common import Answer, project_of, runner_of
from pipeline.errors import ApprovalError, LakeError
from pipeline.ledger import Ledger
from resources.lake import Snapshot
from resources.project import Project
from runview.manifest import parse


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
    """The three lines that load a view; one more for a view in an object store, which the loader does not read."""
    if "://" in path:
        view_id = path.rpartition("/")[2].removesuffix(".json")
        lines = load_lines(f"DIR/views/{view_id}.json")
        return f"The loader reads file systems; copy the view first:\nrunviewctl view pull {view_id} DIR\n{lines}"
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
        "path": project.files.view_place("views" if published else "candidates", view_id),
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
