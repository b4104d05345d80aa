"""What starts runs by itself: the nightly schedule, the inbox, release and approval sensors, and the automation conditions.

All but the approval sensor are stopped until somebody starts them in the UI, or RUNVIEW_AUTOMATION=on says that they run: a project
that is only looked at starts nothing. The approval sensor runs, since a signature asks for exactly what it does.
"""

import json
import logging
import os
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg

from assets import jobs, partitions, release_plan, view_steps
from assets.release_plan import Known, Wanted, documents_config
from pipeline.errors import ApprovalError, PipelineError
from pipeline.governance.approvals import approval_id, require_quorum
from pipeline.ids import digest
from pipeline.recipe import Release, Source
from pipeline.schemas import APPROVALS, RUN_VIEWS
from resources.inbox import Arrival, arrivals
from resources.project import Project

logger = logging.getLogger(__name__)
NIGHTLY = os.environ.get("RUNVIEW_NIGHTLY", "0 2 * * *")  # UTC
# Without a marker, this long without a change makes a folder whole. Long, since a paused upload looks the same as one that ended.
QUIET_SECONDS = int(os.environ.get("RUNVIEW_INBOX_QUIET_SECONDS", "600"))
RECENT = timedelta(days=7)  # complete folders that are looked at again, for files that arrive late
MAX_REQUESTS = 50  # runs asked for in one tick; the next tick goes on
INTERVAL_SECONDS = int(os.environ.get("RUNVIEW_SENSOR_SECONDS", "60"))
RUNNING, STOPPED = dg.DefaultSensorStatus.RUNNING, dg.DefaultSensorStatus.STOPPED
AUTOMATIC = os.environ.get("RUNVIEW_AUTOMATION", "off") == "on"


# -- sources ------------------------------------------------------------------------------------------------------------


def read_sources(project: Project) -> tuple[dict[str, Source], list[str]]:
    """Every source of the project by name, and what is wrong with the files that are none. One bad file holds up no other."""
    found, problems = {}, []
    for path in sorted(project.source_dir().glob("*.toml")):
        try:
            found[path.stem] = project.source(path.stem)
        except PipelineError as error:
            problems.append(str(error))
    return found, problems


def read_releases(project: Project) -> tuple[list[Release], list[str]]:
    """Every release of the project, as `read_sources`."""
    found, problems = [], []
    for path in sorted((Path(project.root) / "releases").glob("*.toml")):
        try:
            found.append(project.release(path.stem))
        except PipelineError as error:
            problems.append(str(error))
    return found, problems


def recipe_of(source: str, releases: Iterable[Release]) -> str:
    """The recipe whose documents are made as soon as a source arrives: the one of its releases when that is one, else `default`.

    Documents in other recipes are made when a release asks for them.
    """
    recipes = {release.recipe for release in releases for member in release.members if member.source == source}
    return recipes.pop() if len(recipes) == 1 else "default"


def source_key(source: str, day: date) -> dg.MultiPartitionKey:
    """Partition of a source snapshot."""
    return dg.MultiPartitionKey({"source": source, "snapshot": day.isoformat()})


def with_freshness(evidence: dg.AssetsDefinition, project: Project) -> dg.AssetsDefinition:
    """Evidence with a freshness policy: the shortest time any source declares. Which source is late, the late-source sensor says."""
    hours = [source.expect_every_hours for source in read_sources(project)[0].values() if source.expect_every_hours]
    if not hours:
        return evidence
    policy = dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=min(hours)))
    return evidence.map_asset_specs(lambda spec: dg.apply_freshness_policy(spec, policy))


# -- nightly ------------------------------------------------------------------------------------------------------------


@dg.schedule(
    name="nightly",
    job=jobs.ingest,
    cron_schedule=NIGHTLY,
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.RUNNING if AUTOMATIC else dg.DefaultScheduleStatus.STOPPED,
    description="One run per source for the date it is captured on. Left out: sources pinned to a snapshot, and dated inboxes.",
)
def nightly(context: dg.ScheduleEvaluationContext, project: dg.ResourceParam[Project]) -> Any:
    day = context.scheduled_execution_time.astimezone(UTC).date()
    if day < datetime.now(UTC).date():
        # what a source held on a day that is over cannot be captured any more; the late-source sensor tells of the gap
        return dg.SkipReason(f"the night of {day} is over")
    found, problems = read_sources(project)
    for problem in problems:
        context.log.warning(problem)
    chosen = [source for source in found.values() if source.snapshot is None and not source.dated]
    if not chosen:
        return dg.SkipReason(f"none of {len(found)} sources is captured nightly: each is pinned to a snapshot or a dated inbox")
    partitions.register(context.instance, partitions.sources, (source.name for source in chosen))
    releases = read_releases(project)[0]
    return [
        dg.RunRequest(
            run_key=f"nightly/{source.name}/{day}",
            partition_key=source_key(source.name, day),
            run_config=documents_config(recipe_of(source.name, releases)),
        )
        for source in chosen
    ]


