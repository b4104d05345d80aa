"""`runviewctl`: the pipeline from the terminal. Results on stdout, progress and logs on stderr.

Exit 0 done, 1 refused, failed or something is wrong, 2 wrong usage.
"""

import argparse
import importlib
import json
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from pipeline.errors import PipelineError

# As in pipeline/recipe.py, which judges them; written here so that `--help` answers at once.
KINDS = ("prose", "code", "math", "chat")
READERS = ("tree", "jsonl", "parquet", "text", "python_environment")


class _Commands:
    """Adds commands that take `--project`, `--json` and `--verbose` before or after their name."""

    def __init__(self, parser: argparse.ArgumentParser, name: str) -> None:
        self._commands = parser.add_subparsers(dest=name, required=True, metavar="COMMAND")

    def add(self, name: str, action: str, what: str) -> argparse.ArgumentParser:
        """A command. `action`: `module:function` below assets, imported only when it runs."""
        parser = self._commands.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
        _common(parser, after=True)
        parser.set_defaults(action=action)
        return parser

    def group(self, name: str, what: str) -> "_Commands":
        """A command with commands of its own."""
        parser = self._commands.add_parser(name, help=what)
        _common(parser, after=True)
        return _Commands(parser, f"{name}_command")


def _common(parser: argparse.ArgumentParser, *, after: bool) -> None:
    def default(value: Any) -> Any:
        return argparse.SUPPRESS if after else value

    where = default(os.environ.get("RUNVIEW_PROJECT", "."))
    parser.add_argument("--project", default=where, help="folder with sources/ and releases/ (default: .)")
    parser.add_argument("--json", action="store_true", default=default(False), help="print the result as JSON")
    parser.add_argument("-v", "--verbose", action="store_true", default=default(False), help="log every step to stderr")


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a date like 2026-11-01, found {text!r}") from None


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number, found {text!r}")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="runviewctl", description="From collected material to an approved run view.")
    _common(parser, after=False)
    commands = _Commands(parser, "command")
    _daily(commands)
    _files(commands)
    _upkeep(commands)
    return parser


def _daily(commands: _Commands) -> None:
    run = commands.add("run", "commands.run:run", "materialize a release up to its candidate run view")
    run.add_argument("release")
    commands.add("status", "commands.status:status", "how far sources are, what is complete, failed, or waits for whom")
    commands.add("candidates", "commands.view:candidates", "run views that wait for approval")
    approve = commands.add("approve", "commands.run:approve", "sign the candidate of a run view and publish it")
    approve.add_argument("view", help="run view name, or view id")
    only = "principal whose key signs (default: the only key that is not the proposer's)"
    approve.add_argument("--as", dest="approver", default="", help=only)
    approve.add_argument("--reject", action="store_true", help="sign a rejection instead")
    approve.add_argument("--sign-only", action="store_true", help="file the signature, do not publish")
    view = commands.group("view", "run views")
    pull = view.add("pull", "commands.pull:pull", "copy the files of a published view to this machine, to train from it")
    pull.add_argument("view", help="run view name, or view id")
    pull.add_argument("folder", metavar="DIR", type=os.path.abspath)  # before the working directory changes
    diff = view.add("diff", "commands.view:diff", "what another view changes: shares, documents, decisions")
    diff.add_argument("before", metavar="A", help="run view name, or view id")
    diff.add_argument("after", metavar="B")
    explain = commands.add("explain", "commands.explain:explain", "what became of a document, and why")
    explain.add_argument("doc", help="doc_id, or its first 8 or more digits")
    demo = commands.add("demo", "demo:demo", "run the embedded default through all states, publish, train, kill and resume")
    demo.add_argument("--release", default="demo")
    demo.add_argument("--steps", type=int, default=24)
    demo.add_argument("--no-training", action="store_true")


def _files(commands: _Commands) -> None:
    _source(commands.group("source", "source files"))
    recipe = commands.group("recipe", "recipes")
    check = recipe.add("check", "commands.recipe:check", "is a recipe sane, and how would a release fall into its components")
    check.add_argument("name")
    check.add_argument("--release", default="", help="count the kept documents of this release by component")
    diff = recipe.add("diff", "commands.recipe:diff", "values that differ, and the stages that get new versions by it")
    release = commands.group("release", "releases")
    seal = release.add("seal", "commands.release:seal", "pin the newest evidence of every member; it never changes again")
    show = release.add("show", "commands.release:show", "members with versions, counts and gates")
    for one in (seal, show):
        one.add_argument("name")
    changed = release.add("diff", "commands.release:diff", "members, documents and decisions that differ")
    for one in (diff, changed):
        one.add_argument("before", metavar="A")
        one.add_argument("after", metavar="B")
    backfill = commands.group("backfill", "a range of dates of one source")
    for name, what in (
        ("plan", "dates, bytes, CPU hours and disk; starts nothing"),
        ("run", "collect what is missing, in order; resumable"),
    ):
        one = backfill.add(name, f"commands.backfill:{name}", what)
        one.add_argument("source")
        one.add_argument("first", metavar="FROM", type=_day)
        one.add_argument("last", metavar="TO", type=_day)
        one.add_argument("--recipe", default="default", help="recipe that makes the documents (default: default)")


