"""Keys on disk: the HMAC key for deletion identifiers, signing keys, allowed signers and policy. All lie outside the lake."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)

from pipeline.errors import ApprovalError, SourceError
from pipeline.governance.approvals import Rules
from pipeline.raw_evidence.identifiers import DeletionKey
from resources import durable
from runview import approval as sshsig

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
        try:
            raw = json.loads(path.read_bytes())
            return DeletionKey(raw["key_id"], bytes.fromhex(raw["secret"]))
        except (ValueError, KeyError, TypeError):
            # `from None`: the cause can hold the secret
            raise SourceError(
                f"{path} does not hold a deletion key: key_id ([a-z0-9._-]+) and secret (32 bytes or more, hex) expected. Restore it from "
                "a copy: identifiers made with another key are not found again"
            ) from None

    def rules(self, tombstones: str) -> Rules:
        """Policy and signers in force. Raises ApprovalError naming the file that is missing."""
        return Rules(self._text("policy.toml"), self._text("allowed_signers"), tombstones)

    def _text(self, name: str) -> str:
        path = self.folder / name
        if not path.exists():
            raise ApprovalError(f"no {name} in {self.folder}; publication needs it. Make a demonstration one with `runviewctl keys init`")
        try:
            # decoded from bytes: text mode would turn a lone CR into the end of a line, and its digest would not be the file's
            return path.read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise ApprovalError(f"{path} is not UTF-8 at byte {error.start}; write it again as UTF-8") from error

    def principals(self) -> list[str]:
        """Names whose private key lies in the folder."""
        return sorted(path.name.removesuffix(".key") for path in self.folder.glob("*.key"))

    def sign(self, principal: str, document: bytes, kind: str) -> str:
        """Armoured SSH signature in the namespace `runview-<kind>`. Raises ApprovalError when the key is not there."""
        return sshsig.sign(self._private_key(principal), document, f"runview-{kind}")

    def _private_key(self, principal: str) -> Ed25519PrivateKey:
        if principal not in self.principals():
            raise ApprovalError(f"no private key for {principal!r} in {self.folder}; keys there: {self.principals()}")
        path = self.folder / f"{principal}.key"
        try:
            key = load_ssh_private_key(path.read_bytes(), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise ApprovalError(
                f"{path} is not a private SSH key without passphrase; sign with `ssh-keygen -Y sign`, or restore it from a copy"
            ) from error
        if not isinstance(key, Ed25519PrivateKey):
            raise ApprovalError(f"{path} is not an Ed25519 key; sign with `ssh-keygen -Y sign`")
        return key

    def make_demo_keys(self) -> list[str]:
        """What is missing of: a deletion key, a proposer, a reviewer, a policy for the demonstration. Existing files stay.

        Returns: names of the files made. Signers are made only where there are none, so that nobody's list is widened.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        secret = {"key_id": secrets.token_hex(4), "secret": secrets.token_hex(32)}
        made = self._make("deletion_key.json", json.dumps(secret).encode())
        if not (self.folder / "allowed_signers").exists():
            lines = []
            for principal in (DEMO_PROPOSER, DEMO_REVIEWER):
                new = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
                made += self._make(f"{principal}.key", new)
                # read back: a killed attempt, or another process, may have made it
                public = self._private_key(principal).public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
                lines.append(f'{principal} namespaces="runview-publish" {public}\n')
            made += self._make("allowed_signers", "".join(lines).encode())
        return made + self._make("policy.toml", DEMO_POLICY.encode())

    def _make(self, name: str, data: bytes) -> list[str]:
        """Write a file only its owner can read, whole or not at all, unless it is there. Returns its name when it was made."""
        path = self.folder / name
        if path.exists():
            return []
        temporary = self.folder / f".{name}.{secrets.token_hex(8)}{durable.TEMPORARY}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as handle:
                handle.write(data)
                handle.flush()
                os.fsync(handle.fileno())
            os.link(temporary, path)  # unlike a rename, never over a file that another process made meanwhile
        except FileExistsError:
            return []
        finally:
            temporary.unlink()
        durable.fsync_folder(self.folder)
        return [name]
