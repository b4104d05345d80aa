"""Signatures against the real ssh-keygen, in both directions, and every reason to refuse one."""

import base64
import json
import shutil
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from runview import ApprovalError, RunView
from runview.approval import key_fingerprint, parse_allowed_signers, sign, verify, verify_publication

NAMESPACE = "runview-publish"
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
needs_ssh_keygen = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not on this machine")


def public_line(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def signer_line(key: Ed25519PrivateKey, principal: str = "rev@example.org", options: str = f'namespaces="{NAMESPACE}"') -> str:
    return f"{principal} {options} {public_line(key)}\n"


def test_signature_bytes_are_pinned() -> None:
    """Ed25519 is deterministic, so the whole armored text is."""
    assert sign(KEY, b"message", NAMESPACE) == SIGNATURE


def test_sign_and_verify() -> None:
    allowed = parse_allowed_signers("# reviewers\n\n" + signer_line(OTHER, "else@example.org") + signer_line(KEY))
    verified = verify(sign(KEY, b"message", NAMESPACE), b"message", NAMESPACE, allowed)
    assert verified.principal == "rev@example.org"
    blob = base64.b64decode(public_line(KEY).split()[1])
    assert verified.fingerprint == key_fingerprint(blob)
    assert verified.fingerprint.startswith("SHA256:")


@needs_ssh_keygen
def test_ssh_keygen_accepts_ours_and_we_accept_its(tmp_path: Path) -> None:
    private = tmp_path / "key"
    private.write_bytes(KEY.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()))
    private.chmod(0o600)
    (tmp_path / "key.pub").write_text(public_line(KEY) + "\n")
    (tmp_path / "signers").write_text(signer_line(KEY))
    message = b'{"kind":"publish"}'
    (tmp_path / "ours.sig").write_text(sign(KEY, message, NAMESPACE))
    check = ["ssh-keygen", "-Y", "verify", "-f", "signers", "-I", "rev@example.org", "-n", NAMESPACE, "-s", "ours.sig"]
    accepted = subprocess.run(check, input=message, cwd=tmp_path, capture_output=True)
    assert accepted.returncode == 0, accepted.stderr
    assert subprocess.run(check, input=message + b" ", cwd=tmp_path, capture_output=True).returncode != 0
    (tmp_path / "message").write_bytes(message)
    subprocess.run(["ssh-keygen", "-Y", "sign", "-f", "key", "-n", NAMESPACE, "message"], cwd=tmp_path, check=True, capture_output=True)
    theirs = (tmp_path / "message.sig").read_text()
    verified = verify(theirs, message, NAMESPACE, parse_allowed_signers(signer_line(KEY)))
    listed = subprocess.run(["ssh-keygen", "-l", "-f", "key.pub"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert verified.fingerprint == listed.stdout.split()[1]
    assert theirs == sign(KEY, message, NAMESPACE)


def test_what_verify_refuses() -> None:
    allowed = parse_allowed_signers(
        signer_line(KEY, options=f'namespaces="{NAMESPACE},runview-policy",valid-after="20260101Z",valid-before="20270101000000Z"')
    )
    good = sign(KEY, b"m", NAMESPACE)
    verify(good, b"m", NAMESPACE, allowed, at=datetime(2026, 6, 1, tzinfo=UTC))
    for armored, message, namespace, at, reason in [
        (good, b"n", NAMESPACE, None, "does not match"),
        (good, b"m", "runview-policy", None, "is for namespace 'runview-publish'"),
        (sign(OTHER, b"m", NAMESPACE), b"m", NAMESPACE, None, "not among the allowed"),
        (sign(KEY, b"m", "runview-deletion"), b"m", "runview-deletion", None, "not allowed to sign in namespace"),
        (good, b"m", NAMESPACE, datetime(2025, 12, 31, tzinfo=UTC), "was not valid at"),
        (good, b"m", NAMESPACE, datetime(2027, 1, 1, tzinfo=UTC), "was not valid at"),
        (good.replace("BEGIN", "BEGINN"), b"m", NAMESPACE, None, "armored"),
        (good.replace("U1NI", "!!!!"), b"m", NAMESPACE, None, "not base64"),
        (good.replace("U1NIU0lH", "U1NIU0lI"), b"m", NAMESPACE, None, "SSHSIG version 1"),
        (good[:120] + "\n-----END SSH SIGNATURE-----", b"m", NAMESPACE, None, "cut short|base64"),
    ]:
        with pytest.raises(ApprovalError, match=reason):
            verify(armored, message, namespace, allowed, at=at)


def test_sha256_signatures_are_refused() -> None:
    text = "".join(sign(KEY, b"m", NAMESPACE).split("\n")[1:-2])
    blob = base64.b64decode(text).replace(b"\x00\x00\x00\x06sha512", b"\x00\x00\x00\x06sha256")
    armored = "-----BEGIN SSH SIGNATURE-----\n" + base64.b64encode(blob).decode() + "\n-----END SSH SIGNATURE-----\n"
    with pytest.raises(ApprovalError, match="uses hash 'sha256'"):
        verify(armored, b"m", NAMESPACE, parse_allowed_signers(signer_line(KEY)))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"rev@example.org {public_line(KEY)}", "namespaces=.* is missing"),
        (signer_line(KEY, options='namespaces=""'), "is missing"),
        (signer_line(KEY, principal="*"), r"'\*' is empty or a pattern"),
        (signer_line(KEY, principal="a@b,!c@d"), "'!c@d'"),
        (signer_line(KEY, principal="a@b,"), "'' is empty"),
        (signer_line(KEY, options='namespaces="runview-*"'), "pattern"),
        (signer_line(KEY, options=f'cert-authority,namespaces="{NAMESPACE}"'), "not supported"),
        (signer_line(KEY, options=f'namespaces="{NAMESPACE}",valid-after="20260101"'), "YYYYMMDD"),
        (signer_line(KEY, options=f'namespaces="{NAMESPACE}",namespaces="x"'), "not supported"),
        ('rev namespaces="x" ssh-ed25519 ????', "not base64"),
        ('rev namespaces="x" ssh-rsa ' + public_line(KEY).split()[1], "not of type ssh-rsa"),
        ('rev namespaces="x"', "key type and key expected"),
    ],
)
def test_signer_lines_that_are_refused(line: str, message: str) -> None:
    with pytest.raises(ApprovalError, match=f"line 2: .*{message}"):
        parse_allowed_signers("# first\n" + line)