def _source(source: _Commands) -> None:
    check = source.add("check", "commands.source:check", "dry run on the first records: what would be read, rejected and mapped")
    check.add_argument("name")
    check.add_argument("--date", type=_day, help="of an inbox: the dated folder to look at (default: the newest)")
    add = source.add("add", "commands.source:add", "write a source file, after a dry run that finds nothing wrong")
    add.add_argument("name")
    add.add_argument("--reader", required=True, choices=READERS)
    add.add_argument("--location", default="", help="folder or file")
    add.add_argument("--consent-basis", required=True, help="why this may be held")
    add.add_argument("--licence", default="", help="SPDX expression (default: unknown)")
    add.add_argument("--licence-field", default="", help="field that holds the licence of a record")
    add.add_argument("--kind", default="", choices=KINDS, help="what the documents are (default: decided per document)")
    add.add_argument("--domain", default="")
    add.add_argument("--purpose", default="", choices=("pretrain", "sft"))
    add.add_argument("--charset", default="")
    add.add_argument("--snapshot", type=_day, help="the one date this source has")
    add.add_argument("--dated", action="store_true", help="the location is an inbox of dated folders")
    add.add_argument("--expect-every-hours", type=_count, default=0, help="later than this the source counts as late")
    add.add_argument("--split-lines", action="store_true", help="reader text: one document per line")
    add.add_argument("--select", default="", choices=("code", "prose"), help="reader python_environment: which files")
    for name, what in (("include", "files to take, as patterns"), ("exclude", "files to leave out"), ("packages", "distribution names")):
        add.add_argument(f"--{name}", nargs="+", default=[], metavar="X", help=what)
    add.add_argument("--deletion-key", dest="deletion_key_fields", nargs="+", default=[], metavar="FIELD", help="fields to ask deletion by")
    for role, what in (("text", "text"), ("messages", "the turns"), ("id", "its id"), ("url", "its address"), ("collected-at", "its time")):
        many: str | int = "+" if role == "text" else 1
        dest = f"field_{role.replace('-', '_')}"
        add.add_argument(f"--{role}", dest=dest, nargs=many, default=[], metavar="FIELD", help=f"field with {what}")
    add.add_argument("--meta", dest="field_meta", nargs="+", default=[], metavar="FIELD", help="fields to keep beside the text")
    for one in (check, add):
        one.add_argument("--records", type=_count, default=100, help="how many to look at (default: 100)")


def _upkeep(commands: _Commands) -> None:
    gc = commands.add("gc", "commands.gc:gc", "versions and files that nothing needs; a dry run unless --yes is given")
    gc.add_argument("--yes", action="store_true", help="remove them")
    gc.add_argument("--min-age-hours", type=_count, default=24, help="keep what is younger (default: 24)")
    doctor = commands.add("doctor", "commands.doctor:doctor", "check digests, registry, left-over files and dead runs")
    doctor.add_argument("--quick", action="store_true", help="leave out what reads every byte")
    doctor.add_argument("--fix", action="store_true", help="mark dead runs as failed and free their slots")
    backup = commands.add("backup", "commands.lake:backup", "copy the lake, also while runs write to it; again brings the copy up to date")
    backup.add_argument("folder", metavar="DIR_OR_URL", help="an empty folder, or an earlier copy of this lake")
    migrate = commands.add("migrate", "commands.lake:migrate", "bring the lake to this release's format; a dry run unless --yes is given")
    migrate.add_argument("--yes", action="store_true", help="do it")
    keys = commands.group("keys", "keys and policy")
    keys.add("init", "commands.setup:keys", "make a deletion key and throw-away demonstration signers, where there are none")
    commands.add("docs", "commands.setup:docs", "build Great Expectations Data Docs of the newest versions")


def _emit(value: dict[str, Any], text: str, *, as_json: bool) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=2, default=str) if as_json else text)


def _settings(arguments: argparse.Namespace) -> None:
    """Environment of one process: Dagster's home, telemetry off, logs on stderr."""
    arguments.cwd = os.getcwd()  # paths a person gives are meant from here
    project = Path(arguments.project).resolve()
    os.environ.setdefault("DAGSTER_HOME", str(project))
    os.environ["RUNVIEW_PROJECT"] = str(project)
    for name in ("RUNVIEW_LAKE", "RUNVIEW_KEYS"):
        if os.environ.get(name) and "://" not in os.environ[name]:
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
    module, _, function = arguments.action.partition(":")
    action = getattr(importlib.import_module(f"assets.{module}"), function)  # here, so that `runviewctl --help` answers at once
    try:
        value, text = action(arguments)
    except PipelineError as error:
        print(f"runviewctl: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("runviewctl: interrupted; run the same command again to go on", file=sys.stderr)
        return 1
    _emit(value, text, as_json=arguments.json)
    return 0 if value.get("ok", True) else 1


if __name__ == "__main__":
    sys.exit(main())
