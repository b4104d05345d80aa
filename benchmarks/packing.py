"""Packing: documents per CPU minute, and how full the packs are, by policy and sequence length.

    python -m benchmarks.packing [--rounds 5] [--documents 2000000] [--json results.json]

Document lengths are lognormal (sigma 1.1, mean 900 tokens) with 2 % long ones (Pareto from 8,192, as books and code dumps
make), from a fixed seed. `split` is the share of documents cut by a pack's edge though they fit a sequence. Compilation is
done before the first round.
"""

import statistics
from functools import partial
from typing import Any, Literal

import numpy as np

from benchmarks import measure

Policy = Literal["concat", "best_fit"]
SEQ_LENS = (2048, 8192)
POLICIES: tuple[Policy, ...] = ("concat", "best_fit")


def document_lengths(n_documents: int) -> np.ndarray[Any, Any]:
    """int64 [n_documents], between 1 and 2^20 tokens."""
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(np.log(900) - 1.1**2 / 2, 1.1, n_documents)
    is_long = rng.random(n_documents) < 0.02
    lengths[is_long] = 8192 * (1 + rng.pareto(1.5, int(is_long.sum())))
    return np.clip(lengths, 1, 1 << 20).astype(np.int64)


def main() -> None:
    parser = measure.common_arguments("Packing rates and fill.", rounds=5)
    parser.add_argument("--documents", type=int, default=2_000_000)
    args = parser.parse_args()
    from pipeline.tokenized_shards.packing import PackPlan, pack

    lengths = document_lengths(args.documents)
    plans: dict[str, PackPlan] = {}
    cases: dict[str, tuple[Policy, int]] = {f"{policy} {seq_len}": (policy, seq_len) for seq_len in SEQ_LENS for policy in POLICIES}

    def make(name: str, subject: np.ndarray[Any, Any]) -> None:
        policy, seq_len = cases[name]
        plans[name] = pack(subject, seq_len=seq_len, policy=policy)

    for name in cases:
        make(name, lengths[:1000])
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for name, taken in measure.paired({name: partial(make, name, lengths) for name in cases}, rounds=args.rounds):
        seconds[name].append(taken)
    rows = {}
    for name, (_, seq_len) in cases.items():
        plan = plans[name]
        middle = statistics.median(seconds[name])
        pieces = np.bincount(plan.segment_doc, minlength=len(lengths))
        fits = lengths <= seq_len
        rows[name] = {
            "M docs/cpu-minute": len(lengths) / middle * 60 / 1e6,
            "Mtok/cpu-s": int(lengths.sum()) / middle / 1e6,
            "fill": f"{plan.n_packed_tokens / (plan.n_packs * seq_len):.4%}",
            "split": f"{(pieces[fits] > 1).mean():.1%}",
            "packs": plan.n_packs,
            "lost": sum(plan.lost.values()),
        }
    details = {"machine": measure.machine(("numpy", "numba")), "rounds": args.rounds, "cpu_seconds": seconds}
    title = f"packing: {args.rounds} rounds, {len(lengths):,} documents, {int(lengths.sum()):,} tokens"
    measure.report(title, rows, details, json_path=args.json)


if __name__ == "__main__":
    main()
