"""Approvals: nobody publishes bytes that somebody else did not approve, under the policy and the deletion list in force."""

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ApprovalError
from pipeline.governance import approvals
from pipeline.governance.approvals import Rules, approval_document, approval_id, parse_policy, require_quorum, tombstones_digest
from pipeline.ids import canonical_json, sha256_hex
from runview import approval as sshsig

CASE = Path(__file__).parents[2] / "cases" / "C29"
NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
SUBJECT = "ab" * 32
POLICY = 'label = "test"\nvalid_days = 30\n[quorum]\npublish = 1\nrecipe = 1\n'
KEYS = {name: Ed25519PrivateKey.from_private_bytes(bytes([n] * 32)) for n, name in enumerate(("eve", "rev", "sec", "stranger"), 1)}
Pair = tuple[bytes, str]


def line(principals: str, key: str, options: str = 'namespaces="runview-publish,runview-recipe"') -> str:
    public = KEYS[key].public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    return f"{principals} {options} {public}\n"


SIGNERS = line("eve", "eve") + line("rev", "rev") + line("sec", "sec")
RULES = Rules(POLICY, SIGNERS, tombstones_digest([]))
TWO = Rules(POLICY.replace("publish = 1", "publish = 2"), SIGNERS, tombstones_digest([]))


def signed(key: str = "rev", *, rules: Rules = RULES, namespace: str = "", now: datetime = NOW, **changes: Any) -> Pair:
    """A decision by `key`, with any field of the document changed before signing."""
    fields = json.loads(approval_document("publish", SUBJECT, approver=key, proposer="eve", rules=rules, now=now, nonce="00"))
    document = canonical_json(fields | changes)
    return document, sshsig.sign(KEYS[key], document, namespace or f"runview-{fields['kind']}")


def judge(
    *pairs: Pair, rules: Rules = RULES, subject: str = SUBJECT, kind: str = "publish", proposer: str = "eve", now: datetime = NOW
) -> list[str]:
    """Who counts."""
    return [a.approver for a in require_quorum(pairs, kind=kind, subject=subject, proposer=proposer, rules=rules, now=now)]


def test_an_approval_of_exactly_these_bytes_counts() -> None:
    document, signature = signed()
    accepted = require_quorum([(document, signature)], kind="publish", subject=SUBJECT, proposer="eve", rules=RULES, now=NOW)
    assert [(a.approver, a.document, a.signature) for a in accepted] == [("rev", document, signature)]
    assert accepted[0].approved_at == "2026-11-28T12:00:00+00:00"
    assert accepted[0].fingerprint.startswith("SHA256:")


def test_nothing_filed() -> None:
    with pytest.raises(ApprovalError, match=f"publish of {SUBJECT} needs 1 approvals by distinct keys, found 0; none filed"):
        judge()


# Everything that is wrong with one approval while everything else about it is right.
WRONG: list[tuple[str, Callable[[], Pair], str]] = [
    ("another subject", lambda: signed(subject="cd" * 32), "is about cdcd"),
    ("another kind", lambda: signed(kind="recipe"), "is of kind 'recipe'"),
    ("another namespace", lambda: signed(namespace="runview-recipe"), "signature is for namespace 'runview-recipe'"),
    ("another proposer", lambda: signed(proposer="sec"), "names proposer 'sec', expected 'eve'"),
    ("another approver", lambda: signed(approver="sec"), "says approver 'sec' but the key belongs to 'rev'"),
    ("another policy", lambda: signed(policy="00" * 32), "policy or signers have changed"),
    ("another deletion list", lambda: signed(tombstones=tombstones_digest(["x"])), "deletion list has changed"),
    ("the proposer", lambda: signed("eve"), "was made by the proposer 'eve'"),
    ("an unknown key", lambda: signed("stranger"), "not among the allowed signers"),
    ("expired", lambda: signed(now=NOW - timedelta(days=30)), "is valid from 2026-10-29T12:00:00"),
    ("not yet valid", lambda: signed(now=NOW + timedelta(seconds=1)), "is valid from 2026-11-28T12:00:01"),
    ("valid for longer than the policy allows", lambda: signed(expires_at="2027-11-28T00:00:00+00:00"), "longer than the 30 days"),
    ("naive approved_at", lambda: signed(approved_at="2026-11-28T11:00:00"), "times must carry a time zone"),
    ("naive expires_at", lambda: signed(expires_at="2026-12-28T11:00:00"), "times must carry a time zone"),
    ("no time", lambda: signed(approved_at="yesterday"), "times must be ISO 8601"),
    (
        "earliest and latest time",
        lambda: signed(approved_at="0001-01-01T00:00:00+14:00", expires_at="9999-12-31T23:59:59-14:00"),
        "longer than",
    ),
    ("extra field", lambda: signed(extra="x"), "exactly the fields"),
    ("number for a string", lambda: signed(nonce=7), "all strings"),
    ("nested value", lambda: signed(nonce={"a": "b"}), "all strings"),
]


