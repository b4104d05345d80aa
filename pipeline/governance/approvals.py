"""Approvals: a signed decision about one digest, under one policy, before one deletion list.

What is signed is canonical JSON {kind, subject, decision, approver, proposer, policy, tombstones, approved_at, expires_at,
nonce}; the signature is SSHSIG (sha512) in the namespace `runview-<kind>`. An approval is bound to bytes: another subject,
policy or deletion list makes it lapse. A rejection stands until it expires, whatever else changes. The clock is an argument.
"""

from __future__ import annotations

import base64
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pipeline.errors import ApprovalError
from pipeline.ids import canonical_json, digest, sha256_hex
from runview import approval as sshsig

DECISIONS = ("approve", "reject")
MAX_VALID_DAYS = 3650  # an approval of a digest that outlives its reviewers is no approval
# What Python takes for the end of a line and ssh-keygen and an editor do not: a signer could hide behind it in a comment.
_HIDDEN_LINE = re.compile("[\v\f\x1c-\x1e\x85\u2028\u2029]|\r(?!\n)")
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
    if type(days) is not int or not 1 <= days <= MAX_VALID_DAYS:
        raise ApprovalError(f"policy: valid_days must be a number from 1 to {MAX_VALID_DAYS}")
    return Policy(dict(quorum), days, str(raw.get("label", "")))


def approval_document(
    kind: str, subject: str, *, approver: str, proposer: str, rules: Rules, now: datetime, nonce: str, decision: str = "approve"
) -> bytes:
    """The bytes to sign. `now` is timezone aware; the approval expires `valid_days` later."""
    if decision not in DECISIONS:
        raise ValueError(f"decision: expected one of {DECISIONS}, found {decision!r}")
    _check_aware(now)
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
    """The approvals that count for `subject`, one per person: names and keys that share a line of the signers are one person.

    Args: approvals, pairs of document bytes and armoured signature, in any order; now, timezone aware.
    Raises: ApprovalError naming quorum, subject and why each filed approval does not count. A rejection by a valid signer, the
        proposer included, refuses whatever else is filed, until it expires or its key is taken off the signers.
    """
    _check_aware(now)
    policy = parse_policy(rules.policy_text)
    if kind not in policy.quorum:
        raise ApprovalError(f"policy has no quorum for kind {kind!r}; add it under [quorum]")
    if _HIDDEN_LINE.search(rules.signers_text):
        raise ApprovalError("allowed_signers is refused: it holds line separators other than LF, behind which a signer can hide")
    try:
        allowed = sshsig.parse_allowed_signers(rules.signers_text)
    except Exception as error:
        raise ApprovalError(f"allowed_signers is refused: {error}") from error
    people = _people(allowed)
    counted: dict[str, Accepted] = {}
    refused: list[str] = []
    for name, document, signature in sorted((approval_id(*pair), *pair) for pair in approvals):
        try:
            fields, verified = _authentic(document, signature, kind, subject, allowed)
            if fields["decision"] != "approve" and now < _time(fields["expires_at"]):
                raise _RejectionError(f"{kind} of {subject} was rejected by {verified.principal} (approval {name[:12]})")
            _judge(fields, _person(people, _key(verified.fingerprint)), _person(people, _name(proposer)), proposer, rules, policy, now)
        except _RejectionError as error:
            raise ApprovalError(str(error)) from None
        except ApprovalError as error:
            refused.append(f"{name[:12]}: {error}")
            continue
        accepted = Accepted(verified.principal, verified.fingerprint, fields["approved_at"], document, signature)
        counted.setdefault(_person(people, _key(verified.fingerprint)), accepted)
    need = policy.quorum[kind]
    if len(counted) < need:
        why = f"; not counted: {'; '.join(refused)}" if refused else "" if counted else "; none filed"
        raise ApprovalError(
            f"{kind} of {subject} needs {need} approvals by distinct keys, found {len(counted)}{why}. Sign with `runviewctl approve`"
        )
    return sorted(counted.values(), key=lambda accepted: accepted.fingerprint)


class _RejectionError(Exception):
    """A valid signer said no: nothing else that is filed matters."""


