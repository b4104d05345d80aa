"""Keys on disk: the HMAC key for deletion identifiers, signing keys, allowed signers and policy. All lie outside the lake."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)
from pipeline.raw_evidence.identifiers import DeletionKey
from runview import approval as sshsig

from pipeline.errors import ApprovalError, SourceError
from pipeline.governance.approvals import Rules

DEMO_PROPOSER, DEMO_REVIEWER = "demo-proposer", "demo-reviewer"
DEMO_POLICY = """\
# Approval policy of the demonstration: throw-away keys, made on this machine. Replace it before real use.
label = "demo"
valid_days = 30
[quorum]
publish = 1
"""


class KeyStore:
    """A folder with `deletion_key.json`, `allowed_signers`, `policy.toml` and private keys named after their principal."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def deletion_key(self) -> DeletionKey:
        """The current HMAC key. Raises SourceError when there is none: no key, no intake."""
        path = self.folder / "deletion_key.json"
        if not path.exists():
            raise SourceError(f"no deletion key at {path}; nothing is taken in without one. Make it with `runviewctl keys init`")
        raw = json.loads(path.read_text())
        return DeletionKey(raw["key_id"], bytes.fromhex(raw["secret"]))

    def rules(self, tombstones: str) -> Rules:
        """Policy and signers in force. Raises ApprovalError naming the file that is missing."""
        for name in ("policy.toml", "allowed_signers"):
            if not (self.folder / name).exists():
                raise ApprovalError(
                    f"no {name} in {self.folder}; publication needs it. Make a demonstration one with `runviewctl keys init`"
                )
        return Rules((self.folder / "policy.toml").read_text(), (self.folder / "allowed_signers").read_text(), tombstones)

    def principals(self) -> list[str]:
        """Names whose private key lies in the folder."""
        return sorted(path.stem for path in self.folder.glob("*.key"))

    def sign(self, principal: str, document: bytes, kind: str) -> str:
        """Armoured SSH signature in the namespace `runview-<kind>`. Raises ApprovalError when the key is not there."""
        path = self.folder / f"{principal}.key"
        if not path.exists():
            raise ApprovalError(f"no private key for {principal!r} in {self.folder}; keys there: {self.principals()}")
        key = load_ssh_private_key(path.read_bytes(), password=None)
        if not isinstance(key, Ed25519PrivateKey):
            raise ApprovalError(f"key of {principal!r} is not Ed25519")
        return sshsig.sign(key, document, f"runview-{kind}")

    def make_demo_keys(self) -> list[str]:
        """What is missing of: a deletion key, a proposer, a reviewer, a policy for the demonstration. Existing files stay.

        Returns: names of the files made. Signers are made only where there are none, so that nobody's list is widened.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        made = []
        if not (self.folder / "deletion_key.json").exists():
            secret = {"key_id": secrets.token_hex(4), "secret": secrets.token_hex(32)}
            _private(self.folder / "deletion_key.json", json.dumps(secret).encode())
            made.append("deletion_key.json")
        if not (self.folder / "allowed_signers").exists():
            lines = []
            for principal in (DEMO_PROPOSER, DEMO_REVIEWER):
                key = Ed25519PrivateKey.generate()
                private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
                _private(self.folder / f"{principal}.key", private)
                public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
                lines.append(f'{principal} namespaces="runview-publish" {public}\n')
                made.append(f"{principal}.key")
            _private(self.folder / "allowed_signers", "".join(lines).encode())
            made.append("allowed_signers")
        if not (self.folder / "policy.toml").exists():
            _private(self.folder / "policy.toml", DEMO_POLICY.encode())
            made.append("policy.toml")
        return made


def _private(path: Path, data: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as handle:
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(temporary, path)
