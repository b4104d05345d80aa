"""The chain without Dagster: the same steps and gates in the same order, for tests that kill it or run it in another order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import great_expectations  # noqa: F401 (here, so that a server that forks has it)
import pandas  # noqa: F401

from assets import shard_steps, steps, view_steps
from assets.commands import PROFILES
from assets.gates import read_gate, write_gate
from pipeline.contracts import RULES, expected_checks, gate_problems
from resources.expectations import validate
from resources.project import Project
from tests.support.project import RELEASE, TOKENIZER, VIEW

NONCE = "c0ffee"


def judge(project: Project, stage: str, done: steps.Done) -> steps.Done:
    """Profile, judge and record the gate of a version, as its Dagster check does; a green one is not judged again."""
    if not gate_problems(expected_checks(stage), read_gate(project, done.snapshot.version)):
        return done
    verdicts = validate(RULES[stage], PROFILES[stage](project, done.snapshot.version).counts)
    write_gate(project, stage, done.snapshot.version, verdicts, run_id="chain")
    return done


def stages(project: Project, name: str = RELEASE, members: Sequence[tuple[str, str]] = ()) -> list[tuple[str, Callable[[], object]]]:
    """Every stage of a release up to its candidate, in order. `members` gives sources and dates an order of their own."""
    release = project.release(name)
    recipe = project.recipe(release.recipe)
    places = list(members) or [(member.source, day.isoformat()) for member in release.members for day in member.dates]
    out: list[tuple[str, Callable[[], object]]] = []

    def add(stage: str, title: str, make: Callable[[], steps.Done]) -> None:
        out.append((title, lambda: judge(project, stage, make())))

    for source, day in places:
        when = steps.date.fromisoformat(day)
        add("evidence", f"evidence {source}", lambda s=source, d=when: steps.collect_evidence(project, s, d, run_id="chain"))
        add("documents", f"documents {source}", lambda s=source, d=when: steps.make_documents(project, recipe, s, d, run_id="chain"))
    out.append(("seal", lambda: steps.seal_release(project, release, run_id="chain")))
    add("clusters", "clusters", lambda: steps.make_clusters(project, release, recipe, run_id="chain"))
    add("decisions", "decisions", lambda: steps.make_decisions(project, release, recipe, run_id="chain"))
    add("shards", "shards", lambda: shard_steps.make_shards(project, release, recipe, TOKENIZER, run_id="chain"))
    add("candidate", "candidate", lambda: view_steps.make_candidate(project, release, recipe, run_id="chain"))
    return out


def run(folder: str) -> None:
    """Every stage up to the candidate."""
    for _, make in stages(Project.at(folder)):
        make()


def publish(folder: str) -> None:
    """Sign (the same document may be filed twice) and publish."""
    project = Project.at(folder)
    release = project.release(RELEASE)
    view_steps.sign_approval(project, VIEW, approver="", decision="approve", nonce=NONCE)
    view_steps.publish_view(project, release, project.recipe(release.recipe), run_id="chain")


def everything(folder: str) -> None:
    """From sources to a published view."""
    run(folder)
    publish(folder)
