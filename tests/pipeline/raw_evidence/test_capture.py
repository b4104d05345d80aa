import gzip
import hashlib
import io
from dataclasses import replace
from datetime import UTC, date, datetime
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import ids
from pipeline.errors import ContractError, SourceError
from pipeline.raw_evidence import capture as module
from pipeline.raw_evidence.capture import Captured, capture, stage_version
from pipeline.raw_evidence.identifiers import DeletionKey
from pipeline.raw_evidence.inventory import Container
from pipeline.recipe import Source
from pipeline.schemas import EVIDENCE, EVIDENCE_REJECTS

DAY = date(2026, 11, 1)
KEY = DeletionKey("k1", b"s" * 32)
JSONL = Source("web", "jsonl", "open licence", licence="mit", fields={"text": ("text",), "id": ("id",), "url": ("url",)})


def container(path: str, data: bytes, **values) -> Container:
    return Container(path, len(data), hashlib.sha256(data).hexdigest(), **values)


def run(source: Source, files: dict[str, bytes], *, order=None, blobs=None, key=KEY, **values) -> Captured:
    kept = {} if blobs is None else blobs

    def put(data: bytes) -> str:
        kept[hashlib.sha256(data).hexdigest()] = data
        return hashlib.sha256(data).hexdigest()

    paths = order or list(files)
    opened = [(container(path, files[path], **values), lambda path=path: io.BytesIO(files[path])) for path in paths]
    version = stage_version(source, DAY, [c for c, _ in opened]).version if opened else "0" * 64
    return capture(source, DAY, opened, version=version, deletion_key=key, put_blob=put)


FILES = {
    "b.jsonl": b'{"text":"one","id":1,"url":"https://example.org/1"}\n\n{"text":"two","id":"2"}\nbroken\n{"text":7}\n',
    "a/c.jsonl.gz": bytes.fromhex(
        "1f8b0800000000000203ab562a49ad2851b2527ad3daad54cb0500b13cf3d10f000000"
    ),  # {"text":"셋"}; literal, since compressors differ
}


def test_rows():
    done = run(JSONL, FILES)
    assert done.evidence.schema.equals(EVIDENCE.schema)
    assert done.rejects.schema.equals(EVIDENCE_REJECTS.schema)
    rows = done.evidence.to_pylist()
    assert [row["record_key"] for row in rows] == ["a/c.jsonl.gz#0", "b.jsonl#0", "b.jsonl#53"]
    payload = b'{"text":"one","id":1,"url":"https://example.org/1"}'
    sha256 = hashlib.sha256(payload).hexdigest()
    assert rows[1] == {
        "evidence_id": ids.evidence_id("web", DAY, "b.jsonl#0", sha256),
        "version": stage_version(JSONL, DAY, [container(path, data) for path, data in FILES.items()]).version,
        "source": "web", "snapshot": DAY, "record_key": "b.jsonl#0", "uri": "https://example.org/1",
        "payload": payload, "blob_sha256": None, "media_type": "application/json", "charset": None, "payload_sha256": sha256,
        "size_bytes": len(payload), "collected_at": datetime(2026, 11, 1, tzinfo=UTC), "resolved_revision": None, "fetched_at": None,
        "licence": "MIT", "consent_basis": "open licence", "rights_reservation": None,
        "deletion_keys": [KEY.of("uri", "https://example.org/1"), KEY.of("record", "web:1")],
        "container_sha256": hashlib.sha256(FILES["b.jsonl"]).hexdigest(), "offset": 0, "truncated": "no", "purpose": "pretrain",
        "meta": [("id", "1")],
    }  # fmt: skip
    assert [(row["record_key"], row["reason"], row["payload"]) for row in done.rejects.to_pylist()] == [
        ("b.jsonl#77", "unparsable", b"broken"),
        ("b.jsonl#84", "wrong_type", b'{"text":7}'),
    ]
    (ledger,) = done.ledgers
    assert ledger.line() == "in=6 parsed=3 empty=1 rejected={unparsable:1 wrong_type:1}"
    assert dict(ledger.extra) == {"containers": 2, "incomplete_files": 0, "payload_bytes": 88, "blobs": 0, "without_deletion_key": 1}


