"""Approvals: a signed decision about one digest, under one policy, before one deletion list.

What is signed is canonical JSON {kind, subject, decision, approver, proposer, policy, tombstones, approved_at, expires_at,
nonce}; the signature is SSHSIG (sha512) in the namespace `runview-<kind>`. An approval is bound to bytes: another subject,
policy or deletion list makes it lapse. The clock is an argument.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from runview import approval as sshsig

from pipeline.errors import ApprovalError
from pipeline.ids import canonical_json, digest, sha256_hex

FIELDS = ("kind", "subject", "decision", "approver", "proposer", "policy", "tombstones", "approved_at", "expires_at", "nonce")


@dataclass(frozen=True)
class Policy:
    """Quorum by kind and how long an approval stays valid; `label` is shown with the view (`demo` for throw-away keys)."""

    quorum: Mapping[str, int]
    valid_days: int
    label: str


@dataclass(frozen=True)
class Rules:
    """What an approval is judged against: policy and signers as text, and the digest of the deletion list."""

    policy_text: str
    signers_text: str
    tombstones: str

    @property
    def policy_digest(self) -> str:
        """One digest over policy and signers: changing either makes earlier approvals lapse."""
        return digest("policy", sha256_hex(self.policy_text.encode()), sha256_hex(self.signers_text.encode()))


@dataclass(frozen=True)
class Accepted:
    """One approval that counts."""

    approver: str
    fingerprint: str
    approved_at: str
    document: bytes
    signature: str


def tombstones_digest(tombstone_ids: Sequence[str]) -> str:
    """Digest of the deletion list in force."""
    return digest("tombstones", sorted(tombstone_ids))


def parse_policy(text: str) -> Policy:
    """Policy from TOML: `label`, `valid_days`, `[quorum] publish = 1`. Raises ApprovalError naming the key."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ApprovalError(f"policy is not valid TOML: {error}") from error
    unknown = sorted(set(raw) - {"label", "valid_days", "quorum"})
    if unknown:
        raise ApprovalError(f"policy: unknown key {unknown[0]!r}; known are label, valid_days, quorum")
    quorum = raw.get("quorum")
    if not isinstance(quorum, dict) or not quorum or any(type(n) is not int or n < 1 for n in quorum.values()):
        raise ApprovalError("policy: [quorum] must map kinds to numbers >= 1")
    days = raw.get("valid_days")
    if type(days) is not int or days < 1:
        raise ApprovalError("policy: valid_days must be a number >= 1")
    return Policy(dict(quorum), days, str(raw.get("label", "")))


def approval_document(
    kind: str, subject: str, *, approver: str, proposer: str, rules: Rules, now: datetime, nonce: str, decision: str = "approve"
) -> bytes:
    """The bytes to sign. `now` is timezone aware; the approval expires `valid_days` later."""
    policy = parse_policy(rules.policy_text)
    return canonical_json(
        {
            "kind": kind,
            "subject": subject,
            "decision": decision,
            "approver": approver,
            "proposer": proposer,
            "policy": rules.policy_digest,
            "tombstones": rules.tombstones,
            "approved_at": _stamp(now),
            "expires_at": _stamp(now + timedelta(days=policy.valid_days)),
            "nonce": nonce,
        }
    )


def approval_id(document: bytes, signature: str) -> str:
    """Identity of a filed approval."""
    return digest("approval", sha256_hex(document), sha256_hex(signature.encode()))


def require_quorum(
    approvals: Sequence[tuple[bytes, str]], *, kind: str, subject: str, proposer: str, rules: Rules, now: datetime
) -> list[Accepted]:
    """The approvals that count for `subject`, distinct by key.

    Args: approvals, pairs of document bytes and armoured signature, in any order.
    Raises: ApprovalError naming quorum, subject and why each filed approval does not count. A rejection by a valid signer
        refuses whatever else is filed.
    """
    policy = parse_policy(rules.policy_text)
    if kind not in policy.quorum:
        raise ApprovalError(f"policy has no quorum for kind {kind!r}; add it under [quorum]")
    try:
        allowed = sshsig.parse_allowed_signers(rules.signers_text)
    except Exception as error:
        raise ApprovalError(f"allowed_signers is refused: {error}") from error
    counted: dict[str, Accepted] = {}
    refused: list[str] = []
    for document, signature in approvals:
        name = approval_id(document, signature)[:12]
        try:
            accepted = _judge(document, signature, kind, subject, proposer, rules, allowed, now)
        except ApprovalError as error:
            refused.append(f"{name}: {error}")
            continue
        if json.loads(document)["decision"] != "approve":
            raise ApprovalError(f"{kind} of {subject} was rejected by {accepted.approver} (approval {name})")
        counted.setdefault(accepted.fingerprint, accepted)
    need = policy.quorum[kind]
    if len(counted) < need:
        why = f"; not counted: {'; '.join(refused)}" if refused else "; none filed"
        raise ApprovalError(
            f"{kind} of {subject} needs {need} approvals by distinct keys, found {len(counted)}{why}. Sign with `runviewctl approve`"
        )
    return sorted(counted.values(), key=lambda accepted: accepted.fingerprint)


def _judge(document: bytes, signature: str, kind: str, subject: str, proposer: str, rules: Rules, allowed: Any, now: datetime) -> Accepted:
    try:
        fields = json.loads(document)
    except ValueError as error:
        raise ApprovalError("document is not JSON") from error
    if not isinstance(fields, dict) or set(fields) != set(FIELDS) or canonical_json(fields) != document:
        raise ApprovalError(f"document must be canonical JSON with exactly the fields {list(FIELDS)}")
    if fields["kind"] != kind:
        raise ApprovalError(f"is of kind {fields['kind']!r}, expected {kind!r}")
    if fields["subject"] != subject:
        raise ApprovalError(f"approves {fields['subject']}, not these bytes")
    approved, expires = _time(fields["approved_at"]), _time(fields["expires_at"])
    try:
        verified = sshsig.verify(signature, document, f"runview-{kind}", allowed, at=approved)
    except Exception as error:
        raise ApprovalError(f"signature is refused: {error}") from error
    if fields["approver"] != verified.principal:
        raise ApprovalError(f"says approver {fields['approver']!r} but the key belongs to {verified.principal!r}")
    if verified.principal == proposer or fields["proposer"] != proposer:
        raise ApprovalError(f"proposer {proposer!r} does not count, and the document must name that proposer")
    if verified.fingerprint in {sshsig.key_fingerprint(s.key) for s in allowed.signers if proposer in s.principals}:
        raise ApprovalError("was made with a key of the proposer")
    if fields["policy"] != rules.policy_digest:
        raise ApprovalError("lapsed: policy or signers have changed since")
    if fields["tombstones"] != rules.tombstones:
        raise ApprovalError("lapsed: the deletion list has changed since")
    if not approved <= now < expires:
        raise ApprovalError(f"is valid from {fields['approved_at']} to {fields['expires_at']}, not now")
    return Accepted(verified.principal, verified.fingerprint, fields["approved_at"], document, signature)


def _stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")


def _time(text: object) -> datetime:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError as error:
        raise ApprovalError("times must be ISO 8601") from error
    if moment.tzinfo is None:
        raise ApprovalError("times must carry a time zone")
    return moment
