"""What orchestration costs when many partitions are registered, and when years of them are complete.

    python -m benchmarks.scale [--sources 300] [--days 365] [--complete 365] [--partitions 5] [--keep FOLDER] [--json results.json]

A project with that many sources and dates on a real SQLite instance. `--complete` days of it are given completed snapshots and green
gates in the lake, as if they had run. Then, each in fresh processes:
 load         import of `assets.definitions` and everything resolved
 partition    evidence, documents and their checks of one more partition: wall time less the time inside the steps
 page         answers of a real webserver to what the UI asks for an asset's page (the first request loads the code)
CPU seconds are of the process tree; wall time of a busy machine says little.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks import measure

LAST_DAY = date(2026, 11, 29)
N_RECORDS = 20  # of every source: little, since orchestration is measured
SOURCE = """name = "{name}"
reader = "jsonl"
location = "../data/{name}.jsonl"
licence = "CC0-1.0"
consent_basis = "made for this measurement"
kind = "prose"
domain = "scale"
fields = {{ id = "id", text = ["text"] }}
"""
RECORD = '{{"id": "{source}-{n}", "text": "Record {n} of {source} says that the ferry leaves at noon and comes back in the evening."}}\n'
NODE = """query Node($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { __typename ... on AssetNode {
  id description owners { __typename } kinds partitionDefinition { name type description } hasMaterializePermission isPartitioned
  metadataEntries { label } assetChecksOrError { ... on AssetChecks { checks { name description } } } } } }"""
HEALTH = """query Health($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { __typename ... on AssetNode { id
  partitionKeysByDimension { name type partitionKeys }
  assetPartitionStatuses { __typename ... on MultiPartitionStatuses { primaryDimensionName ranges { primaryDimStartKey primaryDimEndKey
    secondaryDim { __typename ... on TimePartitionStatuses { ranges { status startKey endKey } }
      ... on DefaultPartitionStatuses { materializedPartitions failedPartitions } } } } } } } }"""
EVENTS = """query Events($key: AssetKeyInput!) { assetOrError(assetKey: $key) { __typename ... on Asset { id
  assetMaterializations(limit: 100) { partition timestamp runId metadataEntries { label } } } } }"""
PAGE = {"node": NODE, "health": HEALTH, "events": EVENTS}


def make_project(folder: Path, *, n_sources: int) -> None:
    """Sources of a few records each, and the repository's Dagster configuration."""
    for name in ("sources", "releases", "data"):
        (folder / name).mkdir(parents=True)
    shutil.copy(measure.ROOT / "dagster.yaml", folder)
    for name in source_names(n_sources):
        (folder / "sources" / f"{name}.toml").write_text(SOURCE.format(name=name))
        (folder / "data" / f"{name}.jsonl").write_text("".join(RECORD.format(source=name, n=n) for n in range(N_RECORDS)))


def source_names(n_sources: int) -> list[str]:
    return [f"source-{n:04d}" for n in range(n_sources)]


def days(n_days: int) -> list[date]:
    """The last `n_days` days up to LAST_DAY, which is left for the measured partitions."""
    return [LAST_DAY - timedelta(days=n) for n in range(n_days, 0, -1)]


