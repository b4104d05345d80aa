"""The example trainer, killed with SIGKILL and resumed, against the uninterrupted run; and its attention mask."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.views import TokenShard, random_shard, write_view
from runview import Loader, RunView

EXAMPLES = Path(__file__).parents[2] / "loader" / "examples"
sys.path.insert(0, str(EXAMPLES))

from compare_logs import compare  # noqa: E402
from train_gpt import GPT, attention_mask, backward, load_checkpoint  # noqa: E402

from runview.torch import to_torch  # noqa: E402

pytestmark = pytest.mark.slow
torch.set_num_threads(1)  # the models here are too small for more, and threads that wait cost others
VOCAB, SEQ_LEN = 512, 128


@pytest.fixture(scope="module")
def view_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(7)
    components = {
        name: [random_shard(rng, n_tokens=n, vocab_size=VOCAB, mean_length=60) for n in (5_000, 6_100)] for name in ("web", "code", "ko")
    }
    return write_view(
        tmp_path_factory.mktemp("lake"), components, seq_len=SEQ_LEN, global_batch=8, vocab_size=VOCAB, epochs=2, keep_tail=True
    )


def run_trainer(view_path: Path, folder: Path, log: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / "train_gpt.py"), str(view_path), "--steps", "10", "--checkpoint-every", "3"]
    command += ["--threads", "1", "--micro-batch", "4", "--checkpoint", str(folder), "--log", str(log), *options]
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def steps_of(log: Path) -> list[int]:
    return [json.loads(line)["step"] for line in log.read_text().splitlines()]


def test_killed_and_resumed_run_equals_the_uninterrupted_one(view_path: Path, tmp_path: Path) -> None:
    whole, torn = tmp_path / "whole.jsonl", tmp_path / "torn.jsonl"
    assert run_trainer(view_path, tmp_path / "a", whole).returncode == 0
    killed = run_trainer(view_path, tmp_path / "b", torn, "--kill-at-step", "8")
    assert killed.returncode == -signal.SIGKILL
    assert steps_of(torn) == list(range(8))
    with open(torn, "a") as file:
        file.write('{"step": 8, "pos')  # what a kill inside a write leaves
    resumed = run_trainer(view_path, tmp_path / "b", torn, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert steps_of(torn) == [*range(8), 6, 7, 8, 9]
    result = compare(whole, torn)
    assert result.equal
    assert (result.n_steps, result.n_equal, result.n_replayed) == (10, 10, 2)
    losses = [float(json.loads(line)["loss"]) for line in whole.read_text().splitlines()]
    assert losses[-1] < losses[0] - 0.1

    with pytest.raises(SystemExit, match="made with micro_batch 4, now 8"):
        load_checkpoint(tmp_path / "b", {"threads": 1, "micro_batch": 8})
    with pytest.raises(SystemExit, match="no checkpoint"):
        load_checkpoint(tmp_path, {})


def test_compare_sees_one_digit_of_a_replayed_step_and_a_missing_step(tmp_path: Path) -> None:
    lines = [
        {"step": s, "position": 8 * s + 8, "loss": f"2.{s}25", "n_loss_tokens": 9, "packs": [["web", 0, 0, s]], "pack_digest": str(s)}
        for s in (0, 1, 2)
    ]

    def write(name: str, chosen: list[dict[str, object]]) -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(line) + "\n" for line in chosen))
        return path

    whole = write("whole", lines)
    assert compare(whole, write("same", [*lines[:2], lines[1], lines[2]])).equal
    drifted = compare(whole, write("drifted", [*lines[:2], {**lines[1], "loss": "2.1250000000000004"}, lines[2]]))
    assert (drifted.equal, drifted.n_equal) == (False, 2)
    assert drifted.differences == ("step 1: loss differs (2.125 and 2.1250000000000004)",)
    assert compare(whole, write("short", lines[:2])).differences == ("step 2: in one log only",)
    assert compare(whole, write("packs", [*lines[:2], {**lines[2], "packs": []}])).differences == ("step 2: packs differs",)
    with pytest.raises(ValueError, match="no step"):
        compare(whole, write("empty", []))
    (tmp_path / "torn").write_text('{"step": 0, "po')
    with pytest.raises(ValueError, match="torn:1"):
        compare(whole, tmp_path / "torn")


def test_a_documents_tokens_change_no_other_documents_logits(tmp_path: Path) -> None:
    """Bit-equal logits, all documents in one pack; and the changed document's own logits do change, from there on."""
    offsets = np.array([0, 20, 21, 75, SEQ_LEN - 9], np.int64)  # and nine positions of padding
    tokens = np.random.default_rng(3).integers(1, VOCAB, int(offsets[-1]), dtype=np.uint16)
    changed = tokens.copy()
    changed[30:34] = (changed[30:34] + 17) % VOCAB
    torch.manual_seed(0)
    model = GPT(VOCAB).eval()
    logits = []
    for name, values in (("before", tokens), ("after", changed)):
        path = write_view(
            tmp_path / name, {"web": [TokenShard(values, offsets)]}, seq_len=SEQ_LEN, global_batch=1, vocab_size=VOCAB, keep_tail=True
        )
        with Loader(RunView.open(path), micro_batch=1) as loader, torch.no_grad():
            batch = next(loader)
            tensors = to_torch(batch)
            assert batch.cu_seqlens.tolist() == [*offsets.tolist(), SEQ_LEN]
            logits.append(model.logits(model(tensors["input_ids"], tensors["position_ids"], tensors["cu_seqlens"]))[0])
    differing = torch.nonzero((logits[0] != logits[1]).any(dim=-1)).flatten().tolist()
    assert differing == list(range(30, 75))


def test_mask_is_causal_and_inside_one_document() -> None:
    """Two rows of four positions, documents of 3 and 1, then of 2 and 2; literal expectation."""
    mask = attention_mask(torch.tensor([0, 3, 4, 6, 8], dtype=torch.int32), 2, 4)[:, 0] == 0
    assert mask.int().tolist() == [
        [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1]],
        [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]],
    ]


def test_micro_batches_weigh_tokens_equally_and_masked_positions_not_at_all(view_path: Path) -> None:
    """One step's gradient is the same cut into 1, 2 or 4 micro-batches, and equals the plain mean over its labels."""
    view = RunView.open(view_path)
    torch.manual_seed(0)
    model = GPT(VOCAB).eval()
    sums, grads = [], []
    for micro_batch in (8, 4, 2):
        with Loader(view, micro_batch=micro_batch) as loader:
            model.zero_grad()
            sums.append(sum(backward(model, batch) for batch in loader.batch_at(3)))
            grads.append(model.embedding.weight.grad.clone())
            if micro_batch == 8:
                (batch,) = loader.batch_at(3)
                tensors = to_torch(batch)
                hidden = model(tensors["input_ids"], tensors["position_ids"], tensors["cu_seqlens"])
                keep = tensors["labels"] != -100
                assert int((~keep).sum()) > 0
                assert int(keep.sum()) == batch.n_loss_tokens
                plain = torch.nn.functional.cross_entropy(model.logits(hidden[keep]), tensors["labels"][keep])
                assert sums[0] == pytest.approx(plain.item(), rel=1e-5)
    assert sums == pytest.approx([sums[0]] * 3, rel=1e-5)
    for grad in grads[1:]:
        torch.testing.assert_close(grad, grads[0], rtol=1e-4, atol=1e-7)
