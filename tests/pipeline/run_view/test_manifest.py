"""The manifest: complete or refused, readable by the loader, and the same bytes whatever the order of its inputs."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import ViewError
from pipeline.ids import canonical_json, sha256_hex
from pipeline.ledger import Ledger
from pipeline.run_view.manifest import (
    ComponentFiles,
    build_record,
    candidate_version,
    check_components,
    component_files,
    component_table,
    plan_view,
)
from pipeline.schemas import CATALOGS, SHARDS
from runview.manifest import KEYS, parse
from runview.shards import Catalog, PackIndex, Shard
from tests.pipeline.run_view.view_fixture import fixture_view, manifest_of

CASE = json.loads((Path(__file__).parents[2] / "cases" / "C26" / "ledgers.json").read_text())


@pytest.fixture(scope="module")
def view():
    return fixture_view()


def case_c26(name):
    """The ledger of the case as the files of a component whose shards have one document and one pack per token."""
    given = CASE["components"][name]
    counts = list(given["shards"].values())
    stats = np.zeros((sum(counts), 4), np.uint32)
    closed = Ledger("tokens", "kept", sum(counts), {"packed": sum(counts), "lost": {}})
    return ComponentFiles(
        name, "train", "c" * 64, "d" * 64, sum(counts), given["total"], sum(counts), 0, {"MIT": sum(counts)},
        counts, counts, counts, stats, closed if given["is_finished"] else None,
    )  # fmt: skip


def test_case_c26_a_partial_component_stops_the_view_by_name():
    with pytest.raises(ViewError) as caught:
        check_components([case_c26(name) for name in CASE["components"]])
    message = str(caught.value)
    assert "2 problems" in message
    assert "books: unfinished" in message
    assert "code: 10 != 30 tokens" in message
    assert "web_ko" not in message
    check_components([case_c26("web_ko")])


@pytest.mark.parametrize("field", ["n_docs", "n_tokens", "n_packs", "n_loss_tokens"])
def test_a_missing_or_wrong_count_has_no_default(view, field):
    made, _, _, parts = view
    for value, words in ((None, "is missing"), (7, "!= 7")):
        changed = [dataclasses.replace(parts[0], **{field: value}), *parts[1:]]
        with pytest.raises(ViewError, match=f"{parts[0].name}.*{words}"):
            manifest_of(made, changed)


def test_a_shard_of_nothing_and_an_open_ledger_are_refused(view):
    made, _, _, parts = view
    part = parts[0]
    empty = dataclasses.replace(
        part, shard_docs=[*part.shard_docs, 0], shard_tokens=[*part.shard_tokens, 0], shard_packs=[*part.shard_packs, 0]
    )
    with pytest.raises(ViewError, match=r"has 0 documents, 0 tokens, 0 packs, none may be 0"):
        manifest_of(made, [empty, *parts[1:]])
    opened = dataclasses.replace(part, ledger=dataclasses.replace(part.ledger, parts={"packed": 1, "lost": {}}))
    with pytest.raises(ViewError, match="does not close"):
        manifest_of(made, [opened, *parts[1:]])
    with pytest.raises(ViewError, match=r"without train shards: \['korean'\]"):
        manifest_of(made, [p for p in parts if p.name != "korean"])


def test_shards_without_a_catalog_or_stats_are_refused(view):
    _, _, built, _ = view
    tables = built[0].tables(release="r", version="v")
    with pytest.raises(ViewError, match=r"shards without a catalog: \[\('code', 'train'\)\]"):
        component_files(tables[CATALOGS.path].slice(0, 0), tables[SHARDS.path], stats={}, ledgers={})
    with pytest.raises(ViewError, match=r"'code', split train: stats [0-9a-f]{64} expected, not given"):
        component_files(tables[CATALOGS.path], tables[SHARDS.path], stats={}, ledgers={})


def test_the_loader_reads_the_manifest_and_its_order_delivers_its_counts(view):
    made, files, built, parts = view
    data = manifest_of(made, parts, quarantine={"version": "1"}, ledgers={"tokens": {"kept": 1}})
    manifest = parse(data)
    assert set(json.loads(data)) == set(KEYS)
    assert manifest.view_id == sha256_hex(data)
    assert canonical_json(json.loads(data)) == data
    assert [c.name for c in manifest.components] == ["code", "prose-en", "korean"]
    assert [c.window for c in manifest.components] == [2, 64, 64]
    catalogs = {c.name: Catalog(files.get("catalogs", c.catalog)) for c in manifest.components}
    order = manifest.order_of({name: catalog.n_packs for name, catalog in catalogs.items()})
    # every position of the run, walked through the files: the achieved shares are those of its labels
    found = order.locate(np.arange(order.length))
    tokens: dict[tuple[int, int], int] = {}
    for stage, component, shard, pack in zip(*(a.tolist() for a in (found.stage, found.component, found.shard, found.pack)), strict=True):
        catalog = catalogs[manifest.components[component].name]
        index = PackIndex(files.get("packs", catalog.pack_index_id[shard]))
        begin, doc_end = index.token_ranges(Shard(files.get("shards", catalog.shard_id[shard])))
        here = slice(int(index.pack_offsets[pack]), int(index.pack_offsets[pack + 1]))
        labels = int((np.minimum(begin[here] + index.segment_length[here], doc_end[here] - 1) - begin[here]).sum())
        tokens[stage, component] = tokens.get((stage, component), 0) + labels
    for number, stage in enumerate(manifest.stages):
        total = sum(n for (m, _), n in tokens.items() if m == number)
        for name, share in stage.achieved_shares.items():
            component = [c.name for c in manifest.components].index(name)
            assert abs(float(share) - tokens[number, component] / total) <= 5e-10
    planned, _ = plan_view(made, parts)
    for number, stage in enumerate(planned):
        assert {name: tokens[number, i] for i, name in enumerate(stage.loss_tokens)} == dict(stage.loss_tokens)
    assert [(v.name, v.n_docs) for v in manifest.validation] == [
        (part.component, part.n_docs) for part in built if part.split == "validation"
    ]  # fmt: skip


def test_the_order_of_the_files_changes_nothing(view):
    made, _, _, parts = view
    assert manifest_of(made, parts[::-1]) == manifest_of(made, parts)


def test_what_the_loader_would_refuse_is_not_handed_out(view):
    made, _, _, parts = view
    with pytest.raises(ViewError, match=r"'fixture': the loader would refuse this manifest: .*relation"):
        manifest_of(made, parts, continues=[{"view_id": "a" * 64, "relation": "better", "up_to_position": 1}])


def test_any_change_of_the_view_is_another_geometry_or_id(view):
    made, _, _, parts = view
    base = parse(manifest_of(made, parts))
    seeded = dataclasses.replace(made, view=dataclasses.replace(made.view, seed="4321"))
    other = parse(manifest_of(seeded, parts))
    assert (base.geometry != other.geometry, base.view_id != other.view_id) == (True, True)
    noted = parse(manifest_of(made, parts, duplicates={"rate": "0.1"}))
    assert (base.geometry == noted.geometry, base.view_id != noted.view_id) == (True, True)


def test_candidate_version_sees_view_and_parents(view):
    made = view[0]
    inputs = {"release": "r", "tokenizer": "bytes", "shards_version": "a" * 64, "decisions_version": "b" * 64}
    base = candidate_version(made, **inputs)
    assert base.partition == {"view": "fixture"}
    longer = dataclasses.replace(made, view=dataclasses.replace(made.view, global_batch=8))
    others = [
        candidate_version(longer, **inputs),
        candidate_version(made, **{**inputs, "shards_version": "c" * 64}),
        candidate_version(made, **inputs, more={"quarantine": "2"}),
        candidate_version(dataclasses.replace(made, text="# other\n"), **inputs),
    ]
    assert len({base.version, *(other.version for other in others)}) == 5


def test_tables_for_people(view):
    made, _, built, parts = view
    rows = component_table(parts, seq_len=made.packing.seq_len).to_pylist()
    assert {(row["component"], row["split"]): row["n_packs"] for row in rows} == {(b.component, b.split): b.n_packs for b in built}
    for row in rows:
        part = next(b for b in built if (b.component, b.split) == (row["component"], row["split"]))
        assert row["fill"] == pytest.approx(float(part.fill))


def test_the_record_is_plain_json():
    record = build_record(
        view_id="a" * 64, created_at="2026-11-29T10:00:00Z", run_ids=["r"], git_commit=None, git_dirty=None,
        packages={"numpy": "2", "a": "1"}, delta_versions={"shards": 3},
        approvals=[{"document": "e30=", "signature": "-----BEGIN SSH SIGNATURE-----"}],
    )  # fmt: skip
    assert json.loads(canonical_json(record)) == record
    assert list(record["packages"]) == ["a", "numpy"]
