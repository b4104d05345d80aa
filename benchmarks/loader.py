"""The loader against a torch DataLoader over np.memmap: same tokens, 5 components, batches of 8 x 2,048, int64.

    python -m benchmarks.loader [--rounds 5] [--tokens 134217728] [--json results.json]

Both deliver input_ids and labels from a warm page cache, in a shuffled order, over two epochs. They do not do the same work:
ours also mixes components by weight, keeps labels inside documents, makes position_ids and cu_seqlens, and checks every
256 KiB block's sha256 when it is first touched (all of them in the first epoch). The peers read one flat file, know no
documents and check nothing. `memmap` is the usual map-style dataset; `memmap-batched` fetches a batch in one call
(`__getitems__`), the fastest form torch offers. Their resume is what a careful user writes: a sampler that starts in the middle.
Every variant hands over contiguous arrays, which `labels.view(-1)` in a training loop needs.
"""

import gc
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measure

SEQ_LEN, BATCH, N_COMPONENTS, VOCAB = 2048, 8, 5, 32768
VARIANTS = {
    "runview threads=0": ("runview", 0),
    "runview threads=1": ("runview", 1),
    "memmap workers=0": ("memmap", 0),
    "memmap-batched workers=0": ("memmap-batched", 0),
    "memmap workers=2": ("memmap", 2),
    "memmap-batched workers=2": ("memmap-batched", 2),
}


def build(folder: Path, n_tokens: int) -> Path:
    """A view of five components of unequal size, and the same tokens as one flat file."""
    from benchmarks.views import random_shard, write_view

    rng = np.random.default_rng(0)
    shares = np.array([0.4, 0.25, 0.2, 0.1, 0.05])
    components = {}
    with open(folder / "flat.bin", "wb") as flat:
        for number, share in enumerate(shares):
            n_shards = max(1, round(share * n_tokens / (8 << 20)))
            per_shard = int(share * n_tokens) // n_shards // SEQ_LEN * SEQ_LEN
            components[f"c{number}"] = [random_shard(rng, n_tokens=per_shard, vocab_size=VOCAB) for _ in range(n_shards)]
            for shard in components[f"c{number}"]:
                flat.write(shard.tokens.tobytes())
    return write_view(folder / "lake", components, seq_len=SEQ_LEN, global_batch=BATCH, vocab_size=VOCAB, epochs=2)


def open_runview(folder: Path, threads: int, start: float | None) -> tuple[Any, Iterator[Any], int, int]:
    """A loader that stands at `start` (0 to 1) of the first epoch: it, its batches, steps of an epoch, bytes of its cursor."""
    from runview import Loader, RunView

    (path,) = (path for path in (folder / "lake" / "views").glob("*.json"))
    view = RunView.open(path)
    loader = Loader(view, micro_batch=BATCH, threads=threads)
    steps = len(loader) // 2
    cursor = loader.state_dict()
    if start is not None:
        cursor |= {"step": int(start * steps), "position": int(start * steps) * BATCH}
        loader.load_state_dict(cursor)
    batches = ((batch.input_ids, batch.labels) for batch in loader)
    return loader, batches, steps, len(json.dumps(cursor, separators=(",", ":")))


