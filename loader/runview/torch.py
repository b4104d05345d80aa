"""Torch adapters: the only module that imports torch. Tensors share memory with the batch, nothing is copied.

A Loader already is a torch.distributed.checkpoint Stateful: `dcp.save({"model": model, "loader": loader})`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from runview.batch import Batch
from runview.loader import Loader

TensorBatch = dict[str, Any]


def to_torch(batch: Batch) -> TensorBatch:
    """input_ids, labels, position_ids, cu_seqlens, positions as tensors; max_seqlen, step, micro_index, is_last,
    n_loss_tokens and n_loss_samples as plain values. The tensors keep the batch's memory alive."""
    arrays = {
        "input_ids": batch.input_ids,
        "labels": batch.labels,
        "position_ids": batch.position_ids,
        "cu_seqlens": batch.cu_seqlens,
        "positions": batch.positions,
    }
    tensors: TensorBatch = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return tensors | {
        "max_seqlen": batch.max_seqlen,
        "step": batch.step,
        "micro_index": batch.micro_index,
        "is_last": batch.is_last,
        "n_loss_tokens": batch.n_loss_tokens,
        "n_loss_samples": batch.n_loss_samples,
    }


class RunViewDataset(IterableDataset[TensorBatch]):
    """A Loader for `DataLoader(dataset, num_workers=0, batch_size=None)`, for frameworks that insist on one.

    Worker processes are refused: each would deliver the whole rank's batches again. `state_dict` and
    `load_state_dict` are the Loader's. Each iteration continues from the loader's cursor.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[TensorBatch]:
        if get_worker_info() is not None:
            raise RuntimeError("runview reads in threads, not worker processes: use DataLoader(num_workers=0, batch_size=None)")
        return (to_torch(batch) for batch in self.loader)

    def state_dict(self) -> dict[str, str | int]:
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.loader.load_state_dict(state)
