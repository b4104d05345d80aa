"""Train a small GPT (about a million parameters) from a run view, so that a killed run resumes exactly.

    python loader/examples/train_gpt.py VIEW_JSON --steps 24 --checkpoint DIR --log FILE.jsonl
    python loader/examples/train_gpt.py VIEW_JSON --steps 24 --checkpoint DIR --log FILE.jsonl --resume

Needs torch and runview, nothing else. What makes the resumed run equal to the uninterrupted one, bit by bit: the
loader's cursor is saved in the same file as model, optimizer, scheduler and random state; that file appears whole or
not at all; the loss is divided by the step's own token count, which the loader knows before the step; threads and
algorithms are fixed.

Shapes: B packs in a micro-batch, T positions in a pack, C channels, H heads, D channels of a head, V vocabulary.
"""

import argparse
import hashlib
import json
import math
import os
import signal
import sys
from pathlib import Path
from typing import Any

# Waiting threads sleep instead of spinning, which took 1.3 to 2.5 times the CPU on a busy machine. torch reads it once.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import deterministic

from runview import Batch, Loader, RunView
from runview.torch import to_torch

CHANNELS, LAYERS, HEADS = 96, 2, 2
DROPOUT = 0.1  # on the embeddings; without it the saved random state would prove nothing
LOSS_ROWS = 512  # rows of logits at once, 16 MiB at 8,192 entries; all 8,192 rows at once took 1.9 times as long


def attention_mask(cu_seqlens: Tensor, batch: int, length: int) -> Tensor:
    """The block mask [B,1,T,T], added to scores: 0 inside one document's causal past, -inf everywhere else.

    `cu_seqlens` are the segment boundaries of the flattened micro-batch, so a segment number per position separates
    documents from each other and from padding.
    """
    at = torch.arange(batch * length, device=cu_seqlens.device)
    segment_BT = torch.searchsorted(cu_seqlens.long(), at, right=True).view(batch, length)
    same_BTT = segment_BT[:, :, None] == segment_BT[:, None, :]
    allowed_BTT = same_BTT & torch.ones(length, length, dtype=torch.bool, device=at.device).tril()
    return torch.zeros(allowed_BTT.shape, device=at.device).masked_fill_(~allowed_BTT, -math.inf)[:, None]


def rotate(x_BHTD: Tensor, position_BT: Tensor) -> Tensor:
    """Rotary position embedding. Source: Su et al. 2021."""
    half = x_BHTD.shape[-1] // 2
    frequency = 10000.0 ** (-torch.arange(half, device=x_BHTD.device) / half)
    angle = position_BT[:, None, :, None] * frequency
    a, b = x_BHTD[..., :half], x_BHTD[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], dim=-1)


class Block(nn.Module):
    """Attention, then a two-layer network, each on a normalised residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(CHANNELS), nn.RMSNorm(CHANNELS)
        self.qkv = nn.Linear(CHANNELS, 3 * CHANNELS, bias=False)
        self.out = nn.Linear(CHANNELS, CHANNELS, bias=False)
        self.up = nn.Linear(CHANNELS, 4 * CHANNELS, bias=False)
        self.down = nn.Linear(4 * CHANNELS, CHANNELS, bias=False)

    def forward(self, x_BTC: Tensor, position_BT: Tensor, mask: Tensor) -> Tensor:
        B, T, C = x_BTC.shape
        q, k, v = self.qkv(self.norm1(x_BTC)).view(B, T, 3, HEADS, C // HEADS).permute(2, 0, 3, 1, 4)
        q, k = rotate(q, position_BT), rotate(k, position_BT)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x_BTC = x_BTC + self.out(mixed.transpose(1, 2).reshape(B, T, C))
        change: Tensor = self.down(functional.gelu(self.up(self.norm2(x_BTC))))
        return x_BTC + change


class GPT(nn.Module):
    """Token embedding, blocks, norm. Output weights are the embedding (Press and Wolf 2016)."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, CHANNELS)
        self.dropout = nn.Dropout(DROPOUT)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(CHANNELS)
        for weight in self.parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=0.02)

    def forward(self, input_ids_BT: Tensor, position_BT: Tensor, cu_seqlens: Tensor) -> Tensor:
        """The last hidden state [B,T,C]; `logits` turns it into scores."""
        mask = attention_mask(cu_seqlens, *input_ids_BT.shape)
        x_BTC = self.dropout(self.embedding(input_ids_BT))
        for block in self.blocks:
            x_BTC = block(x_BTC, position_BT, mask)
        hidden: Tensor = self.norm(x_BTC)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.embedding.weight.T


def backward(model: GPT, batch: Batch) -> float:
    """Add one micro-batch's gradients; returns its part of the step's mean loss.

    Position losses are summed and divided by the label count of the *whole step*, so cutting a step into micro-batches
    changes no weight. Label -100 has weight zero exactly: its loss is never computed. Logits are made LOSS_ROWS rows
    at a time, each part's gradient collected on the hidden state.
    """
    tensors = to_torch(batch)
    hidden = model(tensors["input_ids"], tensors["position_ids"], tensors["cu_seqlens"])
    collected, labels = hidden.detach().requires_grad_(), tensors["labels"].flatten()
    weights = None if batch.loss_weight is None else torch.from_numpy(batch.loss_weight).flatten()
    total = 0.0
    for at in range(0, labels.numel(), LOSS_ROWS):
        rows = slice(at, at + LOSS_ROWS)
        losses = functional.cross_entropy(model.logits(collected.flatten(0, 1)[rows]), labels[rows], reduction="none")
        part = (losses if weights is None else losses * weights[rows]).sum() / max(1, batch.n_loss_tokens)
        torch.autograd.backward(part)
        total += part.item()
    torch.autograd.backward(hidden, collected.grad)
    return total