def environment(folder: Path, *, n_days: int) -> dict[str, str]:
    """Environment of a process that works on the project."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("RUNVIEW_", "DAGSTER_"))},
        "PYTHONPATH": os.pathsep.join([str(measure.ROOT), str(measure.ROOT / "loader")]),
        "PYTHONWARNINGS": "ignore",
        "RUNVIEW_PROJECT": str(folder),
        "DAGSTER_HOME": str(folder),
        "DAGSTER_DISABLE_TELEMETRY": "1",
        "RUNVIEW_FIRST_DATE": (LAST_DAY - timedelta(days=n_days)).isoformat(),
    }


def complete(folder: Path, *, n_sources: int, n_days: int) -> int:
    """Completed snapshots and green gates of evidence and documents, written as many runs would have. Returns the snapshots."""
    import polars as pl
    import pyarrow as pa

    from pipeline.contracts import RULES, expected_checks
    from pipeline.ids import canonical_json
    from pipeline.ledger import Ledger
    from pipeline.schemas import GATES, SNAPSHOTS
    from pipeline.stages import StageVersion
    from resources.lake.snapshot import TableRecord, to_row
    from resources.project import Project

    project = Project.at(folder)
    record = project.build_record()
    now = datetime.now(UTC)
    checks = pl.concat(
        pl.DataFrame({"stage": stage, "check": [rule.name for rule in RULES[stage]]}).with_columns(
            expected_checks=pl.lit(canonical_json(expected_checks(stage)).decode())
        )
        for stage in ("evidence", "documents")
    )
    n_snapshots = 0
    for day in days(n_days):
        rows = []
        for source in source_names(n_sources):
            for stage, state in (("evidence", "raw_evidence"), ("documents", "cleaned_docs")):
                made = StageVersion(stage, state, {"source": source, "snapshot": day.isoformat()}, "1", {"source": SOURCE})
                tables = {f"{state}/{name}": TableRecord(N_RECORDS, 1, "0" * 64, ("version", "source")) for name in (stage, "rejects")}
                ledger = Ledger("documents", "made", N_RECORDS, {"kept": N_RECORDS})
                rows.append(to_row(made, tables=tables, ledgers=[ledger], run_id="scale", now=now, record=record))
        snapshots = pa.concat_tables(rows)
        gates = (
            pl.DataFrame(snapshots.select(["version", "stage"]))
            .join(checks, on="stage")
            .with_columns(
                passed=pl.lit(True), severity=pl.lit("error"), n_evaluated=pl.lit(N_RECORDS, pl.Int64), observed=pl.lit(0.0),
                minimum=pl.lit(None, pl.Float64), maximum=pl.lit(0.0), raised=pl.lit(""), judged_at=pl.lit(now), run_id=pl.lit("scale"),
            )
        )  # fmt: skip
        project.lake.insert(SNAPSHOTS, snapshots)
        project.lake.insert(GATES, GATES.conform(gates.to_arrow()))
        n_snapshots += len(snapshots)
    return n_snapshots


def load_definitions() -> measure.Result:
    """Import and resolve, in this process."""
    start = time.perf_counter()
    from assets.definitions import defs

    imported = time.perf_counter()
    defs.get_repository_def().load_all_definitions()
    return {
        "import_s": round(imported - start, 3),
        "resolve_s": round(time.perf_counter() - imported, 3),
        "wall_s": round(time.perf_counter() - start, 3),
        "cpu_s": round(measure.cpu_seconds(), 3),
    }


def materialize(n_sources: int, n_partitions: int) -> measure.Result:
    """Register all sources, then run some partitions; the first also pays what a process pays once."""
    import dagster as dg

    from assets.runner import Runner, persistent_instance
    from resources.project import Project

    project = Project.at(os.environ["RUNVIEW_PROJECT"])
    project.keystore.make_demo_keys()
    instance = persistent_instance(project)
    runner = Runner(project, instance)
    start = time.perf_counter()
    runner.register("sources", *source_names(n_sources))
    registered = time.perf_counter() - start
    overhead, cpu = [], []
    for source in source_names(n_sources)[:n_partitions]:
        cpu_before = measure.cpu_seconds()
        key = dg.MultiPartitionKey({"source": source, "snapshot": LAST_DAY.isoformat()})
        runner.execute("ingest", key)
        title = f"ingest {key}"
        overhead.append(runner.parts[title] - runner.work[title])
        cpu.append(measure.cpu_seconds() - cpu_before)
    return {
        "register_s": round(registered, 3),
        "first_overhead_s": round(overhead[0], 3),
        "overhead_s": round(sorted(overhead)[len(overhead) // 2], 3),
        "wall_s": round(sorted(runner.parts.values())[len(overhead) // 2], 3),
        "cpu_s": round(sorted(cpu)[len(cpu) // 2], 3),
    }


@contextlib.contextmanager
def webserver(folder: Path, environ: dict[str, str]) -> Iterator[str]:
    """A Dagster webserver on a free port of the loopback; yields its address when it answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "dagster_webserver", "-h", "127.0.0.1", "-p", str(port), "-m", "assets.definitions"]
    with (folder / "webserver.log").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, env=environ, stdout=log, stderr=log, start_new_session=True)
        try:
            address = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + 120
            while True:
                if server.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"the webserver did not come up: see {folder / 'webserver.log'}")
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"{address}/server_info", timeout=5).read()
                    break
                time.sleep(0.2)
            yield address
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            try:
                server.wait(timeout=30)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()


