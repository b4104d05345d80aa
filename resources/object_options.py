"""Object stores: one URL and the environment, translated for the libraries that open them.

This is the only place where such options are made. Credentials come from the environment and nowhere else; they are in no repr.

| variable | meaning |
|---|---|
| AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN | keys; without them the machine's or container's role |
| AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL | the store's address, when it is not Amazon's |
| AWS_REGION, AWS_DEFAULT_REGION | region; us-east-1 when none is named |
| AWS_ALLOW_HTTP | `true`: the endpoint may be plain http |
| AWS_SKIP_SIGNATURE | `true`: a public bucket without keys |
| AWS_VIRTUAL_HOSTED_STYLE_REQUEST | `true`: the bucket stands in the host name |
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn
from urllib.parse import urlsplit

from pipeline.errors import SourceError

BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
KEYS = {
    "AWS_ACCESS_KEY_ID": "access_key_id",
    "AWS_SECRET_ACCESS_KEY": "secret_access_key",
    "AWS_SESSION_TOKEN": "session_token",
    "AWS_SKIP_SIGNATURE": "skip_signature",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "virtual_hosted_style_request",
    "AWS_WEB_IDENTITY_TOKEN_FILE": "web_identity_token_file",
    "AWS_ROLE_ARN": "role_arn",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "container_credentials_relative_uri",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI": "container_credentials_full_uri",
}
SWITCHES = ("AWS_ALLOW_HTTP", "AWS_SKIP_SIGNATURE", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST")


@dataclass(frozen=True)
class ObjectOptions:
    """How to open one place in an object store.

    Attributes:
        url: `s3://bucket/prefix`, without a slash at the end. bucket, prefix: its parts.
        config, client_options: for `obstore.store.S3Store(bucket, prefix=..., config=..., client_options=...)`.
        storage_options: for `deltalake` and `polars`. Writes are conditional on the entity tag, which is what makes commits safe.
    """

    url: str
    bucket: str
    prefix: str
    config: dict[str, str] = field(repr=False)
    client_options: dict[str, bool] = field(repr=False)
    storage_options: dict[str, str] = field(repr=False)

    def __reduce__(self) -> NoReturn:
        raise TypeError("options that may hold credentials do not travel between processes; make them from the environment there")

    @property
    def arrow(self) -> dict[str, str | bool]:
        """The same for `pyarrow.fs.S3FileSystem`. Without keys it looks for the machine's or container's role itself."""
        names = {"access_key_id": "access_key", "secret_access_key": "secret_key", "session_token": "session_token", "region": "region"}
        out: dict[str, str | bool] = {ours: self.config[name] for name, ours in names.items() if name in self.config}
        out["anonymous"] = self.config.get("skip_signature") == "true"
        out["force_virtual_addressing"] = self.config.get("virtual_hosted_style_request") == "true"
        if "endpoint" in self.config:
            scheme, _, host = self.config["endpoint"].partition("://")
            out |= {"scheme": scheme, "endpoint_override": host.rstrip("/")}
        return out


def object_options(url: str, environment: Mapping[str, str] | None = None) -> ObjectOptions:
    """Options for a URL, by default from the environment of this process.

    Raises SourceError, without any value of the environment, when URL or environment cannot be used.
    """
    environment = os.environ if environment is None else environment
    parts = urlsplit(url)
    if parts.scheme != "s3" or not BUCKET.fullmatch(parts.netloc) or parts.query or parts.fragment:
        raise SourceError(f"object store: expected s3://bucket/prefix, found scheme {parts.scheme!r} with {len(url)} characters")
    prefix = parts.path.strip("/")
    if any(name in ("", ".", "..") for name in prefix.split("/")) and prefix:
        raise SourceError(f"object store: a name in the prefix of bucket {parts.netloc} is empty or a dot folder")
    for name in SWITCHES:
        if environment.get(name, "").lower() not in ("", "true", "false", "1", "0"):
            raise SourceError(f"{name} must be true or false")
    if bool(environment.get("AWS_ACCESS_KEY_ID")) != bool(environment.get("AWS_SECRET_ACCESS_KEY")):
        raise SourceError("one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY is set without the other; set both or none")
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or ""
    allow_http = environment.get("AWS_ALLOW_HTTP", "").lower() in ("true", "1")
    if endpoint and urlsplit(endpoint).scheme not in (("https", "http") if allow_http else ("https",)):
        raise SourceError("AWS_ENDPOINT_URL must be an https address; AWS_ALLOW_HTTP=true lets it be plain http")
    if "@" in urlsplit(endpoint).netloc:
        raise SourceError("AWS_ENDPOINT_URL holds a user; give keys by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    config = {name: environment[variable] for variable, name in KEYS.items() if environment.get(variable)}
    for variable in SWITCHES[1:]:
        if KEYS[variable] in config:
            config[KEYS[variable]] = "true" if environment[variable].lower() in ("true", "1") else "false"
    config["region"] = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
    config["conditional_put"] = "etag"
    if endpoint:
        config["endpoint"] = endpoint
    storage = {f"aws_{name}": value for name, value in config.items()}
    storage["allow_http"] = "true" if allow_http else "false"
    place = f"s3://{parts.netloc}/{prefix}".rstrip("/")
    return ObjectOptions(place, parts.netloc, prefix, config, {"allow_http": allow_http}, storage)
