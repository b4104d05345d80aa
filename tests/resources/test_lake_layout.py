"""How tables lie on disk: what reaches the log, row groups, and what errors may say."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from pipeline.errors import LakeError
from pipeline.schemas import DOCUMENTS, EVIDENCE, RUN_VIEWS, TABLES, TableSpec
from pipeline.stages import StageVersion
from resources.lake import Lake, delta
from tests.support.tables import NOW, ledger, rows

MARKER = "PLANTED"


def publish(lake: Lake, spec: TableSpec, data: pa.Table, made: StageVersion) -> None:
    lake.publish(made, [(spec, data)], [ledger(len(data))], run_id="r", now=NOW)


def made_for(spec: TableSpec, code: str = "1") -> StageVersion:
    partition = {"source": "web", "snapshot": "2026-11-01"} if "source" in spec.partition_by else {"release": "demo"}
    return StageVersion(spec.name, spec.state, partition, code)


def versioned() -> list[TableSpec]:
    return [spec for spec in TABLES.values() if spec.state != "control" and spec is not RUN_VIEWS]


def parquet_files(lake: Lake, spec: TableSpec) -> list[Path]:
    return sorted((Path(lake.root) / spec.path).rglob("*.parquet"))


@pytest.mark.parametrize("spec", versioned(), ids=lambda spec: spec.path)
def test_nothing_but_ids_and_counts_reaches_logs_and_footers(tmp_path: Path, spec: TableSpec) -> None:
    lake, made = Lake(tmp_path), made_for(spec)
    publish(lake, spec, rows(spec, 10, made.version, marker=MARKER), made)
    logs = [path.read_bytes() for path in (tmp_path / spec.path / "_delta_log").iterdir()]
    assert made.version.encode() in b"".join(logs)
    assert MARKER.encode() not in b"".join(logs)
    n_columns = 0
    for path in parquet_files(lake, spec):
        group = pq.read_metadata(path).row_group(0)
        for n in range(group.num_columns):
            column = group.column(n)
            assert column.compression == "ZSTD"
            assert (column.statistics is not None and column.statistics.has_min_max) == (column.path_in_schema in spec.stats_columns)
            if column.path_in_schema in ("text", "payload"):
                assert not {"RLE_DICTIONARY", "PLAIN_DICTIONARY"} & set(column.encodings)
            n_columns += 1
    assert n_columns >= len(spec.columns) - len(spec.partition_by)


def test_table_properties(tmp_path: Path) -> None:
    lake, made = Lake(tmp_path), made_for(DOCUMENTS)
    publish(lake, DOCUMENTS, rows(DOCUMENTS, 3, made.version), made)
    table = DeltaTable(str(tmp_path / "cleaned_docs/documents"))
    found = table.metadata().configuration
    assert found["delta.dataSkippingStatsColumns"].split(",") == [c for c in DOCUMENTS.stats_columns if c != "source"]
    assert (found["delta.enableChangeDataFeed"], found["delta.enableDeletionVectors"]) == ("false", "false")
    assert table.metadata().partition_columns == ["source"]
    assert table.history(1)[0]["runview.version"] == made.version


def test_errors_never_carry_rows(tmp_path: Path) -> None:
    lake, made = Lake(tmp_path), made_for(DOCUMENTS)
    data = rows(DOCUMENTS, 10, made.version, marker=MARKER)
    publish(lake, DOCUMENTS, data, made)
    elsewhere = {"source": "web", "version": "0" * 64}
    with pytest.raises(LakeError, match="writing table cleaned_docs/documents failed") as caught:
        lake._tables.replace(DOCUMENTS, data, where=elsewhere, note={})  # deltalake's own message previews the rows outside
    error: BaseException | None = caught.value
    assert MARKER not in str(error)
    assert error is not None
    assert error.__cause__ is None
    assert error.__suppress_context__


def test_a_damaged_file_is_an_error_that_names_the_table(tmp_path: Path) -> None:
    lake, made = Lake(tmp_path), made_for(DOCUMENTS)
    publish(lake, DOCUMENTS, rows(DOCUMENTS, 10, made.version, marker=MARKER), made)
    (file,) = parquet_files(lake, DOCUMENTS)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    for act in (
        lambda: lake.read(DOCUMENTS, made.version),
        lambda: lake.verify(made.version),
        lambda: list(lake.batches(DOCUMENTS, made.version)),
    ):
        with pytest.raises(LakeError, match="reading table cleaned_docs/documents failed") as caught:
            act()
        assert MARKER not in str(caught.value)
    os.unlink(file)
    with pytest.raises(LakeError, match="reading table cleaned_docs/documents failed"):
        lake.read(DOCUMENTS, made.version)


def test_row_groups_are_bounded_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "ROW_GROUP_BYTES", 2**20)
    lake, made = Lake(tmp_path), made_for(EVIDENCE)
    n, largest = 400, 2**20
    sizes = np.random.default_rng(0).integers(100, 10_000, n)
    sizes[[7, 8, 200]] = largest
    data = rows(EVIDENCE, n, made.version)
    payloads = pa.array([os.urandom(size) for size in sizes.tolist()], pa.binary())
    data = data.set_column(data.column_names.index("payload"), EVIDENCE.schema.field("payload"), payloads)
    publish(lake, EVIDENCE, data, made)
    groups = []
    for path in parquet_files(lake, EVIDENCE):
        metadata = pq.read_metadata(path)
        groups += [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    assert sum(group.num_rows for group in groups) == n
    assert max(group.total_byte_size for group in groups) < 2**20 + largest + 2**18
    assert len(groups) > 3
    assert pa.Table.from_batches(lake.batches(EVIDENCE, made.version, batch_rows=50)).equals(data.sort_by("evidence_id"))


@pytest.mark.parametrize(
    ("sizes", "limit", "want"), [([5, 5, 5, 5], 10, 2), ([5, 5, 5, 5], 4, 1), ([1, 9, 1, 1], 11, 3), ([1], 5, 1), ([], 5, 1)]
)
def test_window_is_the_longest_run_of_rows_within_the_limit(sizes: list[int], limit: int, want: int) -> None:
    assert delta._window(np.array(sizes, dtype=np.int64), limit, 100) == want


def test_rows_lie_in_the_order_of_the_key(tmp_path: Path) -> None:
    lake, made = Lake(tmp_path), made_for(DOCUMENTS)
    data = rows(DOCUMENTS, 20_000, made.version)
    publish(lake, DOCUMENTS, pa.concat_tables([data.slice(start, 3000) for start in range(0, 20_000, 3000)]), made)
    for path in parquet_files(lake, DOCUMENTS):
        ids = pq.read_table(path, columns=["doc_id"])["doc_id"].to_pylist()
        assert ids == sorted(ids)
