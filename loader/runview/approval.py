"""SSH signatures (SSHSIG, sha512) over canonical JSON, and the signers they may come from.

Ed25519 by `cryptography` (extra `verify`, imported when used); the same files work with `ssh-keygen -Y sign|verify`.
Hardware (`sk-`) and other key types: verify with `ssh-keygen`.
Source: OpenSSH PROTOCOL.sshsig; ssh-keygen(1), ALLOWED SIGNERS.
"""

import base64
import binascii
import hashlib
import json
import re
import struct
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from runview.canonical import canonical_json
from runview.errors import ApprovalError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

MAGIC = b"SSHSIG"
KEY_TYPE = b"ssh-ed25519"
HASH = b"sha512"
BEGIN, END = "-----BEGIN SSH SIGNATURE-----", "-----END SSH SIGNATURE-----"
FIELDS = (
    "kind",
    "subject",
    "decision",
    "approver",
    "proposer",
    "policy",
    "tombstones",
    "approved_at",
    "expires_at",
    "nonce",
)
_OPTION = re.compile(r'([a-z-]+)(?:="([^"]*)")?(?:,|$)')


@dataclass(frozen=True)
class Signer:
    """One line of an allowed_signers file."""

    principals: tuple[str, ...]
    namespaces: tuple[str, ...]
    key: bytes
    valid_after: datetime | None
    valid_before: datetime | None


@dataclass(frozen=True)
class AllowedSigners:
    signers: tuple[Signer, ...]


@dataclass(frozen=True)
class Verified:
    """Who signed: the key's fingerprint as ssh-keygen prints it, and the signer line's first principal."""

    fingerprint: str
    principal: str


def sign(private_key: "Ed25519PrivateKey", message: bytes, namespace: str) -> str:
    """An armored SSHSIG of the message, as `ssh-keygen -Y sign -n namespace` makes it."""
    _check_namespace(namespace)
    key = _string(KEY_TYPE) + _string(private_key.public_key().public_bytes_raw())
    signature = _string(KEY_TYPE) + _string(private_key.sign(_signed(message, namespace)))
    blob = MAGIC + struct.pack(">I", 1) + _string(key) + _string(namespace.encode()) + _string(b"") + _string(HASH) + _string(signature)
    text = base64.b64encode(blob).decode("ascii")
    return "\n".join([BEGIN, *(text[i : i + 70] for i in range(0, len(text), 70)), END]) + "\n"


def verify(armored: str, message: bytes, namespace: str, allowed: AllowedSigners, *, at: datetime | None = None) -> Verified:
    """Check a signature against message, namespace and signers. With `at`, the signer's validity window must hold it.

    Raises: ApprovalError, saying which of these did not hold.
    """
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError as error:
        raise ApprovalError("verifying signatures needs the extra `verify`: pip install 'runview[verify]'") from error
    _check_namespace(namespace)
    key, found_namespace, hash_name, raw = _parse(armored)
    if found_namespace != namespace.encode():
        raise ApprovalError(f"signature is for namespace {found_namespace.decode('ascii', 'replace')!r}, {namespace!r} expected")
    if hash_name != HASH:
        raise ApprovalError(f"signature uses hash {hash_name.decode('ascii', 'replace')!r}, sha512 expected")
    fingerprint = key_fingerprint(key)
    lines = [signer for signer in allowed.signers if signer.key == key]
    if not lines:
        raise ApprovalError(f"key {fingerprint} is not among the allowed signers")
    lines = [signer for signer in lines if namespace in signer.namespaces]
    if not lines:
        raise ApprovalError(f"key {fingerprint} is not allowed to sign in namespace {namespace!r}")
    if at is not None:
        lines = [s for s in lines if (s.valid_after is None or s.valid_after <= at) and (s.valid_before is None or at < s.valid_before)]
        if not lines:
            raise ApprovalError(f"key {fingerprint} was not valid at {at.isoformat()}")
    try:
        Ed25519PublicKey.from_public_bytes(_public(key)).verify(raw, _signed(message, namespace))
    except InvalidSignature as error:
        raise ApprovalError(f"signature of key {fingerprint} does not match the document; it was changed after signing") from error
    return Verified(fingerprint, lines[0].principals[0])


