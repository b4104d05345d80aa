"""Runs the chain for one release in this process, as Dagster runs on a persistent instance."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import dagster as dg

from assets import partitions, steps
from assets.definitions import build_definitions
from assets.runs import process_tag
from pipeline.errors import PipelineError, RecipeError
from resources.lake.home import held
from resources.lake.sharing import working
from resources.project import Project

DAGSTER_LOCK = "dagster"  # its SQLite state cannot be created by two processes at once, nor take one partition key twice
Progress = Callable[[str], contextlib.AbstractContextManager[None]]


class RunFailed(PipelineError):
    """A Dagster run ended without success; names job, partition and the first cause."""


@contextlib.contextmanager
def quiet(_title: str) -> Iterator[None]:
    """No progress."""
    yield


@contextlib.contextmanager
def ticking(title: str) -> Iterator[None]:
    """Progress on stderr: what runs, and every two seconds for how long."""
    start = time.perf_counter()
    stop = threading.Event()
    terminal = sys.stderr.isatty()

    def tick() -> None:
        beats = 0
        while not stop.wait(2.0):
            beats += 1
            if terminal:
                print(f"\r  {title} ... {time.perf_counter() - start:4.0f} s", end="", file=sys.stderr, flush=True)
            elif beats % 5 == 0:
                print(f"  {title} ... {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        print(f"{chr(13) if terminal else ''}  {title}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)


def persistent_instance(project: Project) -> dg.DagsterInstance:
    """The Dagster instance of DAGSTER_HOME, created by one process at a time."""
    with held(str(project.state_root), DAGSTER_LOCK):
        return dg.DagsterInstance.get()


class Runner:
    """Executes jobs of one project in process and remembers how long each took.

    `parts`: "job partition" -> seconds of wall time, orchestration included; `work`: the same -> seconds inside its steps.
    """

    def __init__(self, project: Project, instance: dg.DagsterInstance, progress: Progress = quiet) -> None:
        self.project, self.instance, self.progress = project, instance, progress
        self.definitions = build_definitions(project)
        self.parts: dict[str, float] = {}
        self.work: dict[str, float] = {}

    def execute(self, job: str, partition: str | dg.MultiPartitionKey, *, run_config: dict[str, Any] | None = None) -> dict[str, str]:
        """Run one job on one partition. Returns the version of each asset it materialized. Raises RunFailed when it does not succeed."""
        title = f"{job} {partition}"
        config = {**(run_config or {}), "loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
        start = time.perf_counter()
        with self.progress(title):
            result = self.definitions.resolve_job_def(job).execute_in_process(
                run_config=config, instance=self.instance, partition_key=partition, raise_on_error=False, tags=process_tag()
            )
        self.parts[title] = time.perf_counter() - start
        steps = (event.step_success_data.duration_ms for event in result.all_events if event.is_step_success)
        self.work[title] = sum(steps) / 1000
        if not result.success:
            raise RunFailed(f"{title}: {_first_cause(result)} (run {result.run_id})")
        made = [event.step_materialization_data.materialization for event in result.get_asset_materialization_events()]
        return {one.asset_key.to_user_string(): str(one.metadata["version"].value) for one in made if "version" in one.metadata}

    def register(self, name: str, *keys: str) -> None:
        """Add dynamic partition keys that are not there yet."""
        with held(str(self.project.state_root), DAGSTER_LOCK):
            there = set(self.instance.get_dynamic_partitions(name))  # one question, not one for each of hundreds of sources
            self.instance.add_dynamic_partitions(name, [key for key in dict.fromkeys(keys) if key not in there])

    def run_release(self, name: str) -> None:
        """Everything up to the candidate of the release's view, which then waits for approval."""
        with working(str(self.project.state_root)):  # what one step has made is not removed before the next one reads it
            self._run_release(name)

    def _run_release(self, name: str) -> None:
        project = self.project
        release = project.release(name)
        recipe = project.recipe(release.recipe)
        view = release.view or release.name
        project.tokenizers.load(recipe.tokenization.tokenizer)  # what is missing is said now, not after all has been cleaned
        for source, day in steps.places(release):
            project.source(source)
            if not partitions.dates.has_partition_key(day.isoformat()):
                raise RecipeError(
                    f"release {release.name}: source {source} has snapshot {day}, expected {partitions.FIRST_DATE} or later and no day to "
                    "come; correct the date, or set RUNVIEW_FIRST_DATE to an earlier first day"
                )
        self.register("sources", *sorted({member.source for member in release.members}))
        self.register("releases", release.name)
        self.register("tokenizers", recipe.tokenization.tokenizer)
        self.register("run_views", view)
        evidence = {}  # sealed is what the sources hold now, which need not be what was collected last
        if steps.sealed_members(project, release.name) is None:
            for source, day in steps.places(release):
                key = dg.MultiPartitionKey({"source": source, "snapshot": day.isoformat()})
                made = self.execute("ingest", key, run_config={"ops": {"documents": {"config": {"recipe": release.recipe}}}})
                evidence[source, day] = made["evidence"]
        members = steps.seal_release(project, release, run_id="runviewctl", evidence=evidence)
        for member in members:
            if not steps.documents_ready(project, recipe, member):
                key = dg.MultiPartitionKey({"source": member.source, "snapshot": member.snapshot.isoformat()})
                config = {"recipe": release.recipe, "evidence_version": member.evidence_version}
                self.execute("clean", key, run_config={"ops": {"documents": {"config": config}}})
        self.execute("judge", release.name)
        self.execute("tokenize", dg.MultiPartitionKey({"release": release.name, "tokenizer": recipe.tokenization.tokenizer}))
        self.execute("propose", view)

    def publish(self, view: str) -> None:
        """Publish a run view that has its approvals."""
        self.register("run_views", view)  # Dagster's state may be younger than the lake
        self.execute("publish", view)


def _first_cause(result: dg.ExecuteInProcessResult) -> str:
    for event in result.all_events:
        if event.is_step_failure:
            error = event.step_failure_data.error
            while error is not None and error.cause is not None:
                error = error.cause
            if error is not None:
                return str(error.message).strip()
    failed = [event.event_specific_data for event in result.all_events if event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION]
    red = [f"{e.asset_key.to_user_string()}.{e.check_name}" for e in failed if not e.passed]  # type: ignore[union-attr]
    return f"failed checks: {red}" if red else "no step failure was recorded"
