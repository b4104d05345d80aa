"""What the crash and race tests run in processes of their own."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

from pipeline.schemas import DOCUMENT_REJECTS, DOCUMENTS, GATES
from resources.blobs import BlobStore
from resources.files import FileStore
from resources.lake import Lake
from tests.support.tables import NOW, ledger, rows, stage


def publish(root: str, code: str = "1", n_rejects: str = "3", run_id: str = "run") -> None:
    """One version of two tables, then its gates."""
    lake = Lake(root)
    made = stage(code=code)
    tables = [(DOCUMENTS, rows(DOCUMENTS, 40, made.version)), (DOCUMENT_REJECTS, rows(DOCUMENT_REJECTS, int(n_rejects), made.version))]
    lake.publish(made, tables, [ledger(40)], run_id=run_id, now=NOW)
    lake.insert(GATES, rows(GATES, 2, made.version), update=True)


def publish_many(root: str, start: str, who: str, codes: str) -> None:
    """Several versions, from the moment the file `start` exists."""
    while not Path(start).exists():
        time.sleep(0.001)
    for code in codes.split(","):
        publish(root, code, "3", who)


def store_files(root: str) -> None:
    """A file with block digests, a manifest with its record, and a blob."""
    files = FileStore(f"{root}/files")
    files.put("shards", b"tokens" * 50_000, blocks=True)
    manifest = b'{"format":1}'
    view_id = hashlib.sha256(manifest).hexdigest()
    files.put_view("candidates", view_id, manifest)
    files.put_view("views", view_id, manifest)
    files.write_record(view_id, b"{}")
    BlobStore(f"{root}/blobs").put(b"payload" * 10_000)
