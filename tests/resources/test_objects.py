"""Files, blobs and tables in an object store: a real S3 API on loopback, also one that answers badly."""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import obstore
import pytest

from pipeline.errors import ApprovalError, LakeError
from pipeline.schemas import DOCUMENT_REJECTS, DOCUMENTS, GATES, SNAPSHOTS
from resources import objects
from resources.blobs import BlobStore
from resources.faults import fault
from resources.files import FileStore
from resources.lake import Lake
from resources.lake.home import MARKER
from resources.object_options import object_options
from resources.objects import ObjectPlace
from resources.places import LocalPlace, Place, place_of
from resources.project import Project
from resources.uploads import _ask, _uploads, abort_uploads
from runview.shards import BLOCK_BYTES
from tests.support.object_store import ACCESS_KEY, BUCKET, SECRET, ObjectStore, object_store, proxy
from tests.support.publishing import publish, store_files
from tests.support.tables import NOW, ledger, rows, stage

pytestmark = pytest.mark.slow
DATA = bytes(range(256)) * 2000
SHA = hashlib.sha256(DATA).hexdigest()


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


@pytest.fixture
def root(server: ObjectStore, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """An empty prefix, and the environment that opens it."""
    for name, value in server.environment(request.node.name).items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{hashlib.sha256(request.node.name.encode()).hexdigest()[:12]}/lake"


def through(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """Ask another address, and lose patience soon."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setattr(objects, "RETRIES", 3)
    monkeypatch.setattr(objects, "RETRY_SECONDS", 5)


@pytest.mark.parametrize("local", [True, False])
def test_both_places_keep_the_same_promises(root: str, tmp_path: Path, local: bool) -> None:
    place: Place = place_of(tmp_path / "files" if local else root)
    assert isinstance(place, LocalPlace if local else ObjectPlace)
    assert (list(place.files()), place.size("a/b"), place.sweep(min_age_seconds=0)) == ([], None, 0)
    for act in (place.read, place.sha256):
        with pytest.raises(FileNotFoundError):
            act("a/b")
    assert place.create("a/b", DATA)
    assert not place.create("a/b", b"other")
    assert (place.read("a/b"), place.size("a/b"), place.sha256("a/b")) == (DATA, len(DATA), SHA)
    with open(tmp_path / "copy", "w+b") as copy:
        assert place.copy_to("a/b", copy) == SHA
    assert (tmp_path / "copy").read_bytes() == DATA
    place.replace("a/b", memoryview(b"new"))
    place.replace("a/c/d", b"")
    place.replace("ab", b"1")
    assert sorted(place.files()) == [("a/b", 3), ("a/c/d", 0), ("ab", 1)]
    assert sorted(place.files("a")) == [("a/b", 3), ("a/c/d", 0)], "a folder, not what begins like it"
    assert place.where("a/b") == f"{place.root}/a/b"
    assert pickle.loads(pickle.dumps(place)).read("a/b") == b"new"


def test_of_many_creators_one_wins(root: str) -> None:
    place = place_of(root)
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda n: place.create("one", str(n).encode()), range(8)))
    assert sum(made) == 1
    assert place.read("one") == str(made.index(True)).encode()


def test_large_files_go_up_in_parts(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "PART_BYTES", 5 * 2**20)
    data = os.urandom(12 * 2**20)
    place = place_of(root)
    assert place.create("large", data)
    assert not place.create("large", data)
    assert place.read("large") == data
    place.replace("large", data[::-1])
    assert place.sha256("large") == hashlib.sha256(data[::-1]).hexdigest()


def test_files_and_blobs(root: str, caplog: pytest.LogCaptureFixture) -> None:
    store_files(root)
    files, blobs = FileStore(f"{root}/files"), BlobStore(f"{root}/blobs")
    assert files.put("shards", DATA, blocks=True) == SHA == blobs.put(DATA)
    place = place_of(f"{root}/files")
    name = f"shards/{SHA[:2]}/{SHA}"
    blocks = hashlib.sha256(DATA[:BLOCK_BYTES]).digest() + hashlib.sha256(DATA[BLOCK_BYTES:]).digest()
    assert (place.read(f"{name}.safetensors"), place.read(f"{name}.blocks")) == (DATA, blocks)
    assert files.sizes([("shards", SHA), ("packs", SHA), ("catalogs", SHA)]) == [len(DATA), None, None]
    assert (files.get("shards", SHA), blobs.read(SHA)) == (DATA, DATA)
    assert not caplog.records
    place.replace(f"{name}.safetensors", b"x" + DATA[1:])
    place_of(f"{root}/blobs").replace(f"{SHA[:2]}/{SHA}", DATA[:-1])
    with pytest.raises(LakeError, match=f"expected {SHA}"):
        files.get("shards", SHA)
    with pytest.raises(LakeError, match=f"blob {SHA}: found bytes with digest"):
        blobs.open(SHA)
    with pytest.raises(LakeError, match="is missing"):
        blobs.open("0" * 64)
    with caplog.at_level(logging.WARNING):
        files.put("shards", DATA, blocks=True)
        blobs.put(DATA)
    assert len([record for record in caplog.records if SHA in record.getMessage()]) == 2, "repaired, and not silently"
    assert (files.get("shards", SHA), blobs.read(SHA)) == (DATA, DATA)
    for act in (lambda: files.path("shards", SHA), lambda: blobs.path(SHA)):
        with pytest.raises(LakeError, match="is an object store"):
            act()


def test_views_are_created_once_and_read_back(root: str) -> None:
    files = FileStore(f"{root}/files")
    with pytest.raises(LakeError, match="named by the digest"):
        files.put_view("views", "0" * 64, DATA)
    for _ in range(2):
        assert files.put_view("views", SHA, DATA) == f"{root}/files/views/{SHA}.json"
    files.write_record(SHA, b"{}")
    assert (files.names("views"), files.names("candidates")) == ([f"{SHA}.json", f"{SHA}.record.json"], [])
    assert (files.read_record(SHA), files.withdrawal(SHA)) == (b"{}", None)
    place_of(f"{root}/files").replace(f"views/{SHA}.json", b"edited")
    with pytest.raises(LakeError, match="other bytes"):
        files.put_view("views", SHA, DATA)
    assert place_of(f"{root}/files").read(f"views/{SHA}.json") == b"edited", "what is there is never overwritten"


def test_sweep_aborts_old_unfinished_uploads_and_nothing_else(root: str) -> None:
    options = object_options(root)
    for key in ("lake/files/shards/a b.tmp", "lake/blobs/x", "lake-other/y"):
        place = f"{options.prefix.removesuffix('/lake')}/{key}"
        _begin_upload(options.config["endpoint"], place)
    assert sum(1 for _ in _uploads(options)) == 2
    assert abort_uploads(root, older_than=datetime(2010, 1, 1, tzinfo=UTC)) == 0, "moto says 2010 of every upload"
    BlobStore(f"{root}/blobs").put(DATA)
    assert FileStore(f"{root}/files").sweep(min_age_seconds=-60) == 1
    assert BlobStore(f"{root}/blobs").sweep(min_age_seconds=-60) == 1
    assert BlobStore(f"{root}/blobs").read(SHA) == DATA
    assert list(_uploads(options)) == []
    assert sum(1 for _ in _uploads(object_options(f"{root}-other"))) == 1
    _ask(options, "DELETE", "never/there", {"uploadId": "none"})


def _begin_upload(endpoint: str, key: str) -> None:
    quoted = urllib.request.quote(key)
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{BUCKET}/{quoted}?uploads", method="POST"), timeout=10).close()


def test_a_lake_is_made_once_and_not_over_something_else(root: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        lakes = list(pool.map(lambda _: Lake(root), range(8)))
    assert {lake.root for lake in lakes} == {root}
    assert [name for name, _ in place_of(root).files()] == [MARKER]
    place_of(f"{root}2").replace("somebody/elses", b"1")
    with pytest.raises(LakeError, match=r"expected lake\.json or an empty folder"):
        Lake(f"{root}2")
    place_of(root).replace(MARKER, b'{"format": 2, "schema": 1}')
    with pytest.raises(LakeError, match="format 2 found"):
        Lake(root)


def test_a_version_is_published_read_and_verified(root: str) -> None:
    lake = Lake(root)
    for _ in range(2):
        publish(root)
    made = stage()
    assert lake.read(DOCUMENTS, made.version).sort_by("doc_id").equals(rows(DOCUMENTS, 40, made.version).sort_by("doc_id"))
    assert lake.scan(DOCUMENTS, made.version).collect().height == 40
    assert sum(len(batch) for batch in lake.batches(DOCUMENTS, made.version, batch_rows=7)) == 40
    lake.verify(made.version)
    assert (len(lake.table(SNAPSHOTS)), len(lake.table(GATES))) == (1, 2)
    with pytest.raises(LakeError, match="same version, other content"):
        lake.publish(made, [(DOCUMENTS, rows(DOCUMENTS, 6, made.version))], [ledger(6)], run_id="b", now=NOW)
    empty = stage(code="9")
    nothing = [(DOCUMENTS, rows(DOCUMENTS, 2, empty.version)), (DOCUMENT_REJECTS, DOCUMENT_REJECTS.schema.empty_table())]
    lake.publish(empty, nothing, [ledger(2)], run_id="r", now=NOW)
    lake.verify(empty.version)
    other = pickle.loads(pickle.dumps(lake))
    assert len(other.read(DOCUMENTS, made.version)) == 40
    assert SECRET.encode() not in pickle.dumps(lake)
    assert lake.size_bytes() > 1000


def test_a_table_without_its_log_is_not_made_anew(root: str) -> None:
    publish(root)
    place = place_of(root)
    names = [name for name, _ in place.files(f"{DOCUMENTS.path}/_delta_log")]
    obstore.delete(place._store, names)  # type: ignore[attr-defined]
    with pytest.raises(LakeError, match="has files and no log"):
        Lake(root).publish(stage(code="2"), [(DOCUMENTS, rows(DOCUMENTS, 2, stage(code="2").version))], [ledger(2)], run_id="r", now=NOW)


def test_writers_without_any_lock_end_as_one_copy_each(root: str, tmp_path: Path) -> None:
    program = "import sys; from tests.support.publishing import publish_many; publish_many(*sys.argv[1:])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    start = tmp_path / "start"
    running = [
        subprocess.Popen([sys.executable, "-c", program, root, str(start), f"writer-{n}", codes], env=environment)
        for n, codes in enumerate(("1,2", "1,2", "2,1"))
    ]
    time.sleep(1.5)
    start.touch()
    assert [process.wait(timeout=120) for process in running] == [0, 0, 0]
    lake = Lake(root)
    versions = {stage(code=code).version for code in "12"}
    assert {snapshot.version for snapshot in lake.snapshots("documents")} == versions
    assert (len(lake.table(SNAPSHOTS)), len(lake.table(GATES))) == (2, 2 * 2)
    assert (len(lake.table(DOCUMENTS)), len(lake.table(DOCUMENT_REJECTS))) == (2 * 40, 2 * 3)
    for version in versions:
        lake.verify(version)


def test_some_bad_answers_and_slow_ones_are_waited_out(root: str, server: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    n = 0

    def rule(method: str, path: str, headers: Mapping[str, str]) -> tuple[int, str] | float | None:
        nonlocal n
        n += 1
        return (503, "SlowDown") if n % 9 == 0 else 0.3 if n % 23 == 0 else None

    with proxy(server.endpoint, rule) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        publish(root)
        store_files(root)
        Lake(root).verify(stage().version)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    assert n > 50
    assert (len(Lake(root).table(DOCUMENTS)), len(Lake(root).table(SNAPSHOTS))) == (40, 1)


def test_a_put_whose_answer_is_lost_is_not_taken_for_anothers(
    root: str, server: ObjectStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: dict[str, int] = {}

    def rule(method: str, path: str, headers: Mapping[str, str]) -> bool:
        """Is the answer lost? That of the first put of each name, and of the first two commits of each table."""
        if method != "PUT":
            return False
        asked[path] = asked.get(path, 0) + 1
        return asked[path] == 1 and (
            "_delta_log" not in path or path.endswith(("/00000000000000000000.json", "/00000000000000000001.json"))
        )

    with proxy(server.endpoint, lambda *_: None, lost=rule) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        publish(root)
        store_files(root)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    assert max(asked.values()) > 1, "at least one put was repeated"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(Lake(root).table(DOCUMENTS)) == 40


@pytest.mark.parametrize(
    ("code", "status", "says"),
    [
        ("InvalidAccessKeyId", 403, "does not accept the credentials"),
        ("AccessDenied", 403, "may not do it"),
        ("NoSuchBucket", 404, "no such bucket"),
        ("SlowDown", 503, "overloaded or out of order"),
    ],
)
def test_refusals_say_what_to_do_and_quote_nothing(
    root: str, server: ObjectStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: str, status: int, says: str
) -> None:
    Lake(root)
    with proxy(server.endpoint, lambda method, path, headers: (status, code)) as endpoint:
        through(monkeypatch, endpoint)
        lakes = [lambda: Lake(root), lambda: FileStore(f"{root}/files").put("shards", DATA, blocks=True)]
        for act in lakes:
            with pytest.raises(LakeError) as caught:
                act()
            text = f"{caught.value!s}{caught.value!r}{caplog.text}"
            if act is lakes[0]:  # a question about one object is answered by a status alone
                assert says in text
            assert "credentials" in text or status != 403
            assert SECRET not in text and ACCESS_KEY not in text and "<Error>" not in text
            assert caught.value.__cause__ is None


def test_refusals_quote_no_rows_that_stand_beside_the_code() -> None:
    for text in ("status 503 Service Unavailable: Anna Kim, 12 Elm Street", "AccessDenied by Anna Kim", "rows: 502 Park Avenue, Anna Kim"):
        assert not {"Anna", "Elm", "Park"} & set(str(fault("writing", "table t", OSError(text), "s3://b/p")).replace(",", " ").split())


def test_a_store_that_is_not_there_is_named(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    through(monkeypatch, "http://127.0.0.1:9")
    with pytest.raises(LakeError, match=r"opening lake s3://.*cannot be reached; check AWS_ENDPOINT_URL"):
        Lake(root)


def test_options_show_and_carry_no_credentials(root: str) -> None:
    options = object_options(root)
    assert options.storage_options["aws_secret_access_key"] == options.arrow["secret_key"] == SECRET
    assert SECRET not in f"{options!r}{options!s}" and ACCESS_KEY not in repr(options)
    with pytest.raises(TypeError, match="do not travel"):
        pickle.dumps(options)


def test_keys_stay_out_of_object_stores(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNVIEW_LAKE", root)
    assert Project.at(tmp_path).state_root == tmp_path / ".dagster_state"
    assert Project.at(tmp_path).keystore.folder == tmp_path / ".keys"
    monkeypatch.setenv("RUNVIEW_KEYS", f"{root}/keys")
    with pytest.raises(ApprovalError, match="do not lie in an object store"):
        _ = Project.at(tmp_path).keystore