@pytest.mark.parametrize(("make", "message"), [(make, message) for _, make, message in WRONG], ids=[name for name, _, _ in WRONG])
def test_what_does_not_count(make: Callable[[], Pair], message: str) -> None:
    with pytest.raises(ApprovalError, match=f"found 0; not counted: {approval_id(*make())[:12]}: .*{message}"):
        judge(make())


def test_the_bounds_of_time_are_as_stated() -> None:
    start, end = NOW, NOW + timedelta(days=30)
    pair = signed()
    assert judge(pair, now=start) == judge(pair, now=end - timedelta(microseconds=1)) == ["rev"]
    for moment in (start - timedelta(microseconds=1), end):
        with pytest.raises(ApprovalError, match="is valid from"):
            judge(pair, now=moment)
    assert judge(pair, now=start.astimezone(timezone(timedelta(hours=9)))) == ["rev"]
    with pytest.raises(ValueError, match="time zone"):
        judge(pair, now=NOW.replace(tzinfo=None))
    with pytest.raises(ValueError, match="time zone"):
        signed(now=NOW.replace(tzinfo=None))


# Documents that a lenient reader could take for the signed one. All are really signed by a reviewer.
def spelled(change: Callable[[bytes], bytes]) -> Pair:
    document = change(signed()[0])
    return document, sshsig.sign(KEYS["rev"], document, "runview-publish")