@pytest.mark.parametrize("mark", ["\r", "\v", "\f", "\x85", "\u2028", "\u2029"])
def test_a_signer_cannot_hide_behind_a_comment(mark: str) -> None:
    with pytest.raises(ApprovalError, match="line 1: a control or line-ending character"):
        parse_allowed_signers(f"# reviewers{mark}{signer_line(KEY)}")


def test_garbage_armour_and_loose_documents_are_refused_as_approvals() -> None:
    allowed = parse_allowed_signers(signer_line(KEY))
    with pytest.raises(ApprovalError, match="not base64"):
        verify(SIGNATURE.replace("U1NI", "Ü1NI"), b"message", NAMESPACE, allowed)
    plain = document("a" * 64)
    loose = json.dumps(plain).encode()
    with pytest.raises(ApprovalError, match="canonical"):
        verify_publication(loose, sign(KEY, loose, NAMESPACE), view_id="a" * 64, allowed=allowed)
    deep = b"[" * 100_000
    with pytest.raises(ApprovalError):
        verify_publication(deep, sign(KEY, deep, NAMESPACE), view_id="a" * 64, allowed=allowed)


def document(view_id: str, **changes: Any) -> dict[str, Any]:
    return {
        "kind": "publish",
        "subject": view_id,
        "decision": "approve",
        "approver": "rev@example.org",
        "proposer": "eng@example.org",
        "policy": "00" * 32,
        "tombstones": "00" * 32,
        "approved_at": "2026-11-20T10:00:00Z",
        "expires_at": "2026-12-20T10:00:00Z",
        "nonce": "aa",
    } | changes


def record(built: Any, *pairs: tuple[Ed25519PrivateKey, dict[str, Any]]) -> None:
    approvals = []
    for key, fields in pairs:
        data = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
        approvals.append({"document": base64.b64encode(data).decode(), "signature": sign(key, data, NAMESPACE)})
    built.path.with_suffix(".record.json").write_text(json.dumps({"approvals": approvals}))


def test_open_verifies_the_views_approvals(fresh: Callable[..., Any], tmp_path: Path) -> None:
    built = fresh()
    signers = tmp_path / "allowed_signers"
    signers.write_text(signer_line(KEY) + signer_line(OTHER, "second@example.org"))
    first = document(built.view_id)
    second = document(built.view_id, approver="second@example.org")
    record(built, (KEY, first))
    assert [a.principal for a in RunView.open(built.path, allowed_signers=signers).approvals] == ["rev@example.org"]
    with pytest.raises(ApprovalError, match="2 approvals by different keys needed, found 1"):
        RunView.open(built.path, allowed_signers=signers, quorum=2)
    record(built, (KEY, first), (KEY, first))
    with pytest.raises(ApprovalError, match="found 1"):
        RunView.open(built.path, allowed_signers=signers, quorum=2)
    record(built, (KEY, first), (OTHER, second))
    assert len(RunView.open(built.path, allowed_signers=signers, quorum=2).approvals) == 2
    for key, fields, message in [
        (KEY, document("00" * 32), "'subject'"),
        (KEY, document(built.view_id, kind="recipe"), "'kind'"),
        (KEY, document(built.view_id, decision="reject"), "'decision'"),
        (KEY, document(built.view_id, proposer="rev@example.org"), "also the proposer"),
        (KEY, second, "'approver': 'second@example.org' did not sign it"),
        (KEY, document(built.view_id, approved_at="yesterday"), "'approved_at'"),
        (KEY, document(built.view_id, approved_at="2026-11-20T10:00:00"), "time zone"),
        (KEY, document(built.view_id, extra=1), "exactly the fields"),
        (Ed25519PrivateKey.generate(), first, "not among the allowed"),
    ]:
        record(built, (OTHER, second), (key, fields))
        with pytest.raises(ApprovalError, match=message):
            RunView.open(built.path, allowed_signers=signers)
    record(built)
    with pytest.raises(ApprovalError, match="1 approvals by different keys needed, found 0"):
        RunView.open(built.path, allowed_signers=signers)
    built.path.with_suffix(".record.json").write_text("{}")
    with pytest.raises(ApprovalError, match="list `approvals`"):
        RunView.open(built.path, allowed_signers=signers)
    RunView.open(built.path)  # without signers nothing is claimed
    assert RunView.open(built.path).approvals == ()


SIGNATURE = """\
-----BEGIN SSH SIGNATURE-----
U1NIU0lHAAAAAQAAADMAAAALc3NoLWVkMjU1MTkAAAAgA6EHv/POEL4dcN0Y50vAmWfk1j
CbpQ1fHdyGZBJVMbgAAAAPcnVudmlldy1wdWJsaXNoAAAAAAAAAAZzaGE1MTIAAABTAAAA
C3NzaC1lZDI1NTE5AAAAQEEqHuWzomJkTcg4m9vcq8+1kGZTLnqxp8kvQpsAW2kBdirxa+
hGR2Uqt7tWvZyh4z0P3GVbl0CLm9tKrIqOuQk=
-----END SSH SIGNATURE-----
"""
