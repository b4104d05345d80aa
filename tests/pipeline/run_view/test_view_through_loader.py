"""What was built is what the loader delivers: tokens, labels, documents and counts, read back from files on disk."""

import pytest

from pipeline.ids import sha256_hex
from pipeline.run_view.manifest import plan_view
from runview import Loader, RunView
from runview.verify import verify_view
from tests.pipeline.run_view.view_fixture import fixture_view, manifest_of
from tests.pipeline.tokenized_shards.shard_fixture import END, byte_tokenizer, documents

IGNORED = -100


@pytest.fixture(params=[{}, {"policy": "concat", "segment_multiple": 8}, {"seq_len": 64, "segment_multiple": 4}], ids=str)
def published(request, tmp_path):
    made, files, built, parts = fixture_view(**request.param)
    data = manifest_of(made, parts)
    files.write(tmp_path)
    (tmp_path / "views").mkdir()
    (tmp_path / "views" / f"{sha256_hex(data)}.json").write_bytes(data)
    planned, _ = plan_view(made, parts)
    return RunView.open(tmp_path, sha256_hex(data)), built, planned


def test_every_digest_of_every_file_holds(published):
    view, _, _ = published
    assert list(verify_view(view)) == []


def test_labels_of_the_run_are_those_the_manifest_promises(published):
    view, _, planned = published
    found: dict[str, int] = {}
    promised: dict[str, int] = {}
    for stage in planned:
        for name, n in stage.loss_tokens.items():
            promised[name] = promised.get(name, 0) + n
    n_positions = sum(stage.length for stage in planned)
    with Loader(view, micro_batch=2, threads=0) as loader:
        for batch in loader:
            for row in range(2):
                name = batch.component_names[int(batch.pack_ids[row, 0])]
                found[name] = found.get(name, 0) + int((batch.labels[row] != IGNORED).sum())
        delivered = len(loader) * 4
    # the last incomplete global batch is dropped, as the recipe says: its labels are all that may be missing
    assert n_positions - delivered in range(4)
    missing = {name: promised[name] - found[name] for name in promised}
    assert min(missing.values()) >= 0
    assert sum(missing.values()) <= (n_positions - delivered) * view.manifest.seq_len


def test_segments_are_pieces_of_their_documents(published):
    view, _, _ = published
    tokenizer = byte_tokenizer()
    encoded = {row["doc_id"]: tokenizer.encode_batch([row["text"]], end=True)[0].tolist() for row in documents().to_pylist()}
    seen = set()
    with Loader(view, micro_batch=4, threads=0) as loader:
        for batch in loader:
            flat_ids, flat_labels = batch.input_ids.reshape(-1), batch.labels.reshape(-1)
            starts = [*batch.segment_starts.tolist(), flat_ids.size]
            for number, doc_id in enumerate(ids.tobytes().hex() for ids in batch.doc_ids):
                here = encoded[doc_id]
                seen.add(doc_id)
                labels = flat_labels[starts[number] : starts[number + 1]]
                n_labels = int((labels != IGNORED).sum())
                assert (labels[:n_labels] != IGNORED).all()
                first = flat_ids[starts[number]]
                piece = [int(first), *labels[:n_labels].tolist()]
                assert any(here[i : i + len(piece)] == piece for i in range(len(here) - len(piece) + 1))
    assert len(seen) > 40


def test_validation_holds_every_validation_document_once(published):
    view, built, _ = published
    for part in (p for p in built if p.split == "validation"):
        with Loader(view.validation(part.component), micro_batch=1, threads=0) as loader:
            batches = list(loader)
        assert sum(int((batch.labels != IGNORED).sum()) for batch in batches) == part.n_loss_tokens
        found = {ids.tobytes().hex() for batch in batches for ids in batch.doc_ids}
        assert found == {ids.tobytes().hex() for ids in part.doc_ids}
        ends = sum(int((batch.labels == byte_tokenizer().eos).sum()) for batch in batches)
        assert ends == part.n_docs
        assert byte_tokenizer().roles.eos == END
