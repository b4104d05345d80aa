"""What must hold of every published version, as row rules on a one-row profile, and the gate that reads the verdicts.

The rules are data: Great Expectations holds them as suites and judges the profile. A gate is green only when every expected
check is present, judged at least one item, and passed; nothing missing is ever taken for a pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.errors import ContractError, GateError


@dataclass(frozen=True)
class RowRule:
    """One expectation on a profile column, named as a row rule: `duplicate_doc_id` with `maximum=0`.

    Attributes:
        minimum, maximum: inclusive bounds; None is open.
        evaluated: profile column that counts what the rule judged; zero means the rule did not judge anything.
        severity: `error` blocks, `warn` is shown and alerted.
        why: one line for the person who sees it red.
    """

    name: str
    why: str
    evaluated: str
    minimum: float | None = None
    maximum: float | None = None
    severity: Literal["error", "warn"] = "error"


@dataclass(frozen=True)
class Verdict:
    """What one rule said about one profile. `raised` holds the kind of an exception: a raised expectation is an error."""

    check: str
    passed: bool
    severity: Literal["error", "warn"]
    n_evaluated: int
    observed: float | None
    raised: str = ""


def _zero(name: str, why: str, evaluated: str) -> RowRule:
    return RowRule(name, why, evaluated, maximum=0)


RULES: Mapping[str, tuple[RowRule, ...]] = {
    "evidence": (
        RowRule("evidence_rows", "a source snapshot without evidence is a broken source, not an empty one", "records_read", minimum=1),
        _zero("duplicate_evidence_id", "one payload, one row", "evidence_rows"),
        _zero("payload_missing", "every row has its payload or the address of its blob", "evidence_rows"),
        _zero("payload_digest_malformed", "digests are 64 hex digits", "evidence_rows"),
        _zero("deletion_keys_missing", "where the source declares deletion keys, no payload is without one", "evidence_rows"),
        _zero("ledger_gap", "records read = evidence + empty + rejected, and the rows are there", "records_read"),
        RowRule("rejected_share", "more than one record in ten could not be read", "records_read", maximum=0.1, severity="warn"),
    ),
    "documents": (
        RowRule("document_rows", "evidence without a single document", "payloads_read", minimum=1),
        _zero("duplicate_doc_id", "one document, one row", "document_rows"),
        _zero("orphan_document", "every document points at evidence of the version it was made from", "document_rows"),
        _zero("kept_blank_text", "a kept document has text", "document_rows"),
        _zero("text_not_nfc", "text is NFC", "document_rows"),
        _zero("dropped_without_reason", "a drop names its reasons", "document_rows"),
        _zero("kept_with_reason", "a kept document failed no rule", "document_rows"),
        _zero("kind_unknown", "content kind is one of four", "document_rows"),
        _zero("ledger_gap", "payloads and documents add up, and the rows are there", "payloads_read"),
        RowRule("replacement_share", "documents with replacement characters", "document_rows", maximum=0.05, severity="warn"),
    ),
    "clusters": (
        RowRule("cluster_rows", "a release without documents", "members", minimum=1),
        _zero("document_without_cluster", "every document of the release is in a cluster", "members"),
        _zero("cluster_across_splits", "a cluster lies in one split", "cluster_rows"),
        _zero("survivor_outside_cluster", "the survivor is in its own cluster", "cluster_rows"),
    ),
    "decisions": (
        RowRule("decision_rows", "a release without documents", "members", minimum=1),
        _zero("undecided_document", "every document of the release has a decision", "members"),
        _zero("kept_duplicate_text", "no text is kept twice", "decision_rows"),
        _zero("dropped_without_primary", "a drop has one primary reason", "decision_rows"),
        _zero("kept_with_reason", "a kept document failed no rule", "decision_rows"),
        _zero("cluster_across_splits", "a cluster lies in one split", "decision_rows"),
        _zero("ledger_gap", "made = kept + dropped by primary reason, and the rows are there", "decision_rows"),
        RowRule("kept_rows", "everything was dropped", "decision_rows", minimum=1),
    ),
    "shards": (
        RowRule("shard_rows", "a release without a shard", "kept_documents", minimum=1),
        _zero("empty_shard", "a shard holds documents and tokens", "shard_rows"),
        _zero("kept_not_in_shard", "every kept document is in a shard", "kept_documents"),
        _zero("dropped_in_shard", "nothing dropped is in a shard", "shard_documents"),
        _zero("duplicate_doc_id", "a document is in one shard", "shard_documents"),
        _zero("shard_file_missing", "every listed file is there with its size", "shard_rows"),
        _zero("token_gap", "tokens of kept = packed + lost by reason, and the shards hold them", "shard_documents"),
        RowRule("not_reversible", "decode(encode(text)) differs from the text", "round_trip_documents", maximum=0, severity="warn"),
    ),
    "candidate": (
        RowRule("component_rows", "a view without components", "component_rows", minimum=1),
        _zero("component_without_packs", "every component has packs", "component_rows"),
        _zero("digest_mismatch", "the manifest's bytes have the digest they are named by", "component_rows"),
        _zero("cap_exceeded", "no component is repeated beyond its cap", "component_rows"),
        RowRule(
            "share_deviation",
            "an achieved token share is more than 0.01 off the declared one",
            "component_rows",
            maximum=0.01,
            severity="warn",
        ),
    ),
}


def expected_checks(stage: str) -> list[str]:
    """Closed set of check names of a stage, in order. Raises ContractError for an unknown stage."""
    if stage not in RULES:
        raise ContractError(f"no rules for stage {stage!r}; known are {sorted(RULES)}")
    return [rule.name for rule in RULES[stage]]


def gate_problems(expected: Sequence[str], verdicts: Iterable[Verdict]) -> list[str]:
    """Why a gate is red; empty when it is green.

    Green means: every expected check is present, judged something, and passed or only warns. Verdicts that nobody expected
    are a problem too: they show that two versions of the rules met.
    """
    found: dict[str, Verdict] = {}
    problems = []
    for verdict in verdicts:
        if verdict.check in found:
            problems.append(f"{verdict.check}: judged twice")
        found[verdict.check] = verdict
    if not expected:
        problems.append("no checks expected: an empty gate proves nothing")
    for name in expected:
        if name not in found:
            problems.append(f"{name}: expected but did not run")
            continue
        verdict = found[name]
        if verdict.raised:
            problems.append(f"{name}: raised {verdict.raised}")
        elif verdict.n_evaluated <= 0:
            problems.append(f"{name}: judged nothing")
        elif not verdict.passed and verdict.severity == "error":
            problems.append(f"{name}: failed, observed {verdict.observed}")
    problems.extend(f"{name}: not an expected check" for name in found if name not in set(expected))
    return problems


def require_green(what: str, version: str, expected: Sequence[str], verdicts: Iterable[Verdict]) -> None:
    """Raises GateError naming every reason when the gate of `version` is not green."""
    problems = gate_problems(expected, verdicts)
    if problems:
        raise GateError(f"gate of {what} version {version} is red: {'; '.join(problems)}. Materialize and check that version first")


def judge(rules: Sequence[RowRule], profile: Mapping[str, float]) -> list[dict[str, Any]]:
    """Bounds and counts a suite needs, per rule. Raises ContractError when the profile lacks a column: never a default."""
    missing = sorted({name for rule in rules for name in (rule.name, rule.evaluated) if profile.get(name) is None})
    if missing:
        raise ContractError(f"profile lacks {missing}; a missing count is never zero")
    return [{"rule": rule, "observed": float(profile[rule.name]), "n_evaluated": int(profile[rule.evaluated])} for rule in rules]
