"""What is missing between a release file and its candidate, and which runs would make it. Nothing is started here."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from typing import Any

import dagster as dg
import orjson
import polars as pl

from assets import partitions, shard_steps, steps, view_steps
from pipeline.contracts import Verdict, expected_checks, gate_problems
from pipeline.ids import digest
from pipeline.recipe import Recipe, Release
from pipeline.schemas import GATES, RUN_VIEWS, SNAPSHOTS
from resources.project import Project

Ready = Callable[[str, date], bool]


@dataclass(frozen=True)
class Wanted:
    """A run to start. `run_key` names what it would make: the same need asks once."""

    job: str
    partition: str | dg.MultiPartitionKey
    run_key: str
    run_config: dict[str, Any] = field(default_factory=dict)


@dataclass
class Plan:
    """Runs that can start now, and why nothing more can."""

    runs: list[Wanted] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)


class Known:
    """Completed versions and verdicts of the lake, read once, so that a release of thousands of snapshots is two reads."""

    def __init__(self, project: Project) -> None:
        rows = pl.DataFrame(project.lake.table(SNAPSHOTS, columns=["version", "stage", "partition", "created_at"]))
        self._complete = set(rows["version"].to_list())
        self._evidence: dict[tuple[str, str], str] = {}
        evidence = rows.filter(pl.col("stage") == "evidence").sort("created_at", "version")
        for version, partition in evidence.select("version", "partition").iter_rows():
            place = orjson.loads(partition)
            self._evidence[place["source"], place["snapshot"]] = version
        columns = ["version", "check", "passed", "severity", "n_evaluated", "observed", "raised"]
        self._verdicts: dict[str, list[Verdict]] = {}
        for version, *verdict in pl.DataFrame(project.lake.table(GATES, columns=columns)).sort("version", "check").iter_rows():
            self._verdicts.setdefault(version, []).append(Verdict(*verdict))

    def evidence(self, source: str, day: date) -> str | None:
        """Version of a source snapshot that was completed last."""
        return self._evidence.get((source, day.isoformat()))

    def places(self) -> set[tuple[str, str]]:
        """Source and date of every complete source snapshot."""
        return set(self._evidence)

    def complete(self, version: str) -> bool:
        """Has the version a snapshot row?"""
        return version in self._complete

    def judged(self, version: str) -> bool:
        """Has any check of the version run? A run that was killed between writing and judging leaves none."""
        return version in self._verdicts

    def problems(self, stage: str, version: str) -> list[str]:
        """Why consumers would refuse a version; empty when its gate is green."""
        return gate_problems(expected_checks(stage), self._verdicts.get(version, []))


def documents_config(recipe: str, **more: str) -> dict[str, Any]:
    """Run configuration of a job that makes documents."""
    return {"ops": {"documents": {"config": {"recipe": recipe, **more}}}}


def plan(project: Project, release: Release, known: Known, *, arrived: Ready, seal: bool) -> Plan:
    """The runs a release needs next, in the order evidence, documents, decisions, shards, candidate; none once it is proposed.

    Args: arrived, whether a source's files of a date are there (an inbox may still be filled); seal, whether to seal the release when
        all its documents are complete and green, which the stages after need.
    Raises: RecipeError when files contradict each other or the seal.
    """
    out = Plan()
    rows = project.lake.table(RUN_VIEWS, columns=["release"], where={"release": release.name})
    if len(rows):
        out.waits.append("is proposed")
        return out
    recipe = project.recipe(release.recipe)
    if steps.sealed_members(project, release.name) is None:
        members = _members(project, release, recipe, known, arrived, out)
        if out.runs or out.waits or not seal:
            return out
        evidence = {(member.source, member.snapshot): member.evidence_version for member in members}
        steps.seal_release(project, release, run_id="release_sensor", evidence=evidence)
    sealed = steps.seal_release(project, release, run_id="release_sensor")
    for member in sealed:
        _documents(recipe, member, known, out)
    if out.runs or out.waits:
        return out
    versions = {member: steps.documents_stage(recipe, member).version for member in sealed}
    decisions = steps.decisions_stage(recipe, release.name, versions).version
    if not _next(out, known, Wanted("judge", release.name, f"judge/{decisions}"), "decisions", decisions):
        return out
    tokenizer = project.tokenizers.load(recipe.tokenization.tokenizer)
    shards = shard_steps.shards_stage(project, release, recipe, tokenizer)[0].version
    key = dg.MultiPartitionKey({"release": release.name, "tokenizer": recipe.tokenization.tokenizer})
    if not _next(out, known, Wanted("tokenize", key, f"tokenize/{shards}"), "shards", shards):
        return out
    candidate = view_steps.candidate_stage(project, release, recipe)[0].version
    _next(out, known, Wanted("propose", view_steps.view_name(release), f"propose/{candidate}"), "candidate", candidate)
    return out


def _members(project: Project, release: Release, recipe: Recipe, known: Known, arrived: Ready, out: Plan) -> list[steps.Member]:
    """Members with their newest evidence; for those that are not complete and green, what is missing goes to `out`."""
    members = []
    today = datetime.now(UTC).date()
    for source, day in steps.places(release):
        version = known.evidence(source, day)
        if version is None:
            if day > today or not partitions.dates.has_partition_key(day.isoformat()):
                out.waits.append(f"{source} {day}: the date is no partition (first is {partitions.FIRST_DATE}, none is to come)")
            elif not arrived(source, day):
                out.waits.append(f"{source} {day}: its files have not arrived")
            else:
                need = digest("need", release.name, project.source(source).identity(), day.isoformat(), recipe.recipe_id)
                config = documents_config(release.recipe)
                out.runs.append(Wanted("ingest", _source_key(source, day), f"ingest/{source}/{day}/{need[:16]}", config))
            continue
        member = steps.Member(source, day, version)
        if not known.judged(version):
            out.runs.append(Wanted("ingest", _source_key(source, day), f"ingest/{version}/judge", documents_config(release.recipe)))
        elif problems := known.problems("evidence", version):
            out.waits.append(f"{source} {day}: evidence is not green, {problems[0]}")
        else:
            _documents(recipe, member, known, out)
            members.append(member)
    return members


def _documents(recipe: Recipe, member: steps.Member, known: Known, out: Plan) -> None:
    version = steps.documents_stage(recipe, member).version
    config = documents_config(recipe.name, evidence_version=member.evidence_version)
    _next(out, known, Wanted("clean", _source_key(member.source, member.snapshot), f"clean/{version}", config), "documents", version)


def _next(out: Plan, known: Known, run: Wanted, stage: str, version: str) -> bool:
    """Is a version complete and green? Else the run that makes or judges it, or what it waits for, goes to `out`."""
    if not known.complete(version):
        out.runs.append(run)
        return False
    if not known.judged(version):
        out.runs.append(replace(run, run_key=f"{run.run_key}/judge"))
        return False
    if problems := known.problems(stage, version):
        out.waits.append(f"{run.partition}: {stage} not green, {problems[0]}")
        return False
    return True


def _source_key(source: str, day: date) -> dg.MultiPartitionKey:
    return dg.MultiPartitionKey({"source": source, "snapshot": day.isoformat()})