def test_golden():
    """A literal digest of literal bytes: when it changes, rows changed, and CODE_VERSION has to change with them."""
    done = run(JSONL, FILES)
    assert module.CODE_VERSION == "1"
    columns = [name for name in EVIDENCE.schema.names if name != "version"]  # the version holds package versions
    assert (
        ids.content_digest(done.evidence.select(columns), EVIDENCE.key)
        == "056b563fbc85011a6d49ad422faeb76bbc3ced26965500fe8cc9d437c371fce1"
    )
    columns = [name for name in EVIDENCE_REJECTS.schema.names if name != "version"]
    assert (
        ids.content_digest(done.rejects.select(columns), EVIDENCE_REJECTS.key)
        == "06bce45bffe1085ba5ec242e2b5d2d400f8a8565fb376d4ad132c4dc91d2c647"
    )


@settings(max_examples=30)
@given(st.randoms(use_true_random=False), st.integers(1, 40))
def test_order_and_batching_change_nothing(random: Random, rows: int):
    files = {f"f{i}.jsonl": b"".join(b'{"text":"t%d","id":%d}\n' % (i * j, j) for j in range(7)) + b"x\n" for i in range(6)}
    expected = run(JSONL, files)
    order = list(files)
    random.shuffle(order)
    before = module.BATCH_ROWS
    module.BATCH_ROWS = rows
    try:
        found = run(JSONL, files, order=order)
    finally:
        module.BATCH_ROWS = before
    assert found.evidence.equals(expected.evidence)
    assert found.rejects.equals(expected.rejects)
    assert found.ledgers == expected.ledgers


@given(st.lists(st.sampled_from([b'{"text":"a"}', b"", b" ", b"no", b"[]", b'{"text":null}', b"\xff", b'{"text":"\\u0000"}']), min_size=1))
def test_the_ledger_closes(lines):
    try:
        done = run(JSONL, {"a.jsonl": b"\n".join([b'{"text":"first"}', *lines, b""])})
    except SourceError:
        pytest.fail("one record is good")
    (ledger,) = done.ledgers
    assert ledger.total == len(lines) + 1
    assert ledger.parts["parsed"] == done.evidence.num_rows
    assert sum(ledger.parts["rejected"].values()) == done.rejects.num_rows


def test_large_payloads_become_blobs():
    small, large = b"x" * 2**20, b"y" * (2**20 + 1)
    blobs: dict[str, bytes] = {}
    done = run(Source("tree", "tree", "licence"), {"a.txt": small, "b.txt": large}, blobs=blobs)
    rows = done.evidence.to_pylist()
    assert (rows[0]["payload"], rows[0]["blob_sha256"]) == (small, None)
    assert (rows[1]["payload"], rows[1]["blob_sha256"], rows[1]["size_bytes"]) == (None, rows[1]["payload_sha256"], 2**20 + 1)
    assert list(blobs.values()) == [large]
    opened = [(container("b.txt", large), lambda: io.BytesIO(large))]
    with pytest.raises(ContractError, match="the store answered 00"):
        capture(Source("tree", "tree", "l"), DAY, opened, version="v", deletion_key=KEY, put_blob=lambda _: "00")


def test_licence_of_the_record_before_the_container_before_the_source():
    source = replace(JSONL, licence_field="lic")
    data = b'{"text":"a"}\n{"text":"b","lic":"cc0-1.0"}\n{"text":"c","lic":"free for all"}\n'
    rows = run(source, {"a.jsonl": data}, licence="Apache-2.0").evidence.to_pylist()
    assert [row["licence"] for row in rows] == ["Apache-2.0", "CC0-1.0", "unknown"]
    assert rows[2]["meta"] == [("licence_stated", "free for all")]
    with pytest.raises(SourceError, match="neither an SPDX expression"):
        run(replace(JSONL, licence="ask us"), FILES)


