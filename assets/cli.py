"""`runviewctl`: the pipeline from the terminal. Results on stdout, progress and logs on stderr.

Exit 0 done, 1 refused or failed, 2 wrong usage.
"""

import argparse
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import PipelineError


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="runviewctl", description="From collected material to an approved run view.")
    parser.add_argument("--project", default=os.environ.get("RUNVIEW_PROJECT", "."), help="folder with sources/ and releases/ (default: .)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("-v", "--verbose", action="store_true", help="log every step to stderr")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="materialize a release up to its candidate run view")
    run.add_argument("release")
    approve = commands.add_parser("approve", help="sign the candidate of a run view and publish it")
    approve.add_argument("view", help="run view name, or view id")
    approve.add_argument(
        "--as", dest="approver", default="", help="principal whose key signs (default: the only key that is not the proposer's)"
    )
    approve.add_argument("--reject", action="store_true", help="sign a rejection instead")
    approve.add_argument("--sign-only", action="store_true", help="file the signature, do not publish")
    explain = commands.add_parser("explain", help="what became of a document, and why")
    explain.add_argument("doc", help="doc_id, or its first 8 or more digits")
    commands.add_parser("status", help="what is complete, what waits for whom")
    keys = commands.add_parser("keys", help="keys and policy").add_subparsers(dest="keys_command", required=True)
    keys.add_parser("init", help="make a deletion key and throw-away demonstration signers, where there are none")
    commands.add_parser("docs", help="build Great Expectations Data Docs of the newest versions")
    demo = commands.add_parser("demo", help="run the embedded default through all states, publish, train, kill and resume")
    demo.add_argument("--release", default="demo")
    demo.add_argument("--steps", type=int, default=24)
    demo.add_argument("--no-training", action="store_true")
    return parser


def _emit(value: dict[str, Any], text: str, *, as_json: bool) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=2, default=str) if as_json else text)


def _settings(arguments: argparse.Namespace) -> None:
    """Environment of one process: Dagster's home, telemetry off, logs on stderr."""
    project = Path(arguments.project).resolve()
    os.environ.setdefault("DAGSTER_HOME", str(project))
    os.environ["RUNVIEW_PROJECT"] = str(project)
    for name in ("RUNVIEW_LAKE", "RUNVIEW_KEYS"):
        if name in os.environ:
            os.environ[name] = os.path.abspath(os.environ[name])
    if os.path.isdir(os.environ["DAGSTER_HOME"]):
        os.chdir(os.environ["DAGSTER_HOME"])  # dagster.yaml names its folders relative to where it lies
    for name, value in (
        ("GX_ANALYTICS_ENABLED", "false"),
        ("HF_HUB_DISABLE_TELEMETRY", "1"),
        ("HF_HUB_OFFLINE", "1"),
        ("DAGSTER_DISABLE_TELEMETRY", "1"),
    ):
        os.environ.setdefault(name, value)
    warnings.filterwarnings("ignore", module=r"dagster.*")
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO if arguments.verbose else logging.WARNING, format="%(levelname)s %(name)s: %(message)s"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    arguments = _parser().parse_args(argv)
    _settings(arguments)
    # imported here so that `runviewctl --help` answers at once
    from assets import commands, demo

    actions: dict[str, Callable[[argparse.Namespace], tuple[dict[str, Any], str]]] = {
        "run": commands.run,
        "approve": commands.approve,
        "explain": commands.explain,
        "status": commands.status,
        "keys": commands.keys,
        "docs": commands.docs,
        "demo": demo.demo,
    }
    try:
        value, text = actions[arguments.command](arguments)
    except PipelineError as error:
        print(f"runviewctl: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("runviewctl: interrupted; run the same command again to go on", file=sys.stderr)
        return 1
    _emit(value, text, as_json=arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
