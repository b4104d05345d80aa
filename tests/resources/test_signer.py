"""Keys on disk: private, made once, never replaced, and the same files that ssh-keygen works with."""

import json
import multiprocessing
import os
import shutil
import stat
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat

from pipeline.errors import ApprovalError, SourceError
from pipeline.governance.approvals import approval_document, require_quorum, tombstones_digest
from resources.signer import DEMO_PROPOSER, DEMO_REVIEWER, KeyStore
from runview import approval as sshsig

NAMES = ["allowed_signers", "deletion_key.json", "demo-proposer.key", "demo-reviewer.key", "policy.toml"]
needs_ssh_keygen = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not on this machine")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def made(folder: Path) -> KeyStore:
    store = KeyStore(folder)
    store.make_demo_keys()
    return store


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_only_the_owner_reads_them(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        assert sorted(KeyStore(tmp_path / "a" / "keys").make_demo_keys()) == NAMES
    finally:
        os.umask(before)
    folder = tmp_path / "a" / "keys"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == dict.fromkeys(NAMES, 0o600)


def test_a_folder_that_others_can_read_is_closed(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir(mode=0o755)
    made(tmp_path / "keys")
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700


def test_twice_changes_nothing(tmp_path: Path) -> None:
    store = made(tmp_path)
    first, key = contents(tmp_path), store.deletion_key()
    assert store.make_demo_keys() == []
    assert contents(tmp_path) == first
    assert KeyStore(tmp_path).deletion_key() == key


def test_two_folders_share_no_key(tmp_path: Path) -> None:
    one, two = contents(made(tmp_path / "1").folder), contents(made(tmp_path / "2").folder)
    assert [name for name in NAMES if one[name] == two[name]] == ["policy.toml"]


@pytest.mark.parametrize("missing", NAMES)
def test_what_is_missing_is_made_and_the_rest_stays(tmp_path: Path, missing: str) -> None:
    store = made(tmp_path)
    before = contents(tmp_path)
    (tmp_path / missing).unlink()
    again = store.make_demo_keys()
    # a key is not made for signers that are there: nobody's list is widened, and the name would not match its line
    assert again == ([] if missing.endswith(".key") else [missing])
    after = contents(tmp_path)
    assert {name: data for name, data in after.items() if name != missing} == {n: d for n, d in before.items() if n != missing}
    if missing == "allowed_signers":
        assert after[missing] == before[missing], "the signers are those of the private keys that are there"


def test_one_private_key_left_by_a_killed_attempt_is_used(tmp_path: Path) -> None:
    made(tmp_path / "other")
    private = (tmp_path / "other" / f"{DEMO_REVIEWER}.key").read_bytes()
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / f"{DEMO_REVIEWER}.key").write_bytes(private)
    assert sorted(KeyStore(tmp_path / "keys").make_demo_keys()) == [name for name in NAMES if name != f"{DEMO_REVIEWER}.key"]
    assert (tmp_path / "keys" / f"{DEMO_REVIEWER}.key").read_bytes() == private
    lines = (tmp_path / "keys" / "allowed_signers").read_text().splitlines()
    assert lines[1] == (tmp_path / "other" / "allowed_signers").read_text().splitlines()[1]


def test_own_signers_and_policy_are_never_widened(tmp_path: Path) -> None:
    (tmp_path / "allowed_signers").write_text("# ours\n")
    (tmp_path / "policy.toml").write_text("valid_days = 1\n[quorum]\npublish = 2\n")
    assert KeyStore(tmp_path).make_demo_keys() == ["deletion_key.json"]
    assert sorted(contents(tmp_path)) == ["allowed_signers", "deletion_key.json", "policy.toml"]
    assert (tmp_path / "allowed_signers").read_text() == "# ours\n"


def _make(folder: str, start: object) -> None:
    start.wait()  # type: ignore[attr-defined]
    KeyStore(folder).make_demo_keys()


def test_several_processes_at_once_end_with_one_set_of_keys(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    for attempt in range(5):
        folder = tmp_path / str(attempt)
        start = context.Barrier(4)
        workers = [context.Process(target=_make, args=(str(folder), start)) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert [worker.exitcode for worker in workers] == [0] * 4
        assert sorted(contents(folder)) == NAMES, "no temporary file is left"
        _sign_and_publish(KeyStore(folder))


def _sign_and_publish(store: KeyStore) -> None:
    rules, now = store.rules(tombstones_digest([])), datetime(2026, 11, 28, tzinfo=UTC)
    document = approval_document("publish", "ab" * 32, approver=DEMO_REVIEWER, proposer=DEMO_PROPOSER, rules=rules, now=now, nonce="0")
    filed = [(document, store.sign(DEMO_REVIEWER, document, "publish"))]
    accepted = require_quorum(filed, kind="publish", subject="ab" * 32, proposer=DEMO_PROPOSER, rules=rules, now=now)
    assert [a.approver for a in accepted] == [DEMO_REVIEWER]


def test_what_the_demonstration_signs_is_accepted(tmp_path: Path) -> None:
    store = made(tmp_path)
    assert store.principals() == [DEMO_PROPOSER, DEMO_REVIEWER]
    _sign_and_publish(store)
    document = b"{}"
    signature = store.sign(DEMO_REVIEWER, document, "deletion")
    allowed = sshsig.parse_allowed_signers((tmp_path / "allowed_signers").read_text())
    with pytest.raises(sshsig.ApprovalError, match="not allowed to sign in namespace 'runview-deletion'"):
        sshsig.verify(signature, document, "runview-deletion", allowed)


@needs_ssh_keygen
def test_ssh_keygen_reads_the_keys_and_the_signers(tmp_path: Path) -> None:
    store = made(tmp_path)
    message, namespace = b'{"kind":"publish"}', "runview-publish"

    def keygen(*words: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["ssh-keygen", *words], cwd=tmp_path, input=data, capture_output=True, check=False)

    lines = dict(zip(store.principals(), (tmp_path / "allowed_signers").read_text().splitlines(), strict=True))
    for principal in store.principals():
        public = keygen("-y", "-f", f"{principal}.key")
        assert public.returncode == 0, public.stderr
        assert public.stdout.decode().split()[:2] == lines[principal].split()[2:4]
    (tmp_path / "ours.sig").write_text(store.sign(DEMO_REVIEWER, message, "publish"))
    verify = ["-Y", "verify", "-f", "allowed_signers", "-I", DEMO_REVIEWER, "-n", namespace, "-s"]
    assert keygen(*verify, "ours.sig", data=message).returncode == 0
    assert keygen(*verify, "ours.sig", data=message + b" ").returncode != 0
    (tmp_path / "message").write_bytes(message)
    assert keygen("-Y", "sign", "-f", f"{DEMO_REVIEWER}.key", "-n", namespace, "message").returncode == 0
    assert (tmp_path / "message.sig").read_text() == store.sign(DEMO_REVIEWER, message, "publish")


def test_nothing_is_taken_in_without_a_deletion_key(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no deletion key at .*deletion_key.json; nothing is taken in.*runviewctl keys init"):
        KeyStore(tmp_path).deletion_key()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        '{"key_id": "k"}',
        '{"key_id": "k", "secret": "5ec2e7"}',
        '{"key_id": "k", "secret": "5ec2e7zz"}',
        '{"key_id": 1}',
    ],
)
def test_a_broken_deletion_key_is_named_and_its_secret_is_not(tmp_path: Path, text: str) -> None:
    (tmp_path / "deletion_key.json").write_text(text)
    with pytest.raises(SourceError, match="does not hold a deletion key") as caught:
        KeyStore(tmp_path).deletion_key()
    assert "5ec2e7" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert KeyStore(tmp_path).make_demo_keys() != []
    assert (tmp_path / "deletion_key.json").read_text() == text, "a broken key is not replaced: it may be restored"


def test_the_deletion_key_is_the_one_in_the_file(tmp_path: Path) -> None:
    key = made(tmp_path).deletion_key()
    raw = json.loads((tmp_path / "deletion_key.json").read_bytes())
    assert (key.key_id, key.secret.hex()) == (raw["key_id"], raw["secret"])
    assert len(key.secret) == 32
    assert raw["secret"] not in repr(key)


@pytest.mark.parametrize("name", ["policy.toml", "allowed_signers"])
def test_publication_needs_policy_and_signers(tmp_path: Path, name: str) -> None:
    store = made(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(ApprovalError, match=rf"no {name} in .*runviewctl keys init"):
        store.rules("")
    (tmp_path / name).write_bytes(b"# \xff")
    with pytest.raises(ApprovalError, match=rf"{name} is not UTF-8 at byte 2"):
        store.rules("")


def test_rules_are_the_bytes_of_the_files(tmp_path: Path) -> None:
    store = made(tmp_path)
    data = (tmp_path / "allowed_signers").read_bytes()
    (tmp_path / "allowed_signers").write_bytes(data + b"# a\r# b\r\n")
    rules = store.rules("t")
    assert rules.signers_text.encode() == data + b"# a\r# b\r\n"
    assert (rules.policy_text.encode(), rules.tombstones) == ((tmp_path / "policy.toml").read_bytes(), "t")


def test_keys_that_cannot_sign(tmp_path: Path) -> None:
    store = made(tmp_path / "keys")
    with pytest.raises(ApprovalError, match=r"no private key for 'ann' in .*; keys there: \['demo-proposer', 'demo-reviewer'\]"):
        store.sign("ann", b"{}", "publish")
    outside = tmp_path / "outside.key"
    outside.write_bytes((tmp_path / "keys" / f"{DEMO_REVIEWER}.key").read_bytes())
    for name in ("../outside", str(tmp_path / "outside"), ""):
        with pytest.raises(ApprovalError, match="no private key for"):
            store.sign(name, b"{}", "publish")
    locked = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    curve = generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    broken = {b"garbage": "is not a private SSH key", b"": "is not a private SSH key", locked: "is not a private SSH key", curve: "Ed25519"}
    for data, message in broken.items():
        (tmp_path / "keys" / "ann.key").write_bytes(data)
        with pytest.raises(ApprovalError, match=message):
            store.sign("ann", b"{}", "publish")


@needs_ssh_keygen
def test_a_key_with_a_passphrase_says_how_to_sign(tmp_path: Path) -> None:
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret phrase", "-f", str(tmp_path / "ann.key")]
    subprocess.run(words, check=True, capture_output=True)
    with pytest.raises(ApprovalError, match="without passphrase; sign with `ssh-keygen -Y sign`"):
        KeyStore(tmp_path).sign("ann", b"{}", "publish")
