"""Publishing, reading and verifying versions, and the rows of control tables."""

import json
import pickle
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline import schemas
from pipeline.errors import ContractError, LakeError, LedgerError
from pipeline.ids import content_digest
from pipeline.schemas import APPROVALS, DOCUMENT_REJECTS, DOCUMENTS, EVIDENCE, GATES, RELEASES, SHARDS, Column, TableSpec
from pipeline.stages import StageVersion
from resources.lake import Lake, delta
from resources.lake import checks as lake_checks
from tests.support.tables import NOW, ledger, rows, stage


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def publish(lake: Lake, n: int = 20, *, code: str = "1", source: str = "web", at: datetime = NOW) -> str:
    made = stage(code=code, source=source)
    tables = [(DOCUMENTS, rows(DOCUMENTS, n, made.version, source=source)), (DOCUMENT_REJECTS, DOCUMENT_REJECTS.schema.empty_table())]
    lake.publish(made, tables, [ledger(n)], run_id=f"run-{code}", now=at, record={"seconds": 1.5})
    return made.version


def test_a_published_version_reads_back_as_it_was(lake: Lake) -> None:
    version = publish(lake)
    snapshot = lake.snapshot(version)
    assert snapshot is not None
    want = rows(DOCUMENTS, 20, version).sort_by("doc_id")
    found = lake.read(DOCUMENTS, version)
    assert found.schema.equals(DOCUMENTS.schema)
    assert found.sort_by("doc_id").equals(want)
    assert lake.scan(DOCUMENTS, version).collect().height == 20
    assert (snapshot.stage, snapshot.state, snapshot.run_id, snapshot.created_at) == ("documents", "cleaned_docs", "run-1", NOW)
    assert (dict(snapshot.partition), dict(snapshot.record)) == ({"source": "web", "snapshot": "2026-11-01"}, {"seconds": 1.5})
    assert snapshot.identity == stage().identity()
    assert snapshot.ledgers == (ledger(20),)
    made = snapshot.tables["cleaned_docs/documents"]
    assert (made.n_rows, made.content_sha256) == (20, content_digest(want, DOCUMENTS.key))
    assert snapshot.tables["cleaned_docs/rejects"].n_rows == 0
    assert len(lake.read(DOCUMENT_REJECTS, version)) == 0
    lake.verify(version)


def test_every_table_of_the_schema_reads_back(lake: Lake) -> None:
    for spec in schemas.TABLES.values():
        partition = {"source": "web", "snapshot": "2026-11-01"} if "source" in spec.partition_by else {"release": "demo"}
        if spec.state == "control" or spec is schemas.RUN_VIEWS:
            data = rows(spec, 5, "0" * 64)
            if spec is not schemas.SNAPSHOTS:
                assert (lake.insert(spec, data), lake.insert(spec, data)) == (5, 0)
                assert lake.table(spec).sort_by(spec.key[0]).equals(data.sort_by(spec.key[0]))
            continue
        made = StageVersion(spec.name, spec.state, partition, "1")
        data = rows(spec, 5, made.version)
        lake.publish(made, [(spec, data)], [ledger(5)], run_id="r", now=NOW)
        order = [(name, "ascending") for name in spec.key]
        assert lake.read(spec, made.version).sort_by(order).equals(data.sort_by(order))
        lake.verify(made.version)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(12)), cut=st.integers(1, 12), batch_rows=st.integers(1, 15))
def test_order_and_batching_of_the_input_change_nothing(tmp_path: Path, order: list[int], cut: int, batch_rows: int) -> None:
    shutil.rmtree(tmp_path, ignore_errors=True)
    lake, made = Lake(tmp_path), stage()
    plain = rows(DOCUMENTS, 12, made.version)
    mixed = plain.take(pa.array(order))
    mixed = pa.concat_tables([mixed.slice(0, cut), mixed.slice(cut)])
    snapshot = lake.publish(made, [(DOCUMENTS, mixed)], [ledger(12)], run_id="r", now=NOW)
    assert snapshot.tables["cleaned_docs/documents"].content_sha256 == content_digest(plain, DOCUMENTS.key)
    batches = list(lake.batches(DOCUMENTS, made.version, batch_rows=batch_rows))
    assert [len(batch) for batch in batches[:-1]] == [batch_rows] * (len(batches) - 1)
    assert pa.Table.from_batches(batches).equals(plain.sort_by("doc_id"))