def open_memmap(folder: Path, workers: int, start: float | None, *, batched: bool) -> tuple[Any, Iterator[Any], int, int]:
    """The peer, likewise; its cursor is the number of batches taken, which the user keeps."""
    import torch
    from torch.utils.data import DataLoader, Dataset, Sampler

    class Windows(Dataset[Any]):
        def __init__(self) -> None:
            self.tokens = np.memmap(folder / "flat.bin", dtype=np.uint16, mode="r")

        def __len__(self) -> int:
            return (len(self.tokens) - 1) // SEQ_LEN

        def __getitem__(self, i: int) -> tuple[Any, Any]:
            window = self.tokens[i * SEQ_LEN : (i + 1) * SEQ_LEN + 1]
            return torch.from_numpy(window[:-1].astype(np.int64)), torch.from_numpy(window[1:].astype(np.int64))

    class BatchedWindows(Windows):
        def __getitems__(self, indices: list[int]) -> tuple[Any, Any]:
            rows = np.stack([self.tokens[i * SEQ_LEN : (i + 1) * SEQ_LEN + 1] for i in indices])
            return torch.from_numpy(rows[:, :-1].astype(np.int64)), torch.from_numpy(rows[:, 1:].astype(np.int64))

    class Shuffled(Sampler[int]):
        """Epoch after epoch of torch.randperm from one seed, starting in the middle when asked."""

        def __init__(self, length: int) -> None:
            self.length, self.epoch, self.skip = length, 0, int((start or 0) * (length // BATCH)) * BATCH

        def __len__(self) -> int:
            return self.length

        def __iter__(self) -> Iterator[int]:
            order = torch.randperm(self.length, generator=torch.Generator().manual_seed(self.epoch)).tolist()
            yield from order[self.skip :]
            self.epoch, self.skip = self.epoch + 1, 0

    dataset = BatchedWindows() if batched else Windows()
    collate = _as_it_is if batched else None
    sampler = Shuffled(len(dataset))
    loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler, num_workers=workers, drop_last=True, collate_fn=collate)
    return loader, (batch for _ in range(2) for batch in loader), len(loader), 8


def _as_it_is(batch: Any) -> Any:
    return batch


def run_one(kind: str, folder: Path, workers: int, start: float | None) -> measure.Result:
    """One process: open, resume at `start` if given, take the first batch; without `start`, two epochs. Imports do not count."""
    import torch  # loaded for both, so that memory compares
    import torch.utils.data

    import runview  # noqa: F401

    torch.set_num_threads(1)
    gc.collect()
    memory = measure.anonymous_mib()
    cpu, wall = measure.cpu_seconds(), time.perf_counter()
    opened = open_runview(folder, workers, start) if kind == "runview" else open_memmap(folder, workers, start, batched="batched" in kind)
    loader, batches, steps, cursor_bytes = opened
    first = next(batches)
    assert first[0].shape == (BATCH, SEQ_LEN)
    result: measure.Result = {"first_batch_seconds": time.perf_counter() - wall, "cursor_bytes": cursor_bytes}
    if start is None:
        taken, checksum = 1, int(first[0][0, 0])
        del first
        for epoch in (1, 2):
            while taken < steps * epoch:
                batch = next(batches)
                checksum += int(batch[0][0, 0])
                taken += 1
            n_tokens = steps * BATCH * SEQ_LEN
            now_cpu, now_wall = measure.cpu_seconds(), time.perf_counter()
            result[f"epoch{epoch}_mtok_per_cpu_second"] = n_tokens / (now_cpu - cpu) / 1e6
            result[f"epoch{epoch}_mtok_per_second"] = n_tokens / (now_wall - wall) / 1e6
            if epoch == 1:
                result["anonymous_mib"] = measure.anonymous_mib() - memory
            cpu, wall = measure.cpu_seconds(), time.perf_counter()
        result["checksum"] = checksum
    if kind == "runview":
        loader.close()
    return result


def main() -> None:
    parser = measure.common_arguments("The loader against torch DataLoader over np.memmap.", rounds=5)
    parser.add_argument("--tokens", type=int, default=128 << 20)
    parser.add_argument("--folder", type=Path, help="where the data lies (default: a temporary folder, removed afterwards)")
    parser.add_argument("--run", nargs=3, metavar=("KIND", "WORKERS", "START"), help="one measured process; used by the benchmark itself")
    args = parser.parse_args()
    if args.run:
        kind, workers, start = args.run
        print(json.dumps(run_one(kind, args.folder, int(workers), None if start == "fresh" else float(start))), flush=True)
        return
    folder = Path(tempfile.mkdtemp(prefix="runview-benchmark-")) if args.folder is None else args.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "flat.bin").exists():
            print("writing the data", file=sys.stderr)
            sys.path.insert(0, str(measure.ROOT / "loader"))
            build(folder, args.tokens)
        measure.warm([path for path in folder.rglob("*") if path.is_file()])
        compare(folder, args.rounds, args.json)
    finally:
        if args.folder is None:
            shutil.rmtree(folder)


COLUMNS = {
    "first_batch_seconds": "first s",
    "resume_start_seconds": "resume s",
    "resume_95_seconds": "at 95 % s",
    "cursor_bytes": "cursor B",
    "anonymous_mib": "anon MiB",
    "epoch1_mtok_per_cpu_second": "Mtok/cpu-s 1st",
    "epoch2_mtok_per_cpu_second": "2nd",
    "epoch2_mtok_per_second": "Mtok/s 2nd",
}
REFERENCE = "runview threads=0"


def compare(folder: Path, rounds: int, json_path: Path | None) -> None:
    def runs(start: str) -> dict[str, list[measure.Result]]:
        commands = {name: ["--folder", str(folder), "--run", kind, str(workers), start] for name, (kind, workers) in VARIANTS.items()}
        return measure.in_turn("benchmarks.loader", commands, rounds=rounds)

    results, at_start, at_95 = runs("fresh"), runs("0"), runs("0.95")
    rows = measure.medians(results)
    for name, row in rows.items():
        row["resume_start_seconds"] = measure.medians(at_start)[name]["first_batch_seconds"]
        row["resume_95_seconds"] = measure.medians(at_95)[name]["first_batch_seconds"]
    size = sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
    paired = {key: measure.ratios(results, key, to=REFERENCE) for key in COLUMNS if key.startswith("epoch")}
    details = {
        "machine": measure.machine(),
        "rounds": rounds,
        "lake_bytes": size,
        "paired_ratios": paired,
        "fresh": results,
        "resumed_at_start": at_start,
        "resumed_at_95": at_95,
    }
    title = f"loader: {rounds} rounds, {size / 1e6:.0f} MB, {N_COMPONENTS} components, {BATCH} x {SEQ_LEN}, int64 input_ids and labels"
    measure.report(title, rows, details, columns=COLUMNS, json_path=json_path)
    ratios = {name: {COLUMNS[key]: by[name] for key, by in paired.items()} for name in VARIANTS if name != REFERENCE}
    measure.report(f"{REFERENCE} divided by, paired medians (above 1: {REFERENCE} is faster)", ratios, details)


if __name__ == "__main__":
    main()
