"""A full disk while writing: the table is named, nothing is half-published, and a rerun completes."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, subprocess, sys
from pathlib import Path
mount, = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", mount], check=True)
import pyarrow as pa
from pipeline.errors import LakeError
from pipeline.schemas import DOCUMENTS, GATES
from resources.blobs import BlobStore
from resources.files import FileStore
from resources.lake import Lake
from tests.support.tables import NOW, ledger, rows, stage

lake = Lake(Path(mount) / "lake")
first, made = stage(code="0"), stage()
lake.publish(first, [(DOCUMENTS, rows(DOCUMENTS, 3, first.version))], [ledger(3)], run_id="r", now=NOW)
many = rows(DOCUMENTS, 2000, made.version)
noise = pa.array([os.urandom(500).hex() for _ in range(len(many))])
many = many.set_column(many.column_names.index("text"), DOCUMENTS.schema.field("text"), noise)
filler = Path(mount) / "filler"

def fill(leave):
    free = os.statvfs(mount).f_bavail * os.statvfs(mount).f_frsize
    filler.write_bytes(bytes(max(0, free - leave)))

def refused(act, *words):
    try:
        act()
    except LakeError as error:
        assert "disk full while writing" in str(error), error
        assert "bytes free" in str(error) and error.__cause__ is None, error
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError("a full disk went unnoticed")

def publish():
    return lake.publish(made, [(DOCUMENTS, many)], [ledger(2000)], run_id="r", now=NOW)

for leave in (0, 40_000, 400_000):  # before the first byte, and within a data file
    fill(leave)
    refused(publish, "cleaned_docs/documents")
    assert lake.snapshot(made.version) is None
    lake.verify(first.version)
    filler.unlink()
fill(0)
refused(lambda: lake.insert(GATES, rows(GATES, 2, first.version)), "control/gates")
files, blobs = FileStore(Path(mount) / "lake/files"), BlobStore(Path(mount) / "lake/blobs")
refused(lambda: files.put("shards", os.urandom(100_000), blocks=True), "shards/")
refused(lambda: blobs.put(os.urandom(100_000)), "blob ")
filler.unlink()
assert not [p for p in Path(mount).rglob("*.safetensors")] and not [p for p in Path(mount, "lake/blobs").rglob("*") if p.is_file()]
publish()
lake.verify(made.version)
assert len(lake.table(DOCUMENTS)) == 2003
print("completed")
"""


def test_full_disk_is_named_and_a_rerun_completes(tmp_path: Path) -> None:
    probe = subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("this machine lets no test mount a small disk of its own")
    environment = {"PYTHONPATH": ":".join(path for path in sys.path if path), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    done = subprocess.run(
        ["unshare", "-rm", sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )
    assert done.stdout.strip() == "completed", done.stderr[-2000:]