def test_twice_is_once_and_writes_nothing_the_second_time(lake: Lake) -> None:
    version = publish(lake)
    before = {path: path.stat().st_mtime_ns for path in Path(lake.root).rglob("*") if path.is_file() and path.suffix != ".lock"}
    first = lake.snapshot(version)
    assert publish(lake, at=NOW + timedelta(hours=1)) == version
    assert lake.snapshot(version) == first
    assert before == {path: path.stat().st_mtime_ns for path in Path(lake.root).rglob("*") if path.is_file() and path.suffix != ".lock"}


def test_versions_lie_beside_each_other(lake: Lake) -> None:
    one, two, news = publish(lake, 20), publish(lake, 7, code="2", at=NOW + timedelta(1)), publish(lake, 5, source="news")
    assert [s.version for s in lake.snapshots()] == [*sorted([one, news]), two]
    assert [s.version for s in lake.snapshots("documents", {"source": "web", "snapshot": "2026-11-01"})] == [one, two]
    assert lake.snapshots("documents", {"source": "web"}) == []
    assert lake.snapshots("clusters") == []
    assert [len(lake.read(DOCUMENTS, version)) for version in (one, two, news)] == [20, 7, 5]
    for version in (one, two, news):
        lake.verify(version)


def test_columns_and_filters(lake: Lake) -> None:
    version = publish(lake)
    found = lake.read(DOCUMENTS, version, columns=["attributes", "n_chars"], filter=(pl.col("n_chars") > 16) & (pl.col("decision") != ""))
    assert found.schema.equals(pa.schema([DOCUMENTS.schema.field("attributes"), DOCUMENTS.schema.field("n_chars")]))
    assert sorted(found["n_chars"].to_pylist()) == [17, 18, 19]
    assert lake.read(DOCUMENTS, version, columns=["text"]).column_names == ["text"]
    assert len(lake.read(DOCUMENTS, version, filter=pl.col("n_chars") < 0)) == 0
    batch = next(lake.batches(DOCUMENTS, version, columns=["text", "doc_id"]))
    assert batch.schema.names == ["text", "doc_id"]
    with pytest.raises(ContractError, match="no columns \\['txt'\\]"):
        lake.read(DOCUMENTS, version, columns=["txt"])


def test_batches_are_ordered_by_a_key_of_several_columns(lake: Lake) -> None:
    made = StageVersion("shards", "tokenized_shards", {"release": "demo", "tokenizer": "t"}, "1")
    data = rows(SHARDS, 30, made.version)
    data = data.set_column(data.column_names.index("component"), SHARDS.schema.field("component"), pa.array(["b", "a", "c"] * 10))
    lake.publish(made, [(SHARDS, data)], [ledger(30)], run_id="r", now=NOW)
    for batch_rows in (1, 4, 100):
        found = pa.Table.from_batches(lake.batches(SHARDS, made.version, batch_rows=batch_rows))
        assert found.equals(data.sort_by([(name, "ascending") for name in SHARDS.key]))


def test_a_version_without_a_snapshot_row_exists_for_no_reader(lake: Lake) -> None:
    version = publish(lake)
    for act in (
        lambda v: lake.read(DOCUMENTS, v),
        lambda v: lake.scan(DOCUMENTS, v),
        lambda v: next(lake.batches(DOCUMENTS, v)),
        lake.verify,
    ):
        with pytest.raises(LakeError, match=f"{'1' * 64} is not complete"):
            act("1" * 64)
    assert lake.snapshot("1" * 64) is None
    with pytest.raises(LakeError, match="has no table raw_evidence/evidence"):
        lake.read(EVIDENCE, version)


