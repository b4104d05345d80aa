"""The files of a component: what they hold, that input order changes no byte, and that counts close."""

from decimal import Decimal
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import ContractError, MixtureError
from pipeline.ids import sha256_hex
from pipeline.recipe import to_json
from pipeline.schemas import CATALOGS, SHARD_DOCS, SHARDS
from pipeline.tokenized_shards.build import ledgers, stage_version
from pipeline.tokenized_shards.round_trip import add_round_trips, round_trip
from pipeline.tokenized_shards.shards import document_order, shard_edges
from runview.order import keys, permute
from runview.shards import Catalog, PackIndex, Shard, block_digests, read_stats
from tests.pipeline.tokenized_shards.shard_fixture import Files, build, byte_tokenizer, documents, recipe, with_components

POLICIES = [
    {"policy": "best_fit"},
    {"policy": "concat"},
    {"policy": "concat", "tail_pack": "drop"},
    {"policy": "best_fit", "tail_pack": "drop", "segment_multiple": 8, "min_fill": Decimal("0.3")},
    {"policy": "best_fit", "seq_len": 512, "shard_target_bytes": 128 * 2**20},
]


def made_with(**packing):
    made, files = recipe(**packing), Files()
    table = with_components(documents(), made)
    return made, files, table, build([table], made, files)[0]


@pytest.fixture(scope="module", params=POLICIES, ids=lambda p: "-".join(map(str, p.values())))
def case(request):
    return made_with(**request.param)


