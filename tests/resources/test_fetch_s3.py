"""Objects from moto's server: each as it was listed, continued under its entity tag."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from moto.server import ThreadedMotoServer
from obstore.store import S3Store

from pipeline.errors import SourceError
from pipeline.recipe import Fetch, Source
from resources.fetch import Landing, s3
from resources.fetch.parts import Budget, Part, Version
from resources.fetch.settings import Settings
from resources.object_options import object_options
from resources.sources import take_inventory
from tests.support.landing import QUICK, content, landed, source_of

DATA = os.urandom(3 * 2**20)
KEYS = {"AWS_ACCESS_KEY_ID": "key-id", "AWS_SECRET_ACCESS_KEY": "s3cret", "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(endpoint: str, request: pytest.FixtureRequest) -> S3Store:
    import boto3

    name = f"bucket-{abs(hash(request.node.name))}"
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="key-id", aws_secret_access_key="s3cret")
    client.create_bucket(Bucket=name)
    options = object_options(f"s3://{name}", {**KEYS, "AWS_ENDPOINT_URL": endpoint})
    store = S3Store(options.bucket, config=options.config, client_options={"allow_http": True})  # type: ignore[arg-type]
    store.put("in/a.txt", b"one\n")
    store.put("in/sub/b.bin", DATA)
    client.put_object(Bucket=name, Key="in/folder/", Body=b"")
    store.put("in-not/c.txt", b"of another prefix\n")
    return store


def source(store: S3Store, more: str = "") -> Source:
    return source_of(f'kind = "s3"\nurl = "s3://{store.config["bucket"]}/in"\n{more}')


def get(store: S3Store, lake: Path, more: str = "", **environment: str) -> Landing:
    return landed(source(store, more), lake, **{**KEYS, "AWS_ENDPOINT_URL": store.config["endpoint"], **environment})


def test_every_object_below_the_prefix_lands_with_its_tag(bucket: S3Store, tmp_path: Path) -> None:
    landing = get(bucket, tmp_path)
    assert content(landing) == {"a.txt": b"one\n", "sub/b.bin": DATA}
    tags = {meta["path"]: meta["e_tag"] for chunk in bucket.list("in") for meta in chunk}
    assert {f"in/{path}": file.revision for path, file in landing.files.items()} == {k: tags[k] for k in ("in/a.txt", "in/sub/b.bin")}
    assert landing.files["a.txt"].url == f"s3://{bucket.config['bucket']}/in/a.txt"
    containers = take_inventory(landing.source, landing.folder, landed=landing.files)
    assert [one.revision for one in containers] == [tags["in/a.txt"], tags["in/sub/b.bin"]]
    bucket.put("in/a.txt", b"two\n")
    assert get(bucket, tmp_path).files == landing.files  # complete: what the bucket holds now is another snapshot's
    assert not any(b"s3cret" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_only_what_include_selects(bucket: S3Store, tmp_path: Path) -> None:
    assert content(get(bucket, tmp_path, 'include = ["*.txt"]')) == {"a.txt": b"one\n"}
    with pytest.raises(SourceError, match=r"pattern '\*.jsonl' selects none of 2 listed files"):
        get(bucket, tmp_path, 'include = ["*.txt", "*.jsonl"]')
    with pytest.raises(SourceError, match=r"fetch.max_bytes is 1000000"):
        get(bucket, tmp_path, "max_bytes = 1000000")


def adapter(bucket: S3Store) -> s3.S3Files:
    import threading

    environment = {**KEYS, "AWS_ENDPOINT_URL": bucket.config["endpoint"]}
    fetch = Fetch("s3", url=f"s3://{bucket.config['bucket']}/in")
    return s3.S3Files("faq", fetch, Settings.of(QUICK), threading.Event(), environment)


def test_the_rest_of_an_object_is_fetched_under_its_tag(bucket: S3Store, tmp_path: Path) -> None:
    files = adapter(bucket)
    planned = next(file for file in files.plan() if file.path == "sub/b.bin")
    part = Part(tmp_path, planned)
    part.begin(Version(planned.etag, None, planned.size_bytes))
    part.write(DATA[:1_000_000])
    part.close()
    begun = Part(tmp_path, planned)
    assert begun.size == 1_000_000
    files.transfer(begun, Budget("faq", 2**30))
    assert begun.path.read_bytes() == DATA
    assert begun.version.revision == planned.etag


def test_an_object_that_changes_after_the_listing(bucket: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = s3.S3Files.plan

    def then_changed(self: s3.S3Files) -> list[object]:
        found = plan(self)
        bucket.put("in/sub/b.bin", b"changed\n")
        return found  # type: ignore[return-value]

    monkeypatch.setattr(s3.S3Files, "plan", then_changed)
    with pytest.raises(SourceError, match="not as it was listed any more; run again, which lists anew"):
        get(bucket, tmp_path, RUNVIEW_FETCH_WORKERS="1")
    monkeypatch.undo()
    assert not list(tmp_path.rglob("landing.json"))
    bucket.put("in/a.txt", b"two\n")  # was whole already, under another tag
    assert content(get(bucket, tmp_path)) == {"a.txt": b"two\n", "sub/b.bin": b"changed\n"}


def test_refusals(bucket: S3Store, tmp_path: Path) -> None:
    gone = source_of('kind = "s3"\nurl = "s3://no-such-bucket/in"')
    environment = {**KEYS, "AWS_ENDPOINT_URL": bucket.config["endpoint"]}
    with pytest.raises(SourceError, match=r"s3://no-such-bucket/in: there is no such bucket") as raised:
        landed(gone, tmp_path, **environment)
    assert "s3cret" not in str(raised.value)
    with pytest.raises(SourceError, match=r"gave up after 3 attempts") as raised:
        get(bucket, tmp_path, AWS_ENDPOINT_URL="http://127.0.0.1:9")
    assert "s3cret" not in str(raised.value)


def test_options_are_made_in_one_place() -> None:
    made = object_options("s3://bucket/a/b/", {**KEYS, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"})
    assert (made.url, made.bucket, made.prefix) == ("s3://bucket/a/b", "bucket", "a/b")
    assert made.config == {
        "access_key_id": "key-id",
        "secret_access_key": "s3cret",
        "region": "us-east-1",
        "conditional_put": "etag",
        "endpoint": "http://127.0.0.1:1",
    }
    assert made.storage_options["aws_conditional_put"] == "etag"
    assert made.storage_options["aws_secret_access_key"] == "s3cret"
    assert made.storage_options["allow_http"] == "true"
    assert "s3cret" not in repr(made)
    assert (
        object_options("s3://bucket", {"AWS_ENDPOINT_URL": "https://a", "AWS_ENDPOINT_URL_S3": "https://b"}).config["endpoint"]
        == "https://b"
    )


@pytest.mark.parametrize(
    ("url", "environment", "message"),
    [
        ("gs://bucket/a", {}, "expected s3://bucket/prefix"),
        ("s3://user:hunter2@bucket/a", {}, "expected s3://bucket/prefix"),
        ("s3://bucket/a?token=hunter2", {}, "expected s3://bucket/prefix"),
        ("s3://bucket/a/../b", {}, "a name in the prefix"),
        ("s3://bucket", {"AWS_SECRET_ACCESS_KEY": "hunter2"}, "without the other"),
        ("s3://bucket", {"AWS_ENDPOINT_URL": "http://hunter2"}, "AWS_ENDPOINT_URL must be an https address"),
        ("s3://bucket", {"AWS_ENDPOINT_URL": "https://user:hunter2@h"}, "AWS_ENDPOINT_URL holds a user"),
        ("s3://bucket", {"AWS_ALLOW_HTTP": "hunter2"}, "AWS_ALLOW_HTTP must be true or false"),
    ],
)
def test_options_that_cannot_be_used(url: str, environment: dict[str, str], message: str) -> None:
    with pytest.raises(SourceError, match=message) as raised:
        object_options(url, environment)
    assert "hunter2" not in str(raised.value)


def test_a_delta_table_opens_with_the_same_options(bucket: S3Store) -> None:
    import pyarrow as pa
    from deltalake import DeltaTable, write_deltalake

    made = object_options(f"s3://{bucket.config['bucket']}/table", {**KEYS, "AWS_ENDPOINT_URL": bucket.config["endpoint"]})
    write_deltalake(made.url, pa.table({"a": [1, 2]}), storage_options=made.storage_options)
    assert DeltaTable(made.url, storage_options=made.storage_options).to_pyarrow_table().num_rows == 2
    assert obstore.head(bucket, "table/_delta_log/00000000000000000000.json")["size"] > 0
