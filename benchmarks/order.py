"""What the order costs: CPU per pack of a plan, a batch of 4,096 packs, and memory for 500 million packs.

    python -m benchmarks.order [--rounds 5] [--json results.json]

Five components, shards of 32,768 packs (128 MiB at 2,048 tokens of 2 bytes), windows of 4. `plan` is what a step costs on
every rank: 4,096 positions located at once. `cold` is the first such plan at a far position, with its key tables. The peer is
what torch's RandomSampler does, `randperm(n).tolist()`, at the sizes where that fits; it knows no mixture.
"""

import json
import time

import numpy as np

from benchmarks import measure

PLAN, PACKS_PER_SHARD, ROUNDS_INSIDE = 4096, 32768, 50
SHARES = (0.4, 0.25, 0.2, 0.1, 0.05)
SIZES = {"1 M packs": 1_000_000, "20 M packs": 20_000_000, "500 M packs": 500_000_000}


def run_order(n_packs: int) -> measure.Result:
    """One process: build the order over `n_packs` packs, plan one batch cold, then many elsewhere."""
    from runview.order import ComponentGeometry, Order, StageGeometry

    memory, cpu = measure.anonymous_mib(), measure.cpu_seconds()
    components = []
    for number, share in enumerate(SHARES):
        wanted = int(n_packs * share)
        sizes = [min(PACKS_PER_SHARD, wanted - at) for at in range(0, wanted, PACKS_PER_SHARD)]
        components.append(ComponentGeometry(f"c{number}", 4, sizes))
    length = sum(sum(component.n_packs) for component in components)
    order = Order("5eed", [StageGeometry("main", length, {c.name: int(sum(c.n_packs)) for c in components})], components)
    build_seconds = measure.cpu_seconds() - cpu
    batch = np.arange(PLAN)
    started = time.process_time()
    order.locate(batch + length // 2)
    cold = time.process_time() - started
    started = time.process_time()
    for at in np.linspace(0, length - PLAN, ROUNDS_INSIDE).astype(np.int64).tolist():
        order.locate(batch + at)
    scattered = (time.process_time() - started) / ROUNDS_INSIDE
    started = time.process_time()
    for number in range(ROUNDS_INSIDE):
        order.locate(batch + number * PLAN)
    warm = (time.process_time() - started) / ROUNDS_INSIDE
    return {
        "build_cpu_seconds": build_seconds,
        "cold_plan_ms": cold * 1e3,
        "scattered_plan_ms": scattered * 1e3,
        "plan_ms": warm * 1e3,
        "us_per_pack": warm / PLAN * 1e6,
        "anonymous_mib": measure.anonymous_mib() - memory,
    }


def run_randperm(n_packs: int) -> measure.Result:
    """One process: the epoch's order as torch's RandomSampler makes it."""
    import torch

    torch.set_num_threads(1)
    memory, cpu = measure.anonymous_mib(), measure.cpu_seconds()
    order = torch.randperm(n_packs, generator=torch.Generator().manual_seed(0)).tolist()
    seconds = measure.cpu_seconds() - cpu
    return {
        "build_cpu_seconds": seconds,
        "cold_plan_ms": None,
        "scattered_plan_ms": None,
        "plan_ms": None,
        "us_per_pack": seconds / len(order) * 1e6,
        "anonymous_mib": measure.anonymous_mib() - memory,
    }


def main() -> None:
    parser = measure.common_arguments("Cost of the order.", rounds=5)
    parser.add_argument("--run", nargs=2, metavar=("KIND", "PACKS"), help="one measured process; used by the benchmark itself")
    args = parser.parse_args()
    if args.run:
        print(json.dumps({"runview": run_order, "randperm": run_randperm}[args.run[0]](int(args.run[1]))))
        return
    variants = {f"runview {name}": ["--run", "runview", str(n)] for name, n in SIZES.items()}
    variants |= {f"randperm {name}": ["--run", "randperm", str(n)] for name, n in SIZES.items() if n <= 20_000_000}
    results = measure.in_turn("benchmarks.order", variants, rounds=args.rounds)
    details = {"machine": measure.machine(("numpy", "torch")), "rounds": args.rounds, "all_rounds": results}
    title = f"order: {args.rounds} rounds, {len(SHARES)} components, plans of {PLAN} packs"
    measure.report(title, measure.medians(results), details, json_path=args.json)


if __name__ == "__main__":
    main()