def pack_digest(packs: list[list[Any]]) -> str:
    """sha256 of a step's pack ids, in the order of their positions."""
    return hashlib.sha256(json.dumps(packs, separators=(",", ":")).encode()).hexdigest()


def save_checkpoint(folder: Path, step: int, state: dict[str, Any], *, keep: int = 2) -> None:
    """Write `step-<n>.pt` whole or not at all, then remove all but the newest `keep`."""
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"step-{step:08d}.pt"
    temporary = final.with_suffix(".partial")
    with open(temporary, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, final)
    directory = os.open(folder, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)
    for old in sorted(folder.glob("step-*.pt"))[:-keep]:
        old.unlink()


def load_checkpoint(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The newest complete checkpoint; refused when it was made under other settings, which would change every loss."""
    found = sorted(folder.glob("step-*.pt"))
    if not found:
        raise SystemExit(f"{folder}: no checkpoint step-*.pt found; start without --resume")
    state: dict[str, Any] = torch.load(found[-1], weights_only=True)
    for name, value in settings.items():
        if state["settings"].get(name) != value:
            raise SystemExit(f"{found[-1].name}: made with {name} {state['settings'].get(name)!r}, now {value!r}; use the same value")
    return state


def train(args: argparse.Namespace) -> None:
    """Train `args.steps` steps, or continue them."""
    if not args.resume and list(args.checkpoint.glob("step-*.pt")):
        raise SystemExit(f"{args.checkpoint}: holds checkpoints of another run; use --resume, or another folder")
    torch.use_deterministic_algorithms(True)
    # Nothing here reads uninitialised memory, and filling it took 7 % of a step. (The name is unknown to mypy.)
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.set_num_threads(args.threads)
    view = RunView.open(args.view)
    manifest = view.manifest
    if manifest.attention != "intra_document" or manifest.loss_normalisation != "token":
        raise SystemExit(
            f"view {view.view_id}: this example trains attention 'intra_document' and loss_normalisation 'token', "
            f"found {manifest.attention!r} and {manifest.loss_normalisation!r}"
        )
    seed = hashlib.sha256(f"train {manifest.seed}".encode()).digest()[:8]
    torch.manual_seed(int.from_bytes(seed, "little") >> 1)
    model = GPT(manifest.tokenizer.vocab_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, betas=(0.9, 0.95), weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 4) * (0.55 + 0.45 * math.cos(math.pi * step / args.steps))
    )
    settings = {name: getattr(args, name) for name in ("steps", "micro_batch", "threads", "learning_rate")}
    names = [component.name for component in manifest.components]

    with Loader(view, micro_batch=args.micro_batch) as loader:
        steps = min(args.steps, len(loader))
        if steps < args.steps:
            print(f"the view holds {steps} steps, {args.steps} were asked for", file=sys.stderr)
        if args.resume:
            state = load_checkpoint(args.checkpoint, settings)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            scheduler.load_state_dict(state["scheduler"])
            torch.set_rng_state(state["rng"])
            loader.load_state_dict(state["loader"])
            print(f"resuming at position {state['loader']['position']}, step {state['loader']['step']}", file=sys.stderr)
        with open_log(args.log, resume=args.resume) as log:
            loss, packs = 0.0, []
            for batch in loader:
                loss += backward(model, batch)
                packs += [[names[c], epoch, shard, pack] for c, epoch, shard, pack in batch.pack_ids.tolist() if c >= 0]
                if batch.step == args.kill_at_step and batch.micro_index == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                if not batch.is_last:
                    continue
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad(set_to_none=True)
                cursor = loader.state_dict()
                line = {
                    "step": batch.step,
                    "position": cursor["position"],
                    "loss": repr(loss),
                    "n_loss_tokens": batch.n_loss_tokens,
                }
                log.write(json.dumps({**line, "packs": packs, "pack_digest": pack_digest(packs)}) + "\n")
                log.flush()
                print(f"step {batch.step + 1}/{steps} loss {loss:.4f}", file=sys.stderr)
                loss, packs = 0.0, []
                if (batch.step + 1) % args.checkpoint_every == 0 or batch.step + 1 == steps:
                    state = {
                        "model": model.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "scheduler": scheduler.state_dict(),
                    }
                    state |= {"rng": torch.get_rng_state(), "loader": cursor, "settings": settings}
                    save_checkpoint(args.checkpoint, batch.step + 1, state)
                if batch.step + 1 == steps:
                    break


def open_log(path: Path, *, resume: bool) -> Any:
    """The log, emptied; or for a resumed run cut back to its last whole line, since a kill may tear one."""
    if not resume:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, "w", encoding="utf-8")
    with open(path, "a+b") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
    return open(path, "a", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT from a run view.")
    parser.add_argument("view", type=Path, help="views/<view_id>.json")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder for checkpoints")
    parser.add_argument("--checkpoint-every", type=int, default=5)
    parser.add_argument("--log", type=Path, required=True, help="one JSON line per step")
    parser.add_argument("--resume", action="store_true", help="continue from the last complete checkpoint")
    parser.add_argument("--kill-at-step", type=int, help="send SIGKILL to itself inside this step, after its first micro-batch")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