def ask(address: str, query: str, key: str) -> tuple[dict[str, Any], float]:
    """The data that GraphQL answers, and the seconds it took. Ends the program on an error."""
    body = json.dumps({"query": query, "variables": {"key": {"path": [key]}}}).encode()
    request = urllib.request.Request(f"{address}/graphql", body, {"content-type": "application/json"})
    start = time.perf_counter()
    with urllib.request.urlopen(request, timeout=120) as response:
        answer = json.load(response)
    if answer.get("errors"):
        raise SystemExit(f"GraphQL refused: {answer['errors'][0]['message']}")
    return answer["data"], time.perf_counter() - start


def page(address: str, key: str) -> tuple[dict[str, dict[str, Any]], dict[str, float]]:
    """What the UI asks for the page of an asset: answers and seconds."""
    answers, seconds = {}, {}
    for name, query in PAGE.items():
        answers[name], seconds[name] = ask(address, query, key)
    return answers, seconds


def inner(folder: Path, environ: dict[str, str], *arguments: str) -> measure.Result:
    """One measurement in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.scale", *arguments]
    done = subprocess.run(command, cwd=folder, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    result: measure.Result = json.loads(done.stdout.splitlines()[-1])
    return result


def run(folder: Path, args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """All measurements on one project."""
    environ = environment(folder, n_days=args.days)
    make_project(folder, n_sources=args.sources)
    n_snapshots = complete(folder, n_sources=args.sources, n_days=args.complete)
    print(f"{args.sources} sources x {args.days} days registered, {n_snapshots} snapshots complete", file=sys.stderr)
    inner(folder, environ, "--inner", "load")  # files in the page cache, compiled
    rows = {"load": inner(folder, environ, "--inner", "load")}
    rows["partition"] = inner(folder, environ, "--inner", "partition", "--sources", str(args.sources), "--partitions", str(args.partitions))
    with webserver(folder, environ) as address:
        for key in ("evidence", "documents"):
            _, first = page(address, key)
            _, again = page(address, key)
            rows[f"page {key}"] = {"wall_s": round(sum(again.values()), 3), "first_s": round(sum(first.values()), 3)}
    return rows


def main() -> None:
    parser = measure.common_arguments("Orchestration at scale.", rounds=1)
    parser.add_argument("--sources", type=int, default=300)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--complete", type=int, default=365, help="days of all sources that are complete in the lake")
    parser.add_argument("--partitions", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="folder for the project, kept afterwards")
    parser.add_argument("--inner", choices=["load", "partition"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inner:
        print(json.dumps(load_definitions() if args.inner == "load" else materialize(args.sources, args.partitions)))
        return
    with contextlib.ExitStack() as stack:
        folder = args.keep or Path(stack.enter_context(tempfile.TemporaryDirectory())) / "project"
        rows = run(folder, args)
    columns = {
        name: name for name in ("import_s", "resolve_s", "register_s", "first_overhead_s", "overhead_s", "first_s", "wall_s", "cpu_s")
    }
    details = {"machine": measure.machine(("dagster", "deltalake", "polars"))}
    measure.report(f"{args.sources} sources x {args.days} days", rows, details, columns=columns, json_path=args.json)


if __name__ == "__main__":
    main()
