"""The demonstration: the embedded default through all states, published, trained from, killed and resumed."""

import argparse
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from assets import commands, view_steps
from assets.runner import ticking
from pipeline.errors import PipelineError, ViewError
from resources.mirror import pull
from resources.places import is_local
from resources.project import Project

EXAMPLES = Path(__file__).resolve().parent.parent / "loader" / "examples"


def demo(arguments: argparse.Namespace) -> commands.Answer:
    """Run the chain, approve with a throw-away key, publish, train, kill, resume, compare."""
    start = time.perf_counter()
    project = commands.project_of(arguments)
    project.keystore.make_demo_keys()
    runner = commands.runner_of(project)
    print("1. raw_evidence -> cleaned_docs -> tokenized_shards -> run_view", file=sys.stderr)
    runner.run_release(arguments.release)
    view = view_steps.view_name(project.release(arguments.release))
    view_id = view_steps.sign_approval(project, view, approver="", decision="approve", nonce=secrets.token_hex(16))
    runner.publish(view)
    value: dict[str, Any] = {
        "release": arguments.release,
        **commands.release_summary(project, arguments.release),
        **commands.view_summary(project, view_id),
        "approval": "demo",
        "parts": {name: round(seconds, 2) for name, seconds in runner.parts.items()},
        "work": {name: round(seconds, 2) for name, seconds in runner.work.items()},
    }
    lines = [commands.summary_text(value), "", "Load it:", *(f"  {line}" for line in commands.load_lines(value["path"]).splitlines())]
    if not arguments.no_training:
        print("2. training from the run view", file=sys.stderr)
        value["training"] = train(local_view(project, view_id), project.state_root / "demo_training", n_steps=arguments.steps)
        value["parts"].update({f"training: {name}": seconds for name, seconds in value["training"].pop("parts").items()})
        lines += ["", training_text(value["training"])]
    value["seconds"] = round(time.perf_counter() - start, 1)
    (project.state_root / "demo.json").write_text(json.dumps(value, indent=2, default=str))
    lines += ["", f"done in {value['seconds']:.0f} s; look at it with `make ui`"]
    return value, "\n".join(lines)


def local_view(project: Project, view_id: str) -> Path:
    """The published view where the loader can read it: in its place, or copied from an object store."""
    place = project.files.view_place("views", view_id)
    return Path(place) if is_local(place) else pull(project.files, view_id, project.state_root / "demo_view").path


def train(view: Path, folder: Path, *, n_steps: int) -> dict[str, Any]:
    """Three real processes: one that runs through, one killed in the middle of a step, one that resumes it.

    Raises ViewError when the resumed run's losses or pack ids differ from the uninterrupted run's in any step.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    parts: dict[str, float] = {}
    kill_at = n_steps // 2 + 1

    def process(name: str, run: str, *extra: str, killed: bool = False) -> None:
        command = [sys.executable, str(EXAMPLES / "train_gpt.py"), str(view), "--steps", str(n_steps)]
        command += ["--checkpoint", str(folder / run), "--log", str(folder / f"{run}.jsonl"), *extra]
        begin = time.perf_counter()
        with ticking(name), (folder / f"{run}.err").open("ab") as errors:
            done = subprocess.run(command, stdout=errors, stderr=errors, env={**os.environ, "PYTHONWARNINGS": "ignore"}, check=False)
        parts[name] = round(time.perf_counter() - begin, 2)
        if done.returncode != (-signal.SIGKILL if killed else 0):
            raise PipelineError(f"{name} ended with code {done.returncode}; see {folder / f'{run}.err'}")

    process("uninterrupted run", "control")
    process(f"run killed in step {kill_at}", "resumed", "--kill-at-step", str(kill_at), killed=True)
    process("resumed run", "resumed", "--resume")
    compared = subprocess.run(
        [sys.executable, str(EXAMPLES / "compare_logs.py"), str(folder / "control.jsonl"), str(folder / "resumed.jsonl")],
        capture_output=True,
        text=True,
        check=False,
    )
    if compared.returncode:
        raise ViewError(f"the resumed run differs from the uninterrupted one: {compared.stdout.strip() or compared.stderr.strip()}")
    control = [json.loads(line) for line in (folder / "control.jsonl").read_text().splitlines()]
    return {
        "steps": n_steps,
        "killed_in_step": kill_at,
        "first_loss": control[0]["loss"],
        "last_loss": control[-1]["loss"],
        "tokens": sum(row["n_loss_tokens"] for row in control),
        "compared": compared.stdout.strip(),
        "parts": parts,
    }


def training_text(value: dict[str, Any]) -> str:
    """What the training showed."""
    return (
        f"A small GPT trained {value['steps']} steps on {value['tokens']} tokens: loss {float(value['first_loss']):.4f} -> "
        f"{float(value['last_loss']):.4f}.\nKilled with SIGKILL in step "
        f"{value['killed_in_step']} and resumed in a new process: {value['compared']}"
    )