@pytest.mark.parametrize(
    ("break_it", "error", "words"),
    [
        (lambda t: pa.concat_tables([t, t.slice(0, 1)]), ContractError, "1 keys stand more than once"),
        (lambda t: t.set_column(1, "version", pa.array(["2" * 64] * len(t))), ContractError, "20 of 20 rows have another version"),
        (lambda t: t.set_column(2, "source", pa.array(["news"] + ["web"] * 19)), ContractError, "1 of 20 rows have another source"),
        (lambda t: t.drop_columns(["n_chars"]), ContractError, "missing columns \\['n_chars'\\]"),
        (lambda t: t.append_column("more", pa.array(range(20))), ContractError, "unknown columns \\['more'\\]"),
        (lambda t: t.set_column(0, "doc_id", pa.array([None] + ["a"] * 19)), ContractError, "doc_id has 1 nulls"),
    ],
)
def test_rows_that_break_their_contract_are_refused_before_anything_is_written(lake: Lake, break_it, error, words: str) -> None:  # type: ignore[no-untyped-def]
    made = stage()
    with pytest.raises(error, match=words):
        lake.publish(made, [(DOCUMENTS, break_it(rows(DOCUMENTS, 20, made.version)))], [ledger(20)], run_id="r", now=NOW)
    assert not (Path(lake.root) / "cleaned_docs").exists()


def test_open_ledgers_other_states_and_naive_times_are_refused(lake: Lake) -> None:
    made = stage()
    data = [(DOCUMENTS, rows(DOCUMENTS, 3, made.version))]
    with pytest.raises(LedgerError, match="does not close"):
        lake.publish(made, data, [ledger(3, 2)], run_id="r", now=NOW)
    with pytest.raises(ContractError, match="does not hold its versions"):
        lake.publish(made, [(EVIDENCE, rows(EVIDENCE, 3, made.version))], [ledger(3)], run_id="r", now=NOW)
    with pytest.raises(ContractError, match="stands twice"):
        lake.publish(made, data * 2, [ledger(3)], run_id="r", now=NOW)
    with pytest.raises(ValueError, match="naive"):
        lake.publish(made, data, [ledger(3)], run_id="r", now=datetime(2026, 11, 1))
    release = StageVersion("documents", "cleaned_docs", {"release": "demo"}, "1")
    with pytest.raises(ContractError, match="partitioned by \\['source'\\]"):
        lake.publish(release, [(DOCUMENTS, rows(DOCUMENTS, 3, release.version))], [ledger(3)], run_id="r", now=NOW)
    assert lake.snapshots() == []


def test_same_version_with_other_content_is_named(lake: Lake) -> None:
    version = publish(lake)
    digest = lake.snapshot(version).tables["cleaned_docs/documents"].content_sha256
    with pytest.raises(LakeError, match="same version, other content") as caught:
        publish(lake, 19)
    assert all(word in str(caught.value) for word in ("stage documents", "cleaned_docs/documents", digest, "20 rows", "19 rows"))
    made = stage()
    with pytest.raises(LakeError, match="complete with tables"):
        lake.publish(made, [(DOCUMENTS, rows(DOCUMENTS, 20, version))], [ledger(20)], run_id="r", now=NOW)
    lake.verify(version)