def test_packs_give_back_every_document_in_its_place(case):
    """Read as the loader reads: through catalog, index and shard; the union of segments is the encoded text."""
    made, files, table, built = case
    tokenizer = byte_tokenizer()
    text_of = dict(zip(table["doc_id"].to_pylist(), table["text"].to_pylist(), strict=True))
    seen: set[str] = set()
    for part in built:
        catalog = Catalog(files.get("catalogs", part.catalog_id))
        stats = read_stats(files.get("stats", part.stats_id))
        assert catalog.shard_id == [s.shard_id for s in part.shards]
        assert int(stats[:, 0].sum()) == part.ledger.parts["packed"]
        assert int(stats[:, 1].sum()) == 1000 * part.n_loss_tokens
        first = 0
        for row, shard_id in enumerate(catalog.shard_id):
            shard_data, index_data = files.get("shards", shard_id), files.get("packs", catalog.pack_index_id[row])
            assert catalog.shard_blocks_sha256[row] == sha256_hex(block_digests(shard_data))
            assert catalog.pack_blocks_sha256[row] == sha256_hex(block_digests(index_data))
            shard, index = Shard(shard_data), PackIndex(index_data)
            assert (shard.n_docs, len(shard.tokens), index.n_packs) == (
                catalog.n_docs[row], catalog.n_tokens[row], catalog.n_packs[row]
            )  # fmt: skip
            assert index.n_packs > 0
            covered = np.zeros(len(shard.tokens), int)
            begin, doc_end = index.token_ranges(shard)
            for p in range(index.n_packs):
                here = slice(int(index.pack_offsets[p]), int(index.pack_offsets[p + 1]))
                lengths = index.segment_length[here].astype(int)
                labels = lengths - (begin[here] + lengths == doc_end[here])
                rounded = -(-lengths // made.packing.segment_multiple) * made.packing.segment_multiple
                assert rounded.sum() <= made.packing.seq_len
                assert stats[first + p].tolist() == [
                    lengths.sum(), 1000 * labels.sum(), (labels > 0).sum(), -(-int((rounded**2).sum()) // made.packing.seq_len)
                ]  # fmt: skip
                for b, n in zip(begin[here].tolist(), lengths.tolist(), strict=True):
                    covered[b : b + n] += 1
            first += index.n_packs
            assert covered.max() == 1
            assert int((covered == 0).sum()) == sum(part.shards[row].lost.values())
            for d in range(shard.n_docs):
                doc_id = shard.doc_ids[d].tobytes().hex()
                tokens = shard.tokens[shard.doc_offsets[d] : shard.doc_offsets[d + 1]]
                assert tokens[-1] == tokenizer.eos
                assert tokenizer.decode_batch(tokens[:-1], np.array([0, len(tokens) - 1])) == [text_of[doc_id]]
                assert doc_id not in seen
                seen.add(doc_id)
    assert seen == set(text_of)


def test_one_contiguous_range_per_pack_where_documents_are_not_split():
    _, files, _, built = made_with(policy="best_fit", seq_len=512)
    for part in built:
        for shard in part.shards:
            index = PackIndex(files.get("packs", shard.pack_index_id))
            begin, _ = index.token_ranges(Shard(files.get("shards", shard.shard_id)))
            ends = begin + index.segment_length
            inner = np.setdiff1d(np.arange(1, len(begin)), index.pack_offsets)
            assert (begin[inner] == ends[inner - 1]).all()


def test_pack_i_of_the_index_is_pack_p_of_i():
    """Layout follows the packing order, so the packing's pack number is the rank of a pack's first token."""
    made, files, _, built = made_with(policy="concat")
    part = max(built, key=lambda b: b.shards[-1].n_packs)
    shard = part.shards[-1]
    index = PackIndex(files.get("packs", shard.pack_index_id))
    begin, _ = index.token_ranges(Shard(files.get("shards", shard.shard_id)))
    number = np.argsort(np.argsort(begin[index.pack_offsets[:-1]]))
    key = keys(made.packing.seed, "index", part.component, shard.ordinal)
    assert number.tolist() == permute(np.arange(index.n_packs), index.n_packs, key).tolist()


@given(st.permutations(range(90)), st.lists(st.integers(1, 89), max_size=4))
@settings(max_examples=8, deadline=None)
def test_order_and_batching_of_the_input_change_no_byte(order, cuts):
    made, files = recipe(), Files()
    table = with_components(documents(), made).take(order)
    edges = [0, *sorted(set(cuts)), 90]
    built, counts = build([table.slice(a, b - a) for a, b in pairwise(edges)], made, files)
    _, expected_files, _, expected = made_with()
    assert files.by_path == expected_files.by_path
    for part, other in zip(built, expected, strict=True):
        assert part.licences == other.licences
        for path, rows in part.tables(release="r", version="v").items():
            assert rows.equals(other.tables(release="r", version="v")[path])
    assert counts["n_exact"].to_pylist() == counts["n_docs"].to_pylist()
    assert sum(counts["n_docs"].to_pylist()) == 90


def test_rows_conform_and_agree_with_the_ledger(case):
    _, files, table, built = case
    keyed = {SHARDS: [], SHARD_DOCS: [], CATALOGS: []}
    for part in built:
        rows = part.tables(release="r", version="v")
        for spec, collected in keyed.items():
            collected.append(rows[spec.path])
        docs = rows[SHARD_DOCS.path]
        assert sum(docs["n_tokens"].to_pylist()) == part.ledger.total
        assert sum(docs["n_packed_tokens"].to_pylist()) == part.ledger.parts["packed"]
        assert sum(docs["n_loss_tokens"].to_pylist()) == part.n_loss_tokens == rows[CATALOGS.path]["n_loss_tokens"][0].as_py()
        for row in rows[SHARDS.path].to_pylist():
            assert row["size_bytes"] == len(files.by_path[row["path"]])
    for spec, collected in keyed.items():
        whole = pa.concat_tables(collected)
        assert whole.schema.equals(spec.schema)
        spec.check_keys(whole)
    all_docs = pa.concat_tables(keyed[SHARD_DOCS])
    assert sorted(all_docs["doc_id"].to_pylist()) == sorted(table["doc_id"].to_pylist())
    closed = ledgers(built)
    assert closed["tokens"].total == sum(part.n_tokens for part in built)
    assert closed["tokens"].parts["lost"] == {"tail_dropped": sum(sum(s.lost.values()) for part in built for s in part.shards)}
    assert {f"tokens/{part.component}/{part.split}" for part in built} == set(closed) - {"tokens"}


def test_several_shards_were_made():
    built = made_with()[3]
    assert min(len(part.shards) for part in built if part.split == "train") >= 2
    assert {part.split for part in built} == {"train", "validation"}


def test_a_component_without_documents_packs_or_fill_is_refused_by_name():
    made = recipe()
    table = with_components(documents(), made)
    no_korean = table.filter(pa.compute.not_equal(table["component"], "korean"))
    with pytest.raises(MixtureError, match=r"'korean', split train: no documents"):
        build([no_korean], made, Files())
    with pytest.raises(MixtureError, match=r"'code', split train: \d+ tokens make no pack of 65536.*masked_pad"):
        made_with(seq_len=65536, tail_pack="drop")
    with pytest.raises(MixtureError, match=r"'code', split train: 1 packs hold \d+ tokens, 0\.\d+ of their room, min_fill is 0\.5"):
        made_with(seq_len=65536)


def test_mixed_purposes_empty_documents_and_repeated_ids_are_refused():
    made = recipe()
    table = with_components(documents(), made)
    purposes = ["sft" if i == 0 else "pretrain" for i in range(90)]
    with pytest.raises(MixtureError, match=r"'code'.*purposes \['pretrain', 'sft'\]"):
        build([table.set_column(table.schema.get_field_index("purpose"), "purpose", pa.array(purposes))], made, Files())
    with pytest.raises(ContractError, match=r"'code': \d+ doc_ids stand more than once"):
        build([table, table], made, Files())
    with pytest.raises(ContractError, match="known are"):
        build([table.set_column(table.schema.get_field_index("split"), "split", pa.array(["test"] * 90))], made, Files())


def test_a_put_that_returns_another_digest_is_caught():
    made = recipe()
    files = Files()
    files.put = lambda kind, data: "0" * 64
    with pytest.raises(ContractError, match="must return the sha256"):
        build([with_components(documents(), made)], made, files)


def test_document_order_breaks_ties_by_the_whole_id():
    ids = np.zeros((3, 32), np.uint8)
    ids[:, 31] = [2, 0, 1]
    assert document_order(ids, seed="00", component="c").tolist() == [1, 2, 0]
    many = np.random.default_rng(1).integers(0, 256, (500, 32), np.uint8)
    orders = [document_order(many, seed=seed, component=name).tolist() for seed, name in (("00", "c"), ("01", "c"), ("00", "d"))]
    assert [sorted(order) for order in orders] == [list(range(500))] * 3
    assert len({tuple(order) for order in orders}) == 3


@pytest.mark.parametrize(
    ("sizes", "edges"),
    [
        ([5, 5, 5, 5], [0, 2, 4]),
        ([5, 5, 5], [0, 2, 3]),
        ([5, 30, 5, 5], [0, 1, 2, 4]),
        ([1, 30, 5, 5], [0, 2, 4]),
        ([5, 5, 1], [0, 3]),
        ([1], [0, 1]),
    ],
)
def test_shards_are_cut_at_the_target_and_never_hold_less_than_a_sequence(sizes, edges):
    assert shard_edges(np.array(sizes), target_tokens=10, seq_len=4).tolist() == edges


def test_round_trip_counts_what_changed_and_samples_alike_in_any_batching():
    table = documents()
    tokenizer = byte_tokenizer()
    half = {"tokenizer": tokenizer, "seed": "aa", "share": Decimal("0.5")}
    whole = round_trip(table, **half)
    parts = add_round_trips([round_trip(table.slice(0, 31), **half), round_trip(table.slice(31), **half)])
    assert parts.equals(whole)
    assert 20 < sum(whole["n_docs"].to_pylist()) < 70
    assert whole.column_names == ["language", "domain", "n_docs", "n_exact"]
    assert round_trip(table.slice(0, 0), tokenizer=tokenizer, seed="aa").num_rows == 0

    lossy = byte_tokenizer(normalizer={"type": "Lowercase"})
    counts = {row["language"]: row for row in round_trip(table, tokenizer=lossy, seed="aa").to_pylist()}
    assert counts["en"]["n_exact"] == 0
    assert counts["ko"]["n_exact"] == counts["ko"]["n_docs"] == 30


def test_stage_version_sees_every_input_and_nothing_else():
    made = recipe()

    def version(**changes):
        versions = {"decisions_version": "d" * 64, "documents_versions": {"made/2026-11-01": "e" * 64}}
        inputs = {"release": "r", "tokenizer": byte_tokenizer(), **versions}
        parts = {"tokenization": made.tokenization, "packing": made.packing, "components": made.components}
        parts.update({key: changes.pop(key) for key in list(changes) if key in parts})
        return stage_version(parts["tokenization"], parts["packing"], parts["components"], **{**inputs, **changes})

    base = version()
    assert base.partition == {"release": "r", "tokenizer": "bytes"}
    assert base.recipe_part["packing"] == to_json(made.packing)
    changed = [
        version(release="other"),
        version(decisions_version="f" * 64),
        version(documents_versions={"made/2026-11-01": "0" * 64}),
        version(packing=recipe(seq_len=256).packing),
        version(components=made.components[:2]),
    ]
    assert len({base.version, *(v.version for v in changed)}) == 6
    wider = tuple(type(c)(c.name, c.sources, c.languages, c.kinds, c.domains, window=9, max_epochs=Decimal(9)) for c in made.components)
    assert version(components=wider).version == base.version
