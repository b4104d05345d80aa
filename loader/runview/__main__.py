"""`python -m runview show|verify VIEW`. Exit 0 done, 1 refused or failed, 2 wrong usage."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from runview.errors import RunviewError
from runview.plan import Schedule
from runview.verify import verify_view
from runview.view import RunView


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m runview", description="Look into and check a run view.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("show", "what the view holds"), ("verify", "check every digest of every file of the view")):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("view", help="<root>/views/<view_id>.json")
        command.add_argument("--json", action="store_true", help="for machines")
        command.add_argument("--allowed-signers", help="also verify the view's approvals against this file")
    args = parser.parse_args(argv)
    try:
        view = RunView.open(args.view, allowed_signers=args.allowed_signers)
        return _show(view, as_json=args.json) if args.command == "show" else _verify(view, as_json=args.json)
    except RunviewError as error:
        if args.json:
            print(json.dumps({"ok": False, "problems": [{"where": args.view, "message": str(error)}]}))
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1


def summary(view: RunView) -> dict[str, Any]:
    """What `show` prints, as JSON values."""
    manifest = view.manifest
    schedule = Schedule(view.feed.schedule or (), manifest.length, manifest.tail_batch)
    return {
        "view_id": view.view_id,
        "name": manifest.name,
        "release": manifest.release,
        "recipe_id": manifest.recipe_id,
        "tokenizer_id": manifest.tokenizer.tokenizer_id,
        "seq_len": manifest.seq_len,
        "n_positions": manifest.length,
        "n_steps": schedule.n_steps,
        "tail_batch": manifest.tail_batch,
        "n_positions_delivered": schedule.end_position,
        "batch_schedule": [list(change) for change in schedule.changes],
        "stages": [
            {"name": s.name, "length": s.length, "counts": dict(s.counts), "achieved_shares": dict(s.achieved_shares)}
            for s in manifest.stages
        ],
        "components": [
            {
                "name": c.name,
                "n_shards": f.catalog.n_shards,
                "n_docs": c.n_docs,
                "n_tokens": c.n_tokens,
                "n_packs": c.n_packs,
                "n_loss_tokens": c.n_loss_tokens,
                "window": c.window,
                "licences": dict(c.licences),
            }
            for c, f in zip(manifest.components, view.feed.components, strict=True)
        ],
        "validation": [{"name": c.name, "n_packs": c.n_packs, "n_tokens": c.n_tokens} for c in manifest.validation],
        "continues": [{"view_id": c.view_id, "relation": c.relation, "up_to_position": c.up_to_position} for c in manifest.continues],
        "approvals": [{"principal": a.principal, "fingerprint": a.fingerprint} for a in view.approvals],
    }


def _show(view: RunView, *, as_json: bool) -> int:
    values = summary(view)
    if as_json:
        print(json.dumps(values))
        return 0
    for key, value in values.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            print(f"{key}:")
            for item in value:
                print("  " + "  ".join(f"{name}={_plain(part)}" for name, part in item.items()))
        else:
            print(f"{key}: {_plain(value)}")
    return 0


def _verify(view: RunView, *, as_json: bool) -> int:
    started = time.monotonic()
    problems = []
    for problem in verify_view(view):
        problems.append({"where": problem.where, "message": problem.message})
        print(problem.message, file=sys.stderr, flush=True)
    catalogs = [files.catalog for files in view.feed.components]
    n_shards = sum(c.n_shards for c in catalogs) + sum(
        view.validation(v.name).components[0].catalog.n_shards for v in view.manifest.validation
    )
    result = {"ok": not problems, "view_id": view.view_id, "n_shards": n_shards, "n_problems": len(problems)}
    if as_json:
        print(json.dumps(result | {"problems": problems}))
    else:
        print("  ".join(f"{key}={_plain(value)}" for key, value in result.items()) + f"  {time.monotonic() - started:.1f} s")
    return 1 if problems else 0


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


if __name__ == "__main__":
    sys.exit(main())