@pytest.mark.parametrize(
    "change",
    [
        lambda d: json.dumps(json.loads(d)).encode(),
        lambda d: json.dumps(json.loads(d), separators=(",", ":"), sort_keys=True, indent=1).encode(),
        lambda d: d + b"\n",
        lambda d: b"\xef\xbb\xbf" + d,
        lambda d: d.decode().encode("utf-16"),
        lambda d: d.replace(b'"approve"', b'"\\u0061pprove"'),
        lambda d: b'{"decision":"reject",' + d[1:],
        lambda d: d.replace(b'{"approved_at"', b'{"approve_at"'),
        lambda d: d.replace(b'"nonce":"00",', b""),
        lambda d: d.replace(b'"nonce":"00"', b'"nonce":NaN'),
        lambda d: d.replace(b'"nonce":"00"', b'"nonce":1' + b"0" * 30),
        lambda d: d.replace(b'"nonce":"00"', b'"nonce":"\\ud800"'),
        lambda d: b"[" * 100_000,
        lambda d: b"[" + d + b"]",
        lambda d: b"null",
        lambda d: b"",
        lambda d: b"\xff\xfe\x00",
    ],
)
def test_a_document_has_one_spelling(change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(ApprovalError, match="document (must be canonical|is not) JSON"):
        judge(spelled(change))


def test_a_changed_document_under_the_old_signature() -> None:
    document, signature = signed()
    for old, new in ((b'"nonce":"00"', b'"nonce":"01"'), (b'"2026-12-28', b'"2026-12-27')):
        changed = document.replace(old, new)
        assert changed != document
        with pytest.raises(ApprovalError, match="does not match the document"):
            judge((changed, signature))
    with pytest.raises(ApprovalError, match="is about"):
        judge((document.replace(SUBJECT.encode(), b"cd" * 32), signature))
    with pytest.raises(ApprovalError, match="does not match the document"):
        judge((document.replace(SUBJECT.encode(), b"cd" * 32), signature), subject="cd" * 32)


DOCUMENT, SIGNATURE = signed()


@given(st.integers(0, len(DOCUMENT) - 1), st.integers(1, 255))
def test_no_byte_of_a_document_can_be_changed(place: int, mask: int) -> None:
    changed = bytearray(DOCUMENT)
    changed[place] ^= mask
    with pytest.raises(ApprovalError, match="found 0; not counted"):
        judge((bytes(changed), SIGNATURE))


@given(st.integers(0, len(SIGNATURE) - 1), st.integers(1, 255))
def test_no_byte_of_a_signature_can_be_changed(place: int, mask: int) -> None:
    changed = SIGNATURE[:place] + chr(ord(SIGNATURE[place]) ^ mask) + SIGNATURE[place + 1 :]
    with pytest.raises(ApprovalError, match="found 0; not counted"):
        judge((DOCUMENT, changed))


def test_no_single_bit_of_a_signature_can_be_changed() -> None:
    """All of them: base64 has spare bits and line ends have several forms, which chance would rarely meet."""
    for place in range(len(SIGNATURE)):
        for bit in range(7):
            changed = SIGNATURE[:place] + chr(ord(SIGNATURE[place]) ^ (1 << bit)) + SIGNATURE[place + 1 :]
            with pytest.raises(ApprovalError, match="found 0; not counted"):
                judge((DOCUMENT, changed))


@given(st.binary(max_size=300), st.text(max_size=300))
def test_garbage_is_refused_and_does_not_hide_what_is_valid(document: bytes, signature: str) -> None:
    garbage: list[Pair] = [(document, signature), (DOCUMENT, signature), (document, SIGNATURE)]
    with pytest.raises(ApprovalError, match="found 0; not counted"):
        judge(*garbage)
    assert judge(*garbage, (DOCUMENT, SIGNATURE)) == ["rev"]


@pytest.mark.parametrize(
    "spell",
    [
        lambda s: s.replace("\n", "\r\n"),
        lambda s: s.rstrip("\n"),
        lambda s: "\n" + s,
        lambda s: s.replace("\n", "\v"),
        lambda s: "\n".join([sshsig.BEGIN, "".join(s.splitlines()[1:-1]), sshsig.END]) + "\n",
    ],
)
def test_a_signature_has_one_spelling(spell: Callable[[str], str]) -> None:
    with pytest.raises(ApprovalError, match="not spelled as ssh-keygen writes it"):
        judge((DOCUMENT, spell(SIGNATURE)))


def test_a_signature_cut_or_of_other_contents() -> None:
    blob = base64.b64decode("".join(SIGNATURE.splitlines()[1:-1]))
    for changed in (
        blob[:-1],
        blob + b"x",
        blob[:50],
        b"",
        blob.replace(b"sha512", b"sha256"),
        blob.replace(b"ssh-ed25519", b"ssh-ed25518"),
    ):
        text = base64.b64encode(changed).decode()
        armoured = "\n".join([sshsig.BEGIN, *(text[i : i + 70] for i in range(0, len(text), 70)), sshsig.END]) + "\n"
        with pytest.raises(ApprovalError, match="found 0; not counted"):
            judge((DOCUMENT, armoured))


def test_two_people_make_a_quorum_of_two() -> None:
    first, second = signed("rev", rules=TWO), signed("sec", rules=TWO)
    assert sorted(judge(first, second, rules=TWO)) == ["rev", "sec"]
    for pairs in ((first,), (first, first), (first, signed("rev", rules=TWO, nonce="11")), (first, signed("eve", rules=TWO))):
        with pytest.raises(ApprovalError, match="needs 2 approvals by distinct keys, found 1"):
            judge(*pairs, rules=TWO)


def test_the_order_of_approvals_changes_nothing() -> None:
    pairs = [signed("rev", rules=TWO, nonce=str(n)) for n in range(4)] + [signed("sec", rules=TWO), (b"x", "y")]

    def run(order: list[Pair]) -> object:
        return require_quorum(order, kind="publish", subject=SUBJECT, proposer="eve", rules=TWO, now=NOW)

    assert run(pairs) == run(pairs[::-1]) == run(pairs[3:] + pairs[:3])
    messages = []
    for order in (pairs[:4], pairs[3::-1]):
        with pytest.raises(ApprovalError) as caught:
            run([*order, (b"x", "y")])
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_one_key_under_two_names_counts_once() -> None:
    rules = Rules(TWO.policy_text, line("rev", "rev") + line("twin", "rev") + line("eve", "eve"), TWO.tombstones)
    pairs = [signed("rev", rules=rules), signed("rev", rules=rules, approver="twin")]
    with pytest.raises(ApprovalError, match="found 1; not counted: .*says approver 'twin'"):
        judge(*pairs, rules=rules)


def test_one_key_under_two_names_that_are_valid_at_different_times_counts_once() -> None:
    options = 'namespaces="runview-publish",valid-{}="20261128Z"'
    signers = line("rev", "rev", options.format("before")) + line("twin", "rev", options.format("after"))
    rules = Rules(TWO.policy_text, signers, TWO.tombstones)
    pairs = [signed("rev", rules=rules, now=NOW - timedelta(days=1)), signed("rev", rules=rules, approver="twin")]
    one = Rules(POLICY, signers, TWO.tombstones)
    assert judge(signed("rev", rules=one, approver="twin"), rules=one) == ["twin"], "each alone is valid"
    with pytest.raises(ApprovalError, match="needs 2 approvals by distinct keys, found 1"):
        judge(*pairs, rules=rules)


def test_one_person_with_two_keys_counts_once() -> None:
    rules = Rules(TWO.policy_text, line("rev", "rev") + line("rev", "sec"), TWO.tombstones)
    with pytest.raises(ApprovalError, match="needs 2 approvals by distinct keys, found 1"):
        judge(signed("rev", rules=rules), signed("sec", rules=rules, approver="rev"), rules=rules)


@pytest.mark.parametrize(
    ("signers", "key", "approver"),
    [
        (line("eve", "eve") + line("rev", "eve"), "eve", "eve"),
        (line("rev", "eve") + line("eve", "eve"), "eve", "rev"),
        (line("rev,eve", "eve"), "eve", "rev"),
        (line("eve", "sec") + line("rev,eve", "eve"), "eve", "rev"),
        (line("eve", "eve") + line("eve", "sec"), "sec", "eve"),
        (line("eve,alias", "sec") + line("alias", "rev"), "rev", "alias"),
        (line("alias", "rev") + line("other,alias", "eve") + line("eve", "eve"), "rev", "alias"),
    ],
)
def test_the_proposer_does_not_count_under_another_name_or_key(signers: str, key: str, approver: str) -> None:
    rules = Rules(POLICY, signers, RULES.tombstones)
    with pytest.raises(ApprovalError, match="was made by the proposer 'eve'"):
        judge(signed(key, rules=rules, approver=approver), rules=rules)
    assert judge(signed(key, rules=rules, approver=approver, proposer="ann"), rules=rules, proposer="ann") == [approver]


def test_policy_signers_and_deletions_that_change_make_it_lapse() -> None:
    pair = signed()
    for rules, message in (
        (Rules(POLICY + "# looser\n", SIGNERS, RULES.tombstones), "policy or signers have changed"),
        (Rules(POLICY, SIGNERS + line("new", "stranger"), RULES.tombstones), "policy or signers have changed"),
        (Rules(POLICY, SIGNERS + "\n", RULES.tombstones), "policy or signers have changed"),
        (Rules(POLICY, SIGNERS, tombstones_digest(["x"])), "deletion list has changed"),
    ):
        with pytest.raises(ApprovalError, match=message):
            judge(pair, rules=rules)
        assert judge(signed(rules=rules), rules=rules) == ["rev"]
    assert tombstones_digest(["b", "a"]) == tombstones_digest(["a", "b"]) != tombstones_digest(["ab"])


def test_a_rejection_by_a_signer_refuses_whatever_else_is_filed() -> None:
    no = signed("sec", decision="reject")
    for pairs in ((signed(), no), (no, signed()), (no,)):
        with pytest.raises(ApprovalError, match=f"publish of {SUBJECT} was rejected by sec"):
            judge(*pairs)


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": "00" * 32},
        {"tombstones": "00" * 32},
        {"proposer": "sec"},
        {"approved_at": "2026-11-28T13:00:00+00:00"},
        {"expires_at": "2030-01-01T00:00:00+00:00"},
        {"decision": "no"},
    ],
)
def test_a_rejection_stands_when_an_approval_would_have_lapsed(changes: dict[str, str]) -> None:
    with pytest.raises(ApprovalError, match="was rejected by sec"):
        judge(signed(), signed("sec", **{"decision": "reject"} | changes))