def _authentic(
    document: bytes, signature: str, kind: str, subject: str, allowed: sshsig.AllowedSigners
) -> tuple[dict[str, str], sshsig.Verified]:
    """Fields and signer of a decision about `subject` that an allowed signer really signed, whatever it says."""
    try:
        fields = json.loads(document)
        canonical = isinstance(fields, dict) and all(isinstance(v, str) for v in fields.values()) and canonical_json(fields) == document
    except (ValueError, RecursionError) as error:
        raise ApprovalError("document is not JSON") from error
    if not canonical or set(fields) != set(FIELDS):
        raise ApprovalError(f"document must be canonical JSON with exactly the fields {list(FIELDS)}, all strings")
    if fields["kind"] != kind:
        raise ApprovalError(f"is of kind {fields['kind']!r}, expected {kind!r}")
    if fields["subject"] != subject:
        raise ApprovalError(f"is about {fields['subject']}, not these bytes")
    try:
        verified = sshsig.verify(signature, document, f"runview-{kind}", allowed, at=_time(fields["approved_at"]))
    except ApprovalError:
        raise
    except Exception as error:
        raise ApprovalError(f"signature is refused: {error}") from error
    if _armour(signature) != signature:
        raise ApprovalError("signature is not spelled as ssh-keygen writes it (lines of 70, LF, one line end at the end)")
    if fields["approver"] != verified.principal:
        raise ApprovalError(f"says approver {fields['approver']!r} but the key belongs to {verified.principal!r}")
    return fields, verified


def _judge(fields: dict[str, str], signer: str, proposing: str, proposer: str, rules: Rules, policy: Policy, now: datetime) -> None:
    """Raises ApprovalError when an authentic approval does not count. `signer` and `proposing` are people."""
    if fields["decision"] != "approve":
        raise ApprovalError(f"is a rejection that expired at {fields['expires_at']}")
    if fields["proposer"] != proposer:
        raise ApprovalError(f"names proposer {fields['proposer']!r}, expected {proposer!r}")
    if signer == proposing:
        raise ApprovalError(f"was made by the proposer {proposer!r}, who does not count, under whatever name or key")
    if fields["policy"] != rules.policy_digest:
        raise ApprovalError("lapsed: policy or signers have changed since")
    if fields["tombstones"] != rules.tombstones:
        raise ApprovalError("lapsed: the deletion list has changed since")
    approved, expires = _time(fields["approved_at"]), _time(fields["expires_at"])
    if not approved <= now < expires:
        raise ApprovalError(f"is valid from {fields['approved_at']} to {fields['expires_at']}, not now")
    if expires - approved > timedelta(days=policy.valid_days):
        raise ApprovalError(f"claims to be valid for longer than the {policy.valid_days} days of the policy")


def _people(allowed: sshsig.AllowedSigners) -> list[set[str]]:
    """Names and keys of each person: what stands on one line of the signers, or is joined to it through other lines."""
    people: list[set[str]] = []
    for signer in allowed.signers:
        line = {_key(sshsig.key_fingerprint(signer.key)), *map(_name, signer.principals)}
        same = [person for person in people if person & line]
        people = [person for person in people if not person & line] + [line.union(*same)]
    return people


def _person(people: Sequence[set[str]], member: str) -> str:
    """One name for the person; `member` itself when no line of the signers holds it."""
    return next((min(person) for person in people if member in person), member)


def _key(fingerprint: str) -> str:
    return f"key {fingerprint}"


def _name(principal: str) -> str:
    return f"name {principal}"


def _armour(signature: str) -> str:
    """The one spelling of a signature that was verified; base64 has spare bits and white space has many forms."""
    text = base64.b64encode(base64.b64decode("".join(line.strip() for line in signature.strip().splitlines()[1:-1]))).decode()
    return "\n".join([sshsig.BEGIN, *(text[i : i + 70] for i in range(0, len(text), 70)), sshsig.END]) + "\n"


def _check_aware(now: datetime) -> None:
    if now.tzinfo is None:
        raise ValueError("now must carry a time zone")


def _stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")


def _time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ApprovalError("times must be ISO 8601") from error
    if moment.tzinfo is None:
        raise ApprovalError("times must carry a time zone")
    return moment
