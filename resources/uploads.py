"""Uploads in parts that were never finished: a killed writer leaves them, no listing shows them, and they are paid for.

obstore and deltalake make such uploads for large files and can neither list nor abort those of another process, so these two requests
are signed here (AWS Signature Version 4, documented at docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-authenticating-requests.html).
"""

from __future__ import annotations

import hashlib
import hmac
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree

from pipeline.errors import LakeError
from resources.object_options import ObjectOptions, object_options

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
TIMEOUT_SECONDS = 30


def abort_uploads(url: str, *, older_than: datetime) -> int:
    """Abort every unfinished upload below `s3://bucket/prefix` that was begun before a time. Returns how many.

    Raises: LakeError, without keys in the environment (a role's are not known here); OSError for what the store answers.
    """
    options = object_options(url)
    if "access_key_id" not in options.config:
        raise LakeError(
            f"{options.url}: unfinished uploads are listed with keys from the environment only; give AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or let the bucket abort them by a lifecycle rule (AbortIncompleteMultipartUpload)"
        )
    old = [(key, upload) for key, upload, begun in _uploads(options) if begun < older_than]
    for key, upload in old:
        _ask(options, "DELETE", key, {"uploadId": upload})
    return len(old)


def _uploads(options: ObjectOptions) -> Iterator[tuple[str, str, datetime]]:
    """Key, upload id and begin of every unfinished upload below the prefix."""
    query = {"uploads": "", "prefix": f"{options.prefix}/" if options.prefix else "", "max-uploads": "1000"}
    while True:
        page = ElementTree.fromstring(_ask(options, "GET", "", query))
        for one in page.iterfind("{*}Upload"):
            begun = datetime.fromisoformat(one.findtext("{*}Initiated", "").replace("Z", "+00:00"))
            yield one.findtext("{*}Key", ""), one.findtext("{*}UploadId", ""), begun if begun.tzinfo else begun.replace(tzinfo=UTC)
        if page.findtext("{*}IsTruncated", "false").lower() != "true":
            return
        query |= {"key-marker": page.findtext("{*}NextKeyMarker", ""), "upload-id-marker": page.findtext("{*}NextUploadIdMarker", "")}


def _ask(options: ObjectOptions, method: str, key: str, query: Mapping[str, str]) -> bytes:
    endpoint = urlsplit(options.config.get("endpoint") or f"https://s3.{options.config['region']}.amazonaws.com")
    hosted = options.config.get("virtual_hosted_style_request") == "true"
    host = f"{options.bucket}.{endpoint.netloc}" if hosted and "endpoint" not in options.config else endpoint.netloc
    path = "/".join([endpoint.path.rstrip("/"), *([] if hosted else [options.bucket]), quote(key, safe="/-_.~")])
    text = "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in sorted(query.items()))
    headers = _signed(options.config, method, host, path, text, now=datetime.now(UTC))
    request = urllib.request.Request(f"{endpoint.scheme}://{host}{path}?{text}", method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        if method == "DELETE" and error.code == 404:
            return b""  # finished or aborted in the meantime
        raise OSError(f"HTTP status {error.code}") from None


def _signed(config: Mapping[str, str], method: str, host: str, path: str, query: str, *, now: datetime) -> dict[str, str]:
    """Headers with the signature of a request without a body."""
    time, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    headers = {"host": host, "x-amz-content-sha256": EMPTY_SHA256, "x-amz-date": time}
    if "session_token" in config:
        headers["x-amz-security-token"] = config["session_token"]
    names = ";".join(sorted(headers))
    request = "\n".join([method, path, query, *(f"{name}:{headers[name]}" for name in sorted(headers)), "", names, EMPTY_SHA256])
    scope = f"{day}/{config['region']}/s3/aws4_request"
    to_sign = "\n".join(["AWS4-HMAC-SHA256", time, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = f"AWS4{config['secret_access_key']}".encode()
    for part in (day, config["region"], "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    del headers["host"]
    credential = f"{config['access_key_id']}/{scope}"
    return {**headers, "Authorization": f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}"}
