"""Files of the loader by digest, manifests by digest, and blobs."""

import hashlib
import logging
import os
import time
from pathlib import Path

import pytest

from pipeline.errors import LakeError
from resources.blobs import BlobStore
from resources.files import FileStore
from runview.shards import BLOCK_BYTES

DATA = bytes(range(256)) * 2000
SHA = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def files(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "files")


def test_put_places_file_and_blocks_by_digest(files: FileStore) -> None:
    assert files.put("shards", memoryview(DATA), blocks=True) == SHA
    path = Path(files.root) / "shards" / SHA[:2] / f"{SHA}.safetensors"
    assert path.read_bytes() == DATA == files.get("shards", SHA)
    blocks = path.with_suffix(".blocks").read_bytes()
    assert blocks == hashlib.sha256(DATA[:BLOCK_BYTES]).digest() + hashlib.sha256(DATA[BLOCK_BYTES:]).digest()
    assert files.put("catalogs", DATA, blocks=False) == SHA
    assert not list((Path(files.root) / "catalogs").rglob("*.blocks"))
    assert not list(Path(files.root).rglob("*.tmp"))


def test_put_verifies_what_is_there_and_repairs_it_loudly(files: FileStore, caplog: pytest.LogCaptureFixture) -> None:
    files.put("shards", DATA, blocks=True)
    path = files.path("shards", SHA)
    before = path.stat().st_ino
    files.put("shards", DATA, blocks=True)
    assert path.stat().st_ino == before
    assert not caplog.records
    for broken in (DATA[:-1], b"x" + DATA[1:]):
        path.write_bytes(broken)
        with pytest.raises(LakeError, match=f"expected {SHA}"):
            files.get("shards", SHA)
        with caplog.at_level(logging.WARNING):
            files.put("shards", DATA, blocks=True)
        assert SHA in caplog.text
        assert files.get("shards", SHA) == DATA
        caplog.clear()
    path.with_suffix(".blocks").write_bytes(b"")
    files.put("shards", DATA, blocks=True)
    assert len(path.with_suffix(".blocks").read_bytes()) == 64


def test_missing_files_and_wrong_names_are_named(files: FileStore) -> None:
    with pytest.raises(LakeError, match=f"packs/{SHA} is missing"):
        files.get("packs", SHA)
    with pytest.raises(LakeError, match=f"views/{SHA}.json is missing"):
        files.read_view("views", SHA)
    for wrong in ("", SHA.upper(), SHA[:-1], "../" + SHA[3:]):
        with pytest.raises(ValueError, match="expected"):
            files.path("shards", wrong)
        with pytest.raises(ValueError, match="expected"):
            files.read_view("views", wrong)
    with pytest.raises(ValueError, match="kind"):
        files.put("views", DATA, blocks=False)
    with pytest.raises(ValueError, match="folder"):
        files.has_view("shards", SHA)  # type: ignore[arg-type]


def test_views_are_named_by_their_bytes(files: FileStore) -> None:
    with pytest.raises(LakeError, match="named by the digest"):
        files.put_view("candidates", "0" * 64, DATA)
    assert not files.has_view("candidates", SHA)
    for _ in range(2):
        assert Path(files.put_view("candidates", SHA, DATA)).read_bytes() == DATA
    assert (files.has_view("candidates", SHA), files.has_view("views", SHA)) == (True, False)
    files.put_view("views", SHA, DATA)
    path = Path(files.root) / "views" / f"{SHA}.json"
    path.write_bytes(DATA[:-1])
    with pytest.raises(LakeError, match=f"views/{SHA}.json"):
        files.read_view("views", SHA)
    with pytest.raises(LakeError, match="other bytes"):
        files.put_view("views", SHA, DATA)
    assert files.read_view("candidates", SHA) == DATA


def test_a_record_is_replaced_as_a_whole(files: FileStore) -> None:
    for text in (b"{}", b'{"approvals":[]}'):
        assert Path(files.write_record(SHA, text)).name == f"{SHA}.record.json"
        assert files.read_record(SHA) == text
    with pytest.raises(LakeError, match=r"record\.json"):
        files.read_record(SHA, folder="candidates")


def test_sweep_removes_only_old_leftovers(files: FileStore) -> None:
    path = files.path("shards", files.put("shards", DATA, blocks=True))
    old, young = path.parent / f".{SHA}.safetensors.1.tmp", path.parent / f".{SHA}.safetensors.2.tmp"
    for leftover in (old, young):
        leftover.write_bytes(b"half")
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    assert files.sweep(min_age_seconds=3600) == 1
    assert (old.exists(), young.exists(), path.exists()) == (False, True, True)


def test_blobs_are_verified_before_they_are_handed_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blobs = BlobStore(tmp_path / "blobs")
    assert blobs.put(DATA) == blobs.put(memoryview(DATA)) == SHA
    with blobs.open(SHA) as stream:
        assert stream.read(3) == DATA[:3]
    assert blobs.read(SHA) == DATA
    blobs.path(SHA).write_bytes(DATA + b"x")
    for act in (blobs.open, blobs.read):
        with pytest.raises(LakeError, match=f"blob {SHA}: found bytes with digest"):
            act(SHA)
    with caplog.at_level(logging.WARNING):
        blobs.put(DATA)
    assert SHA in caplog.text
    assert blobs.read(SHA) == DATA
    with pytest.raises(LakeError, match=f"blob {'0' * 64} is missing"):
        blobs.open("0" * 64)
    with pytest.raises(ValueError, match="64 lower-case hex"):
        blobs.path("../x")
    assert blobs.sweep(min_age_seconds=0) == 0
