"""What every benchmark shares: fresh processes run in turn, CPU seconds of a process tree, memory, tables.

Linux only: CPU and memory of worker processes are read from /proc.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")
ROOT = Path(__file__).parents[1]
Result = dict[str, Any]


def cpu_seconds() -> float:
    """User and system time of this process, its finished children, and its living descendants (these to a clock tick)."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime + sum(_ticks(pid) for pid in descendants()) / TICKS


def anonymous_mib() -> float:
    """Private memory of the process tree that no file stands behind; shared pages are counted once in all (Pss)."""
    total = 0
    for pid in [os.getpid(), *descendants()]:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                total += int(line.split()[1])
    return total / 1024


def descendants() -> list[int]:
    """Process ids of living children, grandchildren and so on."""
    found: list[int] = []
    waiting = [os.getpid()]
    while waiting:
        pid = waiting.pop()
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            children = [int(child) for child in task.read_text().split()]
            found += children
            waiting += children
    return found


def warm(paths: Sequence[Path]) -> None:
    """Read every file once, so that all rounds find them in the page cache."""
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.read(1 << 22):
                pass


def in_turn(module: str, variants: Mapping[str, Sequence[str]], *, rounds: int) -> dict[str, list[Result]]:
    """Run each variant in a fresh process, all of them once per round, so that a slow minute hits all alike.

    A variant is `python -m <module> <arguments>`; its last line on stdout is its result as JSON. Every second round runs
    backwards. A variant that fails ends the benchmark.
    """
    results: dict[str, list[Result]] = {name: [] for name in variants}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "loader")])}
    for number in range(rounds):
        for name in list(variants) if number % 2 == 0 else list(variants)[::-1]:
            print(f"round {number + 1}/{rounds} {name}", file=sys.stderr)
            command = [sys.executable, "-m", module, *variants[name]]
            done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            results[name].append(json.loads(done.stdout.splitlines()[-1]))
    return results


def medians(results: Mapping[str, list[Result]]) -> dict[str, Result]:
    """The median of every number over the rounds, by variant; other values are taken from the first round."""
    return {name: {key: _middle([one[key] for one in rounds]) for key in rounds[0]} for name, rounds in results.items()}


def ratios(results: Mapping[str, list[Result]], key: str, *, to: str) -> dict[str, float]:
    """Median over the rounds of `to`'s value divided by each variant's value of the same round (paired)."""
    return {
        name: statistics.median(ours[key] / theirs[key] for ours, theirs in zip(results[to], rounds, strict=True))
        for name, rounds in results.items()
        if name != to
    }


def machine(packages: Sequence[str] = ("numpy", "torch", "safetensors")) -> Result:
    """Processor, cores, load at the time, and versions: a number without them means little."""
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in cpuinfo if line.startswith("model name")), platform.machine())
    versions = {name: metadata.version(name) for name in packages}
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "system": platform.platform(),
        "python": platform.python_version(),
        **versions,
    }


def report(
    title: str,
    rows: Mapping[str, Mapping[str, Any]],
    details: Result,
    *,
    columns: Mapping[str, str] | None = None,
    json_path: Path | None = None,
) -> None:
    """The table on stdout, the machine below it; everything as JSON too when asked. `columns` chooses keys and headings."""
    columns = columns or {key: key for key in next(iter(rows.values()))}
    cells = [["", *columns.values()], *([name, *(_text(row.get(key)) for key in columns)] for name, row in rows.items())]
    widths = [max(len(line[at]) for line in cells) for at in range(len(columns) + 1)]
    print(f"\n{title}")
    for line in cells:
        print("  ".join([line[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(line[1:], widths[1:], strict=True))]))
    print(", ".join(f"{key} {value}" for key, value in details["machine"].items()))
    if json_path:
        json_path.write_text(json.dumps({"title": title, "rows": rows, **details}, indent=1) + "\n")


def common_arguments(description: str, *, rounds: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds, help="fresh processes per variant")
    parser.add_argument("--json", type=Path, help="write the results there as JSON")
    return parser


def paired(functions: Mapping[str, Callable[[], object]], *, rounds: int) -> Iterator[tuple[str, float]]:
    """(name, CPU seconds) of each function, once per round in turn, inside this process."""
    for number in range(rounds):
        for name in list(functions) if number % 2 == 0 else list(functions)[::-1]:
            started = cpu_seconds()
            functions[name]()
            yield name, cpu_seconds() - started


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # ended between the listing and now: the other sum has it
        return 0
    return int(fields[11]) + int(fields[12])


def _middle(values: list[Any]) -> Any:
    return statistics.median(values) if isinstance(values[0], (int, float)) and not isinstance(values[0], bool) else values[0]


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return "-" if value is None else str(value)