def parse_allowed_signers(text: str) -> AllowedSigners:
    """Read an allowed_signers file strictly: wildcards, negations, certificate authorities, lines without `namespaces=`
    and validity times without `Z` are refused, naming the line."""
    signers = []
    for number, ended in enumerate(text.split("\n"), 1):
        line = ended.removesuffix("\r")
        if any((ord(mark) < 32 and mark != "\t") or mark in "\x85\u2028\u2029" for mark in line):
            # to other readers such a mark ends the line, so a signer could hide behind a comment
            raise ApprovalError(f"allowed signers line {number}: a control or line-ending character; only LF ends a line")
        words = line.split()
        if not words or line.lstrip().startswith("#"):
            continue
        where = f"allowed signers line {number}"
        options: dict[str, str] = {}
        if len(words) >= 3 and not _is_key_type(words[1]):
            options = _options(words.pop(1), where)
        if len(words) < 3 or not _is_key_type(words[1]):
            raise ApprovalError(f"{where}: principals, options, key type and key expected")
        principals = tuple(words[0].strip('"').split(","))
        namespaces = tuple(item for item in options.get("namespaces", "").split(",") if item)
        if not namespaces:
            raise ApprovalError(f'{where}: namespaces="..." is missing; a key without it could sign for every purpose')
        for pattern in principals + namespaces:
            if not pattern or set(pattern) & set("*?!"):
                raise ApprovalError(f"{where}: {pattern!r} is empty or a pattern; name each principal and namespace in full")
        try:
            key = base64.b64decode(words[2], validate=True)
        except (binascii.Error, ValueError) as error:
            raise ApprovalError(f"{where}: the key is not base64") from error
        if _take(key, where)[0] != words[1].encode():
            raise ApprovalError(f"{where}: the key is not of type {words[1]}")
        signers.append(
            Signer(
                principals,
                namespaces,
                key,
                _time(options.get("valid-after"), where),
                _time(options.get("valid-before"), where),
            )
        )
    return AllowedSigners(tuple(signers))