def test_incomplete_files():
    cut = gzip.compress(b'{"text":"kept"}\n{"text":"lost ' + bytes(range(40, 120)), mtime=0)[:-10]
    files = {**FILES, "cut.jsonl.gz": cut, "bad.jsonl.gz": b"not gzip"}
    with pytest.raises(SourceError, match="2 of 4 files are incomplete, max_incomplete_files is 1") as error:
        run(replace(JSONL, max_incomplete_files=1), files)
    assert "bad.jsonl.gz (not_compressed at 0" in str(error.value)
    assert f"cut.jsonl.gz (truncated_member at {len(cut)}" in str(error.value)
    done = run(replace(JSONL, max_incomplete_files=2), files)
    assert done.incomplete == (("bad.jsonl.gz", "not_compressed", 0), ("cut.jsonl.gz", "truncated_member", len(cut)))
    assert b'{"text":"kept"}' in done.evidence["payload"].to_pylist()
    assert done.ledgers[0].parts["rejected"] == {"incomplete_file": 2, "unparsable": 1, "wrong_type": 1}
    assert done.ledgers[0].extra["incomplete_files"] == 2
    (reject,) = [row for row in done.rejects.to_pylist() if row["record_key"].startswith("cut")]
    assert (reject["payload_sha256"], reject["size_bytes"], reject["payload"]) == (hashlib.sha256(cut).hexdigest(), len(cut), b"")


def test_refusals():
    with pytest.raises(SourceError, match="no deletion key"):
        run(JSONL, FILES, key=None)
    with pytest.raises(SourceError, match="empty, 0 containers"):
        run(JSONL, {})
    with pytest.raises(SourceError, match=r"nothing could be read: 1 containers, 3 payloads, 1 empty, rejected \{'unparsable': 2\}"):
        run(JSONL, {"a.jsonl": b"x\n\ny\n"})
    with pytest.raises(SourceError, match="nothing could be read: 1 containers, 0 payloads"):
        run(JSONL, {"a.jsonl": b""})
    with pytest.raises(SourceError, match=r"container b\.jsonl stands twice"):
        capture(JSONL, DAY, [(container("b.jsonl", b""), io.BytesIO)] * 2, version="v", deletion_key=KEY, put_blob=str)
    with pytest.raises(SourceError, match="consent_basis is empty"):
        run(replace(JSONL, consent_basis=" "), FILES)


def test_messages_hold_no_text_of_the_records():
    secret = "마음의 소리"
    with pytest.raises(SourceError) as error:
        run(JSONL, {"a.jsonl": f'{{"text": "{secret}"\n{{"text": ["{secret}"]}}\n'.encode()})
    assert secret not in str(error.value)


def test_what_enters_the_version():
    files = [container(path, data) for path, data in FILES.items()]
    known = stage_version(JSONL, DAY, files)
    assert known.partition == {"source": "web", "snapshot": "2026-11-01"}
    assert (known.stage, known.state, set(known.packages)) == ("evidence", "raw_evidence", {"orjson"})
    assert known.version == stage_version(replace(JSONL, location="elsewhere", max_incomplete_files=3), DAY, reversed(files)).version
    others = [
        stage_version(JSONL, date(2026, 11, 2), files),
        stage_version(replace(JSONL, licence="unknown"), DAY, files),
        stage_version(replace(JSONL, name="web2"), DAY, files),
        stage_version(JSONL, DAY, files[:1]),
        stage_version(JSONL, DAY, [files[0], replace(files[1], sha256="0" * 64)]),
        stage_version(JSONL, DAY, [files[0], replace(files[1], licence="MIT")]),
    ]
    assert len({known.version, *(other.version for other in others)}) == len(others) + 1
    assert set(stage_version(replace(JSONL, reader="parquet"), DAY, files).packages) == {"orjson", "pyarrow"}
    assert set(stage_version(Source("t", "text", "l"), DAY, [container("a.zst", b"")]).packages) == {"zstandard"}


def test_parquet_reads_seekable_containers():
    out = io.BytesIO()
    pq.write_table(pa.table({"text": ["a", None, "b"], "id": [1, 2, 3]}), out)
    done = run(replace(JSONL, reader="parquet", fields={"text": ("text",), "id": ("id",)}), {"p.parquet": out.getvalue()})
    assert done.evidence["record_key"].to_pylist() == ["p.parquet#0", "p.parquet#2"]
    assert done.evidence["payload"].to_pylist() == [b'{"id":1,"text":"a"}', b'{"id":3,"text":"b"}']
    assert done.ledgers[0].line().startswith("in=3 parsed=2 empty=1 rejected={}")
