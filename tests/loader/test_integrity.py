"""Wrong bytes, missing files and withdrawn views: clear errors, before any wrong token is delivered."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runview import IntegrityError, Loader, ManifestError, MissingFileError, RunView, WithdrawnError
from runview.__main__ import main
from runview.shards import BLOCK_BYTES, Shard, relative_path


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def file_of(built: Any, kind: str, component: int = 0, shard: int = 0) -> Path:
    source = built.components[component]
    digest = {"shards": source.shard_ids, "packs": source.pack_ids}[kind][shard]
    return Path(built.root) / relative_path(kind, digest)


def take_all(built: Any, **options: Any) -> list[Any]:
    with Loader(RunView.open(built.path), micro_batch=1, **options) as loader:
        return [(b.positions.tolist(), b.pack_ids.tolist(), b.input_ids.tolist(), b.labels.tolist()) for b in loader]


@pytest.mark.parametrize("threads", [0, 2])
def test_a_corrupt_token_block_is_an_error_before_its_tokens_are_delivered(fresh: Callable[..., Any], threads: int) -> None:
    built = fresh(seq_len=2048, n_docs=250, erase=0.0, epochs=0.4)
    good = take_all(built, threads=0)
    path = file_of(built, "shards", 0, 1)
    begin, end = Shard(path).token_bytes
    assert end > 2 * BLOCK_BYTES  # several blocks hold tokens, one of them is wrong
    at = BLOCK_BYTES + 4321
    flip(path, at)
    token = (at - begin) // 2
    with Loader(RunView.open(built.path), micro_batch=1, threads=threads) as loader:
        taken = []
        with pytest.raises(IntegrityError) as caught:
            taken.extend((b.positions.tolist(), b.pack_ids.tolist(), b.input_ids.tolist(), b.labels.tolist()) for b in loader)
        message = str(caught.value)
        assert path.name in message
        assert "block 1 (bytes 262144 to 524288)" in message
        state = loader.state_dict()
        with pytest.raises(IntegrityError, match="block 1"):  # asked again it fails again, it never passes on a second try
            next(loader)
        assert loader.state_dict() == state
        shutil.copy(path, path.with_suffix(".bad"))
        flip(path, at)  # repaired in place: the run goes on with the same micro-batch
        taken.extend((b.positions.tolist(), b.pack_ids.tolist(), b.input_ids.tolist(), b.labels.tolist()) for b in loader)
    assert taken == good
    assert token > 0


def test_packs_in_other_blocks_still_come(fresh: Callable[..., Any]) -> None:
    built = fresh(seq_len=2048, n_docs=250, erase=0.0, epochs=0.4)
    path = file_of(built, "shards", 0, 1)
    flip(path, BLOCK_BYTES + 4321)
    n_good = n_bad = 0
    with Loader(RunView.open(built.path), micro_batch=8, threads=0) as loader:
        for step in range(len(loader)):
            try:
                loader.batch_at(step)
                n_good += 1
            except IntegrityError:
                n_bad += 1
    assert n_bad >= 1
    assert n_good > n_bad


@pytest.mark.parametrize("kind", ["shards", "packs"])
def test_wrong_or_missing_blocks_file(fresh: Callable[..., Any], kind: str) -> None:
    built = fresh()
    blocks = file_of(built, kind).with_suffix(".blocks")
    data = blocks.read_bytes()
    flip(blocks, 5)
    with pytest.raises(IntegrityError, match=rf"{blocks.name}: sha256 .* expected from the catalog"):
        take_all(built)
    blocks.write_bytes(data[:-1])
    with pytest.raises(IntegrityError, match=blocks.name):
        take_all(built)
    blocks.unlink()
    with pytest.raises(MissingFileError, match=blocks.name):
        take_all(built)
    blocks.write_bytes(data)
    assert take_all(built)


@pytest.mark.parametrize("where", ["header", "doc_offsets", "doc_state", "packs"])
def test_corrupt_bytes_that_decide_the_layout(fresh: Callable[..., Any], where: str) -> None:
    built = fresh()
    path = file_of(built, "packs" if where == "packs" else "shards")
    size = path.stat().st_size
    flip(path, {"header": 30, "doc_offsets": 900, "doc_state": size - 2, "packs": size - 3}[where])
    with pytest.raises(IntegrityError, match=rf"{path.name}: block 0"):
        take_all(built)


@pytest.mark.parametrize("kind", ["shards", "packs"])
def test_truncated_and_missing_files(fresh: Callable[..., Any], kind: str) -> None:
    built = fresh()
    path = file_of(built, kind)
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(IntegrityError, match=path.name):
        take_all(built)
    path.unlink()
    with pytest.raises(MissingFileError, match=path.name):
        take_all(built)


def test_another_valid_shard_under_the_name_is_refused(fresh: Callable[..., Any]) -> None:
    """Files of equal shape and size, swapped with their .blocks: only the pinned digest can tell."""
    built = fresh()
    a, b = file_of(built, "shards", 0, 0), file_of(built, "shards", 0, 1)
    for suffix in (".safetensors", ".blocks"):
        shutil.copy(b.with_suffix(suffix), a.with_suffix(suffix))
    with pytest.raises(IntegrityError, match=a.with_suffix(".blocks").name):
        take_all(built)


def test_a_hand_edited_manifest_is_refused(fresh: Callable[..., Any]) -> None:
    built = fresh()
    text = built.path.read_bytes()
    built.path.write_bytes(text.replace(b'"tail_batch":"drop"', b'"tail_batch":"masked_pad"'))
    with pytest.raises(IntegrityError, match=f"sha256 {built.view_id} expected from its name"):
        RunView.open(built.path)
    built.path.write_bytes(text + b"\n")
    with pytest.raises(IntegrityError):
        RunView.open(built.path)


@pytest.mark.parametrize("kind", ["catalogs", "stats"])
def test_corrupt_or_missing_catalog_and_stats(fresh: Callable[..., Any], kind: str) -> None:
    built = fresh()
    component = built.components[1]
    path = built.root / relative_path(kind, component.catalog if kind == "catalogs" else component.stats)
    flip(path, path.stat().st_size - 1)
    with pytest.raises(IntegrityError, match=rf"{path.name}: sha256 "):
        RunView.open(built.path)
    path.unlink()
    with pytest.raises(MissingFileError, match=path.name):
        RunView.open(built.path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["components"][0].update(n_tokens=m["components"][0]["n_tokens"] + 1), "'web' declares n_tokens"),
        (lambda m: m["components"][0].update(n_loss_tokens=1), "'web' declares n_loss_tokens 1"),
        (lambda m: m["components"][0].update(stats=m["components"][1]["stats"]), "'web'"),
        (lambda m: m["components"][0].update(window=1), "geometry"),
        (lambda m: m.update(seed="abcd"), "geometry"),
        (lambda m: m["batch_schedule"][0].update(global_batch=4), "geometry"),
        (lambda m: m["stages"][0]["weights"].update(web=6), "geometry"),
        (lambda m: m["components"].reverse(), "geometry"),
        (lambda m: m["stages"][0]["counts"].update(web=1), "stage 'base' declares counts"),
    ],
)
def test_a_manifest_that_disagrees_with_its_files(fresh: Callable[..., Any], helpers: Any, change: Any, message: str) -> None:
    built = fresh()
    change(built.manifest)
    path, _ = helpers.publish(built.root, built.manifest)
    with pytest.raises(ManifestError, match=message):
        RunView.open(path)


def test_a_shard_of_another_tokenizer_is_refused(fresh: Callable[..., Any], helpers: Any) -> None:
    built = fresh()
    built.manifest["tokenizer"]["tokenizer_id"] = "99" * 32
    path, _ = helpers.publish(built.root, built.manifest)
    with Loader(RunView.open(path), micro_batch=1) as loader, pytest.raises(IntegrityError, match="'tokenizer_id'"):
        next(loader)


def test_packs_longer_than_the_sequence_are_refused(fresh: Callable[..., Any], helpers: Any) -> None:
    built = fresh()
    stages = [(s["name"], s["length"], s["weights"]) for s in built.manifest["stages"]]
    shorter = helpers.variant(built, stages=stages, seq_len=15, schedule=[(0, 8)])
    with pytest.raises(Exception, match=r"pack \d+ needs 16 positions, the view's seq_len is 15"):
        take_all(shorter)


def test_withdrawn_at_open_and_while_running(fresh: Callable[..., Any]) -> None:
    built = fresh()
    view = RunView.open(built.path)
    marker = built.path.with_suffix(".withdrawn.json")
    with Loader(view, micro_batch=1, withdrawal_check_seconds=0) as checking, Loader(view, micro_batch=1) as later:
        next(checking)
        next(later)
        marker.write_text(json.dumps({"reason": "erasure"}))
        with pytest.raises(WithdrawnError, match=built.view_id):
            next(checking)
        next(later)  # asked again only after its interval
        marker.unlink()
        next(checking)
        (built.root / "views").rename(built.root / "gone")
        with pytest.raises(MissingFileError, match="cannot be asked"):
            next(checking)
        (built.root / "gone").rename(built.root / "views")
    marker.write_text("{}")
    with pytest.raises(WithdrawnError, match="was withdrawn"):
        RunView.open(built.path)


def test_where_a_view_is_opened_from(tiny: Any, tmp_path: Path) -> None:
    assert RunView.open(str(tiny.root), tiny.view_id).view_id == RunView.open(tiny.path).view_id == tiny.view_id
    candidate = tmp_path / "candidates" / tiny.path.name
    candidate.parent.mkdir()
    shutil.copy(tiny.path, candidate)
    for path in (candidate, tiny.root, tiny.path.with_suffix(".record.json")):
        with pytest.raises(ManifestError, match="published view expected"):
            RunView.open(path)
    with pytest.raises(MissingFileError, match="cannot be read"):
        RunView.open(tiny.root, "00" * 32)
    with pytest.raises(MissingFileError, match="file systems only"):
        RunView.open(f"s3://bucket/views/{tiny.view_id}.json")


def test_show_and_verify_commands(fresh: Callable[..., Any], capsys: Any) -> None:
    built = fresh()
    assert main(["show", str(built.path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["view_id"] == built.view_id
    assert shown["n_steps"] == shown["n_positions_delivered"] // 8
    assert [c["n_packs"] for c in shown["components"]] == [sum(c.n_packs) for c in built.components]
    assert main(["show", str(built.path)]) == 0
    assert f"view_id: {built.view_id}" in capsys.readouterr().out
    assert main(["verify", str(built.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"ok": True, "view_id": built.view_id, "n_shards": 12, "n_problems": 0, "problems": []}
    bad = [file_of(built, "shards", 2, 4), file_of(built, "packs", 1, 0)]
    flip(bad[0], bad[0].stat().st_size // 2)
    flip(bad[1], bad[1].stat().st_size - 1)
    assert main(["verify", str(built.path), "--json"]) == 1
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert not result["ok"]
    assert result["n_problems"] == 2
    assert {p["where"] for p in result["problems"]} == {bad[0].stem, built.components[1].shard_ids[0]}
    assert all(path.name in captured.err for path in bad)
    built.path.write_bytes(built.path.read_bytes() + b" ")
    assert main(["verify", str(built.path)]) == 1
    assert "IntegrityError" in capsys.readouterr().err
    with pytest.raises(SystemExit) as usage:
        main(["verify"])
    assert usage.value.code == 2


def test_verify_finds_statistics_and_tokens_that_do_not_fit(fresh: Callable[..., Any], helpers: Any, capsys: Any) -> None:
    from runview import shards

    built = fresh()
    component = built.components[0]
    table = shards.read_stats(built.root / relative_path("stats", component.stats)).copy()
    table[3, 3] += 1
    stats, _ = helpers.store(built.root, "stats", shards.stats_bytes(table))
    built.manifest["components"][0]["stats"] = stats
    built.manifest["tokenizer"]["vocab_size"] = 30000  # the tokens go up to 60,000
    path, _ = helpers.publish(built.root, built.manifest)
    assert main(["verify", str(path), "--json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["n_problems"] == 12
    assert "is not below vocab_size 30000" in captured.err
    built.manifest["tokenizer"]["vocab_size"] = 60000
    path, _ = helpers.publish(built.root, built.manifest)
    assert main(["verify", str(path)]) == 1
    assert "stats of pack 3 are" in capsys.readouterr().err
    assert np.array_equal(table[:3], shards.read_stats(built.root / relative_path("stats", component.stats))[:3])