# -- inbox --------------------------------------------------------------------------------------------------------------


@dg.sensor(
    name="inbox",
    job=jobs.ingest,
    minimum_interval_seconds=INTERVAL_SECONDS,
    default_status=RUNNING if AUTOMATIC else STOPPED,
    description="A whole new dated folder of a source with `dated = true` becomes a partition and an ingest run.",
)
def inbox(context: dg.SensorEvaluationContext, project: dg.ResourceParam[Project]) -> dg.SensorResult:
    """A folder is whole when its sender's `_SUCCESS` lies in it; or when its listing did not change for QUIET_SECONDS over two ticks.

    The marker is the sender's own word. Many senders cannot write one, and a listing cannot tell a pause from an end: so the quiet time
    is long, and folders of the last days are looked at again, where changed files make a new version beside the old.
    """
    found, problems = read_sources(project)
    releases = read_releases(project)[0]
    seen: dict[str, list[Any]] = json.loads(context.cursor) if context.cursor else {}
    complete = Known(project).places()
    kept: dict[str, list[Any]] = {}
    requests, now = [], datetime.now(UTC)
    for source in (one for one in found.values() if one.dated):

        def wanted(day: date, name: str = source.name) -> bool:
            return (name, day.isoformat()) not in complete or now.date() - day <= RECENT

        try:
            listed, others = arrivals(source, project.source_dir(), wanted=wanted)
        except PipelineError as error:
            problems.append(str(error))
            kept.update({place: state for place, state in seen.items() if place.startswith(f"{source.name}/")})
            continue
        if others:
            problems.append(f"source {source.name}: {len(others)} folders of the inbox are no dates like 2026-11-01 and are not read")
        for arrival in listed:
            place = f"{source.name}/{arrival.day}"
            if not partitions.dates.has_partition_key(arrival.day.isoformat()):
                problems.append(f"{place}: the date is no partition (first is {partitions.FIRST_DATE}, none is to come)")
                continue
            done = (source.name, arrival.day.isoformat()) in complete
            state, whole = judge_arrival(arrival, seen.get(place), done=done, now=now)
            if whole and not state[2] and len(requests) < MAX_REQUESTS:
                state[2] = True
                config = documents_config(recipe_of(source.name, releases))
                key = source_key(source.name, arrival.day)
                requests.append(dg.RunRequest(run_key=f"inbox/{place}/{arrival.listing}", partition_key=key, run_config=config))
            kept[place] = state
    return _result(context, requests, cursor=json.dumps(kept), problems=problems, sources=[run.partition_key for run in requests])


def judge_arrival(arrival: Arrival, before: list[Any] | None, *, done: bool, now: datetime) -> tuple[list[Any], bool]:
    """State of a folder [listing, unchanged since, asked for], and whether it is whole.

    Args: before, its state at the tick before; done, is its evidence complete (then the first look only remembers it).
    """
    if before is None or before[0] != arrival.listing:
        asked = before is None and done
        return [arrival.listing, now.isoformat(), asked], arrival.marked
    quiet = now - datetime.fromisoformat(before[1]) >= timedelta(seconds=QUIET_SECONDS)
    return list(before), arrival.marked or (quiet and arrival.n_files > 0)


# -- releases -----------------------------------------------------------------------------------------------------------


@dg.sensor(
    name="releases",
    jobs=[jobs.ingest, jobs.clean, jobs.judge, jobs.tokenize, jobs.propose],
    minimum_interval_seconds=INTERVAL_SECONDS,
    default_status=RUNNING if AUTOMATIC else STOPPED,
    description="Brings every release file to its candidate: missing documents, seal, judge, tokenize, propose. Proposed ones rest.",
)
def releases(context: dg.SensorEvaluationContext, project: dg.ResourceParam[Project]) -> dg.SensorResult:
    found, problems = read_releases(project)
    known, busy = Known(project), _busy(context.instance)
    wanted: dict[str, Wanted] = {}
    views, names, tokenizers = [], [], []
    for release in found:
        try:
            plan = release_plan.plan(project, release, known, arrived=lambda source, day: _arrived(project, source, day), seal=True)
            tokenizers.append(project.recipe(release.recipe).tokenization.tokenizer)
        except PipelineError as error:
            problems.append(f"release {release.name}: {error}")
            continue
        names.append(release.name)
        views.append(view_steps.view_name(release))
        if plan.waits:
            more = f", and {len(plan.waits) - 1} more" if len(plan.waits) > 1 else ""
            context.log.info(f"release {release.name} waits: {plan.waits[0]}{more}")
        # the snapshot of a source that is being made for another reason is waited for, not made twice
        wanted.update({run.run_key: run for run in plan.runs if str(run.partition) not in busy})
    chosen = list(wanted.values())[:MAX_REQUESTS]
    requests = [dg.RunRequest(run.run_key, run.run_config, job_name=run.job, partition_key=run.partition) for run in chosen]
    return _result(
        context,
        requests,
        problems=problems,
        sources=[run.partition for run in chosen if run.job in ("ingest", "clean")],
        more=[
            partitions.releases.build_add_request(sorted(set(names))),
            partitions.tokenizers.build_add_request(sorted(set(tokenizers))),
            partitions.run_views.build_add_request(sorted(set(views))),
        ],
    )


