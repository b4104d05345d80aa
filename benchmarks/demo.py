"""Where the demo's wall time goes, from the JSON it leaves behind.

    make demo && python -m benchmarks.demo [.lake/demo.json] [--json results.json]

The file holds {"parts": {name: seconds, ...}, ...}. A part whose name starts with `orchestration` counts as such; where the
file also has "work": {name: seconds}, the time spent inside the steps themselves, the share of orchestration is what the parts named there
took beyond it.
"""

import json
from pathlib import Path
from typing import Any

from benchmarks import measure


def shares(demo: dict[str, Any]) -> tuple[dict[str, dict[str, Any]], float]:
    """A row per part (seconds, share, seconds outside its work), and the share of orchestration in all (0 to 1)."""
    parts, work = demo["parts"], demo.get("work", {})
    unknown = sorted(set(work) - set(parts))
    if not parts or unknown:
        raise SystemExit(f"demo.json: parts with their seconds expected, and work named as parts; found no part for {unknown}")
    total = sum(parts.values())
    rows, outside = {}, 0.0
    for name, seconds in parts.items():
        known = 0.0 if name.startswith("orchestration") else work.get(name, seconds)
        overhead = seconds - known
        outside += overhead
        rows[name] = {"seconds": round(seconds, 2), "share": round(seconds / total, 3), "orchestration": round(overhead, 2)}
    rows["all"] = {"seconds": round(total, 2), "share": 1.0, "orchestration": round(outside, 2)}
    return rows, outside / total


def main() -> None:
    parser = measure.common_arguments("Demo wall time by part.", rounds=1)
    parser.add_argument("demo", type=Path, nargs="?", default=Path(".lake/demo.json"))
    args = parser.parse_args()
    if not args.demo.exists():
        raise SystemExit(f"{args.demo}: not found; run `make demo` first")
    rows, share = shares(json.loads(args.demo.read_text()))
    details = {"machine": measure.machine(("dagster", "deltalake", "polars", "torch")), "orchestration_share": share}
    measure.report(f"demo: orchestration is {share:.1%} of the wall time", rows, details, json_path=args.json)


if __name__ == "__main__":
    main()