def key_fingerprint(key: bytes) -> str:
    """`SHA256:...` of a public key in wire format, as `ssh-keygen -l` prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode("ascii").rstrip("=")


def verify_publication(document: bytes, armored: str, *, view_id: str, allowed: AllowedSigners) -> Verified:
    """One approval of a view: signature, then that the document says what is claimed of it. ApprovalError otherwise."""
    try:
        fields: Any = json.loads(document)
    except (ValueError, RecursionError) as error:
        raise ApprovalError("approval document is not JSON") from error
    if not isinstance(fields, dict) or set(fields) != set(FIELDS) or not all(isinstance(v, str) for v in fields.values()):
        raise ApprovalError(f"approval document must have exactly the fields {list(FIELDS)}, each a string")
    if canonical_json(fields) != document:
        raise ApprovalError("approval document is not canonical JSON; sign it again with the pipeline's tools")
    for field, expected in (("kind", "publish"), ("subject", view_id), ("decision", "approve")):
        if fields[field] != expected:
            raise ApprovalError(f"approval field {field!r}: {expected!r} expected, found {fields[field]!r}")
    try:
        approved_at = datetime.fromisoformat(fields["approved_at"])
    except (ValueError, TypeError) as error:
        raise ApprovalError(f"approval field 'approved_at': an ISO 8601 time expected, found {fields['approved_at']!r}") from error
    if approved_at.tzinfo is None:
        raise ApprovalError(f"approval field 'approved_at': a time zone expected, found {fields['approved_at']!r}")
    verified = verify(armored, document, "runview-publish", allowed, at=approved_at)
    principals = {p for s in allowed.signers if key_fingerprint(s.key) == verified.fingerprint for p in s.principals}
    if fields["approver"] not in principals:
        raise ApprovalError(f"approval field 'approver': {fields['approver']!r} did not sign it, {sorted(principals)} did")
    if fields["approver"] == fields["proposer"] or fields["proposer"] in principals:
        raise ApprovalError(f"approver {fields['approver']!r} is also the proposer; somebody else has to approve")
    return Verified(verified.fingerprint, fields["approver"])


def _signed(message: bytes, namespace: str) -> bytes:
    return MAGIC + _string(namespace.encode()) + _string(b"") + _string(HASH) + _string(hashlib.sha512(message).digest())


def _parse(armored: str) -> tuple[bytes, bytes, bytes, bytes]:
    """Key, namespace, hash name and raw Ed25519 signature of an armored SSHSIG."""
    lines = [line.strip() for line in armored.strip().splitlines()]
    if len(lines) < 3 or lines[0] != BEGIN or lines[-1] != END:
        raise ApprovalError("an armored SSH signature expected (BEGIN and END SSH SIGNATURE lines)")
    try:
        blob = base64.b64decode("".join(lines[1:-1]), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ApprovalError("SSH signature is not base64") from error
    if blob[:10] != MAGIC + struct.pack(">I", 1):
        raise ApprovalError("SSHSIG version 1 expected")
    key, rest = _take(blob[10:], "SSH signature")
    namespace, rest = _take(rest, "SSH signature")
    _, rest = _take(rest, "SSH signature")
    hash_name, rest = _take(rest, "SSH signature")
    signature, rest = _take(rest, "SSH signature")
    kind, raw = _take(signature, "SSH signature")
    raw, tail = _take(raw, "SSH signature")
    if kind != KEY_TYPE or rest or tail:
        raise ApprovalError(
            f"an ssh-ed25519 signature expected, found {kind.decode('ascii', 'replace')!r}; "
            "verify other key types with ssh-keygen -Y verify"
        )
    return key, namespace, hash_name, raw


def _public(key: bytes) -> bytes:
    kind, rest = _take(key, "public key")
    raw, tail = _take(rest, "public key")
    if kind != KEY_TYPE or len(raw) != 32 or tail:
        raise ApprovalError("an ssh-ed25519 public key expected")
    return raw


def _check_namespace(namespace: str) -> None:
    if not namespace.isascii() or not namespace:
        raise ValueError("a namespace must be a non-empty ASCII string")


def _string(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


def _take(data: bytes, where: str) -> tuple[bytes, bytes]:
    size = struct.unpack(">I", data[:4])[0] if len(data) >= 4 else len(data)
    if len(data) < 4 + size:
        raise ApprovalError(f"{where}: is cut short")
    return data[4 : 4 + size], data[4 + size :]


def _is_key_type(word: str) -> bool:
    return word.startswith(("ssh-", "sk-ssh-", "ecdsa-", "sk-ecdsa-"))


def _options(text: str, where: str) -> dict[str, str]:
    options: dict[str, str] = {}
    position = 0
    while position < len(text):
        match = _OPTION.match(text, position)
        if not match or match[1] not in ("namespaces", "valid-after", "valid-before") or match[1] in options:
            raise ApprovalError(f"{where}: option at {text[position : position + 40]!r} is not supported")
        options[match[1]] = match[2] or ""
        position = match.end()
    return options


def _time(text: str | None, where: str) -> datetime | None:
    if text is None:
        return None
    formats = {9: "%Y%m%dZ", 13: "%Y%m%d%H%MZ", 15: "%Y%m%d%H%M%SZ"}
    try:
        return datetime.strptime(text, formats[len(text)]).replace(tzinfo=UTC)
    except (KeyError, ValueError) as error:
        raise ApprovalError(f"{where}: a time as YYYYMMDD[HHMM[SS]]Z expected, found {text!r}") from error