def test_the_proposer_can_reject_too() -> None:
    with pytest.raises(ApprovalError, match="was rejected by eve"):
        judge(signed(), signed("eve", decision="reject"))


def test_who_cannot_reject() -> None:
    document, signature = signed("sec", decision="reject")
    assert judge(signed(), signed("stranger", decision="reject")) == ["rev"]
    assert judge(signed(), (document, signature.replace("A", "B", 1))) == ["rev"]
    assert judge(signed(), (signed("sec", decision="reject", nonce="1")[0], signature)) == ["rev"]
    assert judge(signed(), signed("sec", decision="reject", subject="cd" * 32)) == ["rev"]
    assert judge(signed(), signed("sec", decision="reject", namespace="runview-recipe")) == ["rev"]
    assert judge(signed(), signed("sec", decision="reject", expires_at=NOW.isoformat())) == ["rev"], "an expired one"
    with pytest.raises(ApprovalError, match="is a rejection that expired"):
        judge(signed("sec", decision="reject", expires_at=NOW.isoformat()))


@pytest.mark.parametrize(
    ("signers", "message"),
    [
        (line("*", "rev"), "line 1: .* pattern"),
        (SIGNERS + line("rev*", "rev"), "line 4: .* pattern"),
        (line("rev,!eve", "rev"), "line 1: .* pattern"),
        (line("rev", "rev", 'namespaces="*"'), "line 1: .* pattern"),
        (line("rev", "rev", 'namespaces="runview-?"'), "line 1: .* pattern"),
        (line("rev", "rev", ""), "namespaces=.* is missing"),
        (line("rev", "rev", 'cert-authority,namespaces="runview-publish"'), "not supported"),
        (SIGNERS + "# see the wiki\r" + line("mallory", "stranger"), "line separators"),
        (SIGNERS + "# see the wiki\u2028" + line("mallory", "stranger"), "line separators"),
        (SIGNERS + "# see the wiki\x0b" + line("mallory", "stranger"), "line separators"),
    ],
)
def test_signers_that_are_refused(signers: str, message: str) -> None:
    rules = Rules(POLICY, signers, RULES.tombstones)
    with pytest.raises(ApprovalError, match=f"allowed_signers is refused: .*{message}"):
        judge(signed(rules=rules), rules=rules)