def _arrived(project: Project, name: str, day: date) -> bool:
    """Are the files of a source there to be captured? Of an inbox, only the sender's marker says so; the rest waits for its sensor."""
    source = project.source(name)
    if not source.dated:
        return True
    listed, _ = arrivals(source, project.source_dir(), wanted=lambda found: found == day)
    return any(arrival.marked for arrival in listed)


def _busy(instance: dg.DagsterInstance) -> set[str]:
    """Partitions a run is working on or queued for."""
    statuses = [dg.DagsterRunStatus(name) for name in ("QUEUED", "NOT_STARTED", "STARTING", "STARTED", "CANCELING")]
    runs = instance.get_runs(dg.RunsFilter(statuses=statuses))
    return {run.tags["dagster/partition"] for run in runs if "dagster/partition" in run.tags}


# -- approvals ----------------------------------------------------------------------------------------------------------


@dg.sensor(
    name="approvals",
    job=jobs.publish,
    minimum_interval_seconds=min(INTERVAL_SECONDS, 30),
    default_status=RUNNING,
    description="Publishes a candidate once its approvals suffice. A convenience: the publishing asset verifies everything itself.",
)
def approvals(context: dg.SensorEvaluationContext, project: dg.ResourceParam[Project]) -> dg.SensorResult:
    """One run per set of approvals: a publication that failed is started again by a new approval, or by hand."""
    rows = project.lake.table(RUN_VIEWS).to_pylist()
    done = {row["view_id"] for row in rows if row["status"] != "candidate"}
    filed: dict[str, list[tuple[bytes, str]]] = {}
    for row in project.lake.table(APPROVALS, where={"kind": "publish"}).to_pylist():
        filed.setdefault(row["subject"], []).append((row["document"], row["signature"]))
    requests, problems = [], []
    for row in (row for row in rows if row["status"] == "candidate" and row["view_id"] in filed and row["view_id"] not in done):
        view_id, name = row["view_id"], row["name"]
        try:
            current = view_steps.current_candidate(project, name)["view_id"]
            if current != view_id:
                raise ApprovalError(f"approved is {view_id}, its release now makes {current}")
            accepted = require_quorum(
                filed[view_id],
                kind="publish",
                subject=view_id,
                proposer=row["proposer"],
                rules=view_steps.rules_in_force(project),
                now=datetime.now(UTC),
            )
        except PipelineError as error:
            problems.append(f"view {name}: {error}")
            continue
        signed = digest("accepted", sorted(approval_id(one.document, one.signature) for one in accepted))
        requests.append(dg.RunRequest(run_key=f"publish/{view_id}/{signed}", partition_key=name))
    names = sorted({str(request.partition_key) for request in requests})
    more = [partitions.run_views.build_add_request(names)]
    return _result(context, requests, problems=problems, more=more)


# -- shared -------------------------------------------------------------------------------------------------------------


def _result(
    context: dg.SensorEvaluationContext,
    requests: list[dg.RunRequest],
    *,
    problems: Iterable[str],
    cursor: str | None = None,
    sources: Iterable[Any] = (),
    more: Iterable[Any] = (),
) -> dg.SensorResult:
    """The tick's answer: runs, the partitions they need, and in its log what is wrong."""
    said = list(problems)
    for problem in said:
        context.log.warning(problem)
    names = sorted({key.keys_by_dimension["source"] for key in sources})
    added = [partitions.sources.build_add_request(names), *more]
    skip = None if requests else dg.SkipReason("; ".join(said) or "nothing to do")
    added = [request for request in added if request.partition_keys]
    return dg.SensorResult(run_requests=requests, skip_reason=skip, cursor=cursor, dynamic_partitions_requests=added)


conditions = dg.AutomationConditionSensorDefinition(
    "automation_conditions",
    target=dg.AssetSelection.assets("documents"),
    default_status=RUNNING if AUTOMATIC else STOPPED,
    minimum_interval_seconds=INTERVAL_SECONDS,
    description="Documents follow evidence that is collected alone, once its blocking checks passed. Nothing else is automatic.",
)
launching = [inbox, releases, approvals, conditions]
