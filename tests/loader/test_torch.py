"""Torch adapters: shared memory, DataLoader, distributed checkpoint, and a model that sees no other document."""

import warnings
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from runview import Loader, RunView
from runview.torch import RunViewDataset, to_torch


def test_tensors_share_the_batch_memory(tiny: Any) -> None:
    with Loader(RunView.open(tiny.path), micro_batch=2) as loader:
        batch = next(loader)
        tensors = to_torch(batch)
        assert tensors["input_ids"].dtype == torch.int64
        assert tensors["cu_seqlens"].dtype == torch.int32
        for name in ("input_ids", "labels", "position_ids", "cu_seqlens", "positions"):
            assert tensors[name].data_ptr() == getattr(batch, name).__array_interface__["data"][0]
        assert (tensors["max_seqlen"], tensors["n_loss_tokens"]) == (batch.max_seqlen, batch.n_loss_tokens)
        kept = tensors["labels"].clone()
        del batch
        for _ in islice(loader, 40):
            pass
        assert torch.equal(tensors["labels"], kept)  # a held tensor's memory is not written again


def test_dataset_under_dataloader_delivers_and_resumes(tiny: Any) -> None:
    view = RunView.open(tiny.path)
    with Loader(view, micro_batch=4) as loader:
        expected = [b.input_ids.tolist() for b in loader]
    with Loader(view, micro_batch=4) as loader:
        dataset = RunViewDataset(loader)
        first = [t["input_ids"].tolist() for t in islice(DataLoader(dataset, num_workers=0, batch_size=None), 6)]
        state = dataset.state_dict()
    assert first == expected[:6]
    assert state["step"] == 3
    with Loader(view, micro_batch=4) as loader:
        dataset = RunViewDataset(loader)
        dataset.load_state_dict(state)
        rest = [t["input_ids"].tolist() for t in DataLoader(dataset, num_workers=0, batch_size=None)]
    assert first + rest == expected


def test_worker_processes_are_refused(tiny: Any) -> None:
    with Loader(RunView.open(tiny.path), micro_batch=4, threads=0) as loader, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match="num_workers=0"):
            next(iter(DataLoader(RunViewDataset(loader), num_workers=1, batch_size=None)))


def test_distributed_checkpoint_saves_and_loads_the_loader(tiny: Any, tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.stateful import Stateful

    view = RunView.open(tiny.path)
    with Loader(view, micro_batch=4) as loader, Loader(view, micro_batch=2) as other:
        assert isinstance(loader, Stateful)
        for _ in islice(loader, 10):
            pass
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.save({"loader": loader}, checkpoint_id=tmp_path / "ckpt", no_dist=True)
            dcp.load({"loader": other}, checkpoint_id=tmp_path / "ckpt", no_dist=True)
        assert other.state_dict() == loader.state_dict()
        assert other.position == 40
        assert next(other).positions.tolist() == [40, 41]


def test_segments_keep_documents_apart_in_a_model(tiny: Any) -> None:
    """Attention masked by cu_seqlens: changing one document changes no logit of another."""
    with Loader(RunView.open(tiny.path), micro_batch=2) as loader:
        batch = next(b for b in loader if len(b.cu_seqlens) > 4)
    tensors = to_torch(batch)
    torch.manual_seed(0)
    ids, edges = tensors["input_ids"].ravel(), tensors["cu_seqlens"].long()
    segment = torch.bucketize(torch.arange(len(ids)), edges[1:], right=True)
    mask = (segment[:, None] == segment[None]) & torch.ones(len(ids), len(ids)).tril().bool()
    table, places = torch.randn(60000, 8), torch.randn(16, 8)

    def logits(tokens: torch.Tensor) -> torch.Tensor:
        x = (table[tokens] + places[tensors["position_ids"].ravel()])[None]
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask[None])[0]

    changed = ids.clone()
    start, end = edges[1].item(), edges[2].item()
    changed[start:end] = (changed[start:end] + 7) % 60000
    outside = (segment != 1).nonzero().ravel()
    assert torch.equal(logits(ids)[outside], logits(changed)[outside])
    assert not torch.equal(logits(ids)[start:end], logits(changed)[start:end])