def test_verify_and_read_find_rows_that_were_changed_or_lost(lake: Lake) -> None:
    version, other = publish(lake), publish(lake, 4, code="2")
    data = rows(DOCUMENTS, 20, version)
    place = {"source": "web", "version": version}
    digest = lake.snapshot(version).tables["cleaned_docs/documents"].content_sha256
    lake._tables.replace(DOCUMENTS, data.set_column(7, DOCUMENTS.schema.field("text"), pa.array(["other"] * 20)), where=place, note={})
    with pytest.raises(LakeError, match="found 20 rows with content") as caught:
        lake.verify(version)
    assert digest in str(caught.value)
    assert "other" not in str(caught.value)
    lake._tables.replace(DOCUMENTS, data.slice(0, 19), where=place, note={})
    with pytest.raises(LakeError, match="expected 20 rows, found 19"):
        lake.read(DOCUMENTS, version)
    with pytest.raises(LakeError, match="expected 20 rows, found 19"):
        list(lake.batches(DOCUMENTS, version))
    lake.verify(other)


def test_columns_the_schema_gained_are_nulls_in_old_versions(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    version = publish(lake)
    more = TableSpec(
        DOCUMENTS.state, DOCUMENTS.name, DOCUMENTS.row, DOCUMENTS.key, DOCUMENTS.partition_by,
        (*DOCUMENTS.columns, Column("added", pa.int64(), "a later column", nullable=True)),
    )  # fmt: skip
    monkeypatch.setitem(schemas.TABLES, more.path, more)
    assert lake.read(more, version)["added"].null_count == 20
    assert lake.scan(more, version).collect()["added"].null_count() == 20
    assert next(lake.batches(more, version)).column("added").null_count == 20
    lake.verify(version)
    made = stage(code="2")
    lake.publish(made, [(more, rows(more, 5, made.version))], [ledger(5)], run_id="r", now=NOW)
    assert sorted(lake.read(more, made.version)["added"].to_pylist()) == [0, 1, 2, 3, 4]
    again = stage()
    nulls = rows(DOCUMENTS, 20, version).append_column("added", pa.nulls(20, pa.int64()))
    rejects = DOCUMENT_REJECTS.schema.empty_table()
    lake.publish(again, [(more, nulls), (DOCUMENT_REJECTS, rejects)], [ledger(20)], run_id="r", now=NOW)
    with pytest.raises(LakeError, match="other content"):
        lake.publish(again, [(more, rows(more, 20, version)), (DOCUMENT_REJECTS, rejects)], [ledger(20)], run_id="r", now=NOW)
    lake.verify(version)
    lake.verify(made.version)


def test_control_rows_are_there_once_and_never_silently_changed(lake: Lake) -> None:
    assert lake.table(RELEASES).equals(RELEASES.schema.empty_table())
    data = rows(RELEASES, 3, "")
    assert (lake.insert(RELEASES, data), lake.insert(RELEASES, data)) == (3, 0)
    later = data.set_column(data.column_names.index("sealed_at"), RELEASES.schema.field("sealed_at"), pa.array([datetime.now(UTC)] * 3))
    assert lake.insert(RELEASES, later) == 0, "when and by which run a row was first written is not its content"
    assert lake.table(RELEASES).sort_by("name").equals(data)
    other = data.set_column(data.column_names.index("members"), RELEASES.schema.field("members"), pa.array(["secret-x", "b", "c"]))
    with pytest.raises(LakeError, match="3 rows are there with other content") as caught:
        lake.insert(RELEASES, pa.concat_tables([other, rows(RELEASES, 1, "", start=9)]))
    assert "name-000000" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert lake.table(RELEASES).sort_by("name").equals(data)


def test_gates_can_be_judged_again(lake: Lake) -> None:
    data = rows(GATES, 3, "a" * 64)
    lake.insert(GATES, data, update=True)
    red = data.slice(0, 1).set_column(data.column_names.index("passed"), GATES.schema.field("passed"), pa.array([False]))
    assert lake.insert(GATES, pa.concat_tables([red, rows(GATES, 1, "a" * 64, start=3)]), update=True) == 2
    found = lake.table(GATES).sort_by("check")
    assert found["passed"].to_pylist() == [False, False, True, False]
    assert lake.insert(GATES, red, update=True) == 0


def test_small_files_of_control_tables_are_joined(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "MAX_CONTROL_FILES", 4)
    data = rows(GATES, 12, "a" * 64)
    for n in range(12):
        assert lake.insert(GATES, data.slice(n, 1)) == 1
    assert lake.table(GATES).sort_by("check").equals(data.sort_by("check"))
    table = lake._tables.open(GATES)
    assert table is not None
    assert len(table.file_uris()) <= 5
    assert lake.insert(GATES, data) == 0


def test_null_and_repeated_control_keys_are_refused(lake: Lake) -> None:
    data = rows(APPROVALS, 2, "")
    with pytest.raises(ContractError, match="stand more than once"):
        lake.insert(APPROVALS, pa.concat_tables([data, data]))
    with pytest.raises(ContractError, match="1 nulls"):
        lake.insert(APPROVALS, data.set_column(0, "approval_id", pa.array([None, "b"])))
    assert len(lake.table(APPROVALS)) == 0
    assert lake.insert(APPROVALS, data.slice(0, 0)) == 0


def test_the_marker_is_made_once_and_newer_lakes_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "a" / "lake"
    Lake(root)
    marker = root / "lake.json"
    assert json.loads(marker.read_bytes()) == {"format": 1, "schema": 1}
    for name in ("format", "schema"):
        marker.write_text(json.dumps({"format": 1, "schema": 1, name: 2}))
        with pytest.raises(LakeError, match=f"{name} 2 found.*install the release that wrote it"):
            Lake(root)
        marker.write_text(json.dumps({"format": 1, "schema": 1, name: 0}))
        with pytest.raises(LakeError, match=f"{name} 0 found.*runviewctl migrate"):
            Lake(root)
    for text in ("", "[]", "{}", '{"format": "1", "schema": 1}'):
        marker.write_text(text)
        with pytest.raises(LakeError, match=r"lake\.json|format"):
            Lake(root)
    marker.unlink()
    (root / "control").mkdir()
    with pytest.raises(LakeError, match=r"expected lake\.json or an empty folder"):
        Lake(root)


def test_a_lake_travels_to_other_processes_by_its_root(lake: Lake) -> None:
    version = publish(lake)
    copy = pickle.loads(pickle.dumps(lake))
    assert (copy.root, len(copy.read(DOCUMENTS, version))) == (lake.root, 20)
    assert (copy.files_root, copy.blobs_root) == (f"{lake.root}/files", f"{lake.root}/blobs")


def test_only_a_missing_table_is_created(lake: Lake) -> None:
    publish(lake)
    log = Path(lake.root) / "cleaned_docs/documents/_delta_log"
    entries = sorted(log.glob("*.json"))
    saved = entries[0].read_bytes()
    for damaged in (b"not json", b""):
        entries[0].write_bytes(damaged)
        with pytest.raises(LakeError, match="cleaned_docs/documents"):
            publish(lake, code="2")
    entries[0].write_bytes(saved)
    shutil.move(entries[0], log / "elsewhere")
    with pytest.raises(LakeError, match="cleaned_docs/documents"):
        publish(lake, code="2")
    shutil.move(log / "elsewhere", entries[0])
    publish(lake, code="2")
    assert len(lake.snapshots()) == 2
    shutil.rmtree(log)  # a lost log is not a missing table: its rows are still there
    with pytest.raises(LakeError, match="has files and no log that can be read.*nothing was created"):
        publish(lake, code="3")
    with pytest.raises(LakeError, match="cleaned_docs/documents"):
        lake.read(DOCUMENTS, stage().version)
    log.mkdir()
    (log / ".killed.json.tmp").touch()
    shutil.rmtree(next(log.parent.glob("source=*")))
    publish(lake, code="3")


def test_checks_quote_what_they_put_into_predicates() -> None:
    from resources.lake.delta import sql

    assert sql({"source": "o'b", "version": "v"}) == "source = 'o''b' AND version = 'v'"
    assert lake_checks.where(DOCUMENTS, {"source": "web"}, "v") == {"source": "web", "version": "v"}