def test_a_key_signs_only_for_the_kinds_it_is_listed_for() -> None:
    rules = Rules(POLICY, line("rev", "rev", 'namespaces="runview-recipe"'), RULES.tombstones)
    with pytest.raises(ApprovalError, match="not allowed to sign in namespace 'runview-publish'"):
        judge(signed(rules=rules), rules=rules)


def test_a_key_that_was_not_valid_when_it_signed() -> None:
    rules = Rules(POLICY, line("rev", "rev", 'namespaces="runview-publish",valid-before="20261128Z"'), RULES.tombstones)
    with pytest.raises(ApprovalError, match="was not valid at 2026-11-28T12"):
        judge(signed(rules=rules), rules=rules)
    assert judge(signed(rules=rules, now=NOW - timedelta(days=1)), rules=rules) == ["rev"]


def test_signers_with_crlf_and_comments_are_read() -> None:
    rules = Rules(POLICY, "# 검토자\r\n" + SIGNERS.replace("\n", "\r\n"), RULES.tombstones)
    assert judge(signed(rules=rules), rules=rules) == ["rev"]


def test_a_kind_without_quorum() -> None:
    with pytest.raises(ApprovalError, match="no quorum for kind 'deletion'"):
        judge(kind="deletion")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("label", "not valid TOML"),
        ("valid_days = 1", r"\[quorum\] must map"),
        ("valid_days = 1\n[quorum]", r"\[quorum\] must map"),
        ("valid_days = 1\n[quorum]\npublish = 0", r"\[quorum\] must map"),
        ("valid_days = 1\n[quorum]\npublish = true", r"\[quorum\] must map"),
        ("valid_days = 1\n[quorum]\npublish = -1", r"\[quorum\] must map"),
        ("[quorum]\npublish = 1", "valid_days must be"),
        ("valid_days = 0\n[quorum]\npublish = 1", "valid_days must be"),
        ("valid_days = 1.5\n[quorum]\npublish = 1", "valid_days must be"),
        ("valid_days = 99999999999\n[quorum]\npublish = 1", "valid_days must be"),
        ("valid_days = 1\nquorom = 1\n[quorum]\npublish = 1", "unknown key 'quorom'"),
    ],
)
def test_policies_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(ApprovalError, match=message):
        parse_policy(text)
    with pytest.raises(ApprovalError, match=message):
        judge(signed(), rules=Rules(text, SIGNERS, RULES.tombstones))


def test_the_document_that_is_signed_is_pinned() -> None:
    document = approval_document("publish", SUBJECT, approver="rev", proposer="eve", rules=RULES, now=NOW, nonce="00")
    assert document == (
        b'{"approved_at":"2026-11-28T12:00:00+00:00","approver":"rev","decision":"approve","expires_at":"2026-12-28T12:00:00+00:00",'
        b'"kind":"publish","nonce":"00","policy":"' + RULES.policy_digest.encode() + b'","proposer":"eve","subject":"'
        b"" + SUBJECT.encode() + b'","tombstones":"' + RULES.tombstones.encode() + b'"}'
    )
    assert set(json.loads(document)) == set(approvals.FIELDS)
    with pytest.raises(ValueError, match="decision"):
        approval_document("publish", SUBJECT, approver="rev", proposer="eve", rules=RULES, now=NOW, nonce="00", decision="maybe")


# C29: the manifest was changed after approval and its checksum file made again.


def test_case_c29_a_manifest_changed_after_approval_is_refused() -> None:
    approved, changed = ((CASE / f"manifest_{name}.json").read_bytes() for name in ("approved", "changed"))
    filed = json.loads((CASE / "approval.json").read_text())
    checksum, name = (CASE / "SHA256SUMS_recomputed").read_text().split()
    assert (checksum, name) == (sha256_hex(changed), "manifest_changed.json"), "the checksum file agrees with the changed bytes"
    assert filed["manifest_sha256"] == sha256_hex(approved)
    moment = datetime.fromisoformat(filed["time"])
    signers = line(filed["approver"], "rev") + line("eve", "eve")
    rules = Rules(POLICY, signers, RULES.tombstones)
    document = approval_document(
        "publish", filed["manifest_sha256"], approver=filed["approver"], proposer="eve", rules=rules, now=moment, nonce="00"
    )
    pair = (document, sshsig.sign(KEYS["rev"], document, "runview-publish"))
    later = moment + timedelta(hours=1)
    assert judge(pair, subject=sha256_hex(approved), rules=rules, now=later) == ["reviewer-1"]
    with pytest.raises(
        ApprovalError, match=f"publish of {checksum} needs 1 approvals by distinct keys, found 0; .*is about {sha256_hex(approved)}"
    ):
        judge(pair, subject=sha256_hex(changed), rules=rules, now=later)
