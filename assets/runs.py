"""Dagster runs and the processes that carry them: which are in progress, which are dead, which failed and were not repaired.

Dagster does not notice when a process it did not launch is killed: such a run stays STARTED for ever.
"""

import os
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
from dagster._core.storage.dagster_run import IN_PROGRESS_RUN_STATUSES  # no public name; without it new statuses would be missed

PROCESS = "runview/process"
STARTING_SECONDS = 600  # a run that has shown no process by then will not; starting takes seconds
FAILED_LOOKBACK = 1000  # failed and finished runs that are looked at


@dataclass(frozen=True)
class Stuck:
    """A run in progress whose process is gone."""

    run_id: str
    job: str
    partition: str
    since: float
    why: str


def process_tag() -> dict[str, str]:
    """Tag that tells which process carries a run: host, pid, and when that process began (pids are used again)."""
    return {PROCESS: f"{socket.gethostname()}:{os.getpid()}:{_began(os.getpid())}"}


def in_progress(instance: dg.DagsterInstance) -> list[str]:
    """Ids of runs that have begun or are about to."""
    return [record.dagster_run.run_id for record in _records(instance)]


def stuck(instance: dg.DagsterInstance) -> list[Stuck]:
    """Runs in progress whose process is known to be gone. A run of another host is not judged here."""
    out = []
    for record in _records(instance):
        why = _why_dead(instance, record)
        if why:
            run = record.dagster_run
            since = record.start_time or record.create_timestamp.timestamp()
            out.append(Stuck(run.run_id, run.job_name, run.tags.get("dagster/partition", ""), since, why))
    return out


def mark_failed(instance: dg.DagsterInstance, run: Stuck) -> None:
    """Say that a dead run failed, and free the slots it holds. Twice is once."""
    there = instance.get_run_by_id(run.run_id)
    if there is not None and there.status in IN_PROGRESS_RUN_STATUSES:
        instance.report_run_failed(there, f"marked as failed by `runviewctl doctor --fix`: {run.why}")
    if instance.event_log_storage.supports_global_concurrency_limits:
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)


def failed_since_success(instance: dg.DagsterInstance) -> list[dict[str, str]]:
    """Failed runs of a job and partition that nothing repaired since: the newest one of each, newest first."""
    done = dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.SUCCESS])
    seen: set[tuple[str, str]] = set()
    out = []
    for record in instance.get_run_records(done, limit=FAILED_LOOKBACK):
        run = record.dagster_run
        place = (run.job_name, run.tags.get("dagster/partition", ""))
        if place in seen:
            continue
        seen.add(place)
        if run.status == dg.DagsterRunStatus.FAILURE:
            out.append({"job": place[0], "partition": place[1], "run_id": run.run_id})
    return out


def _records(instance: dg.DagsterInstance) -> list[dg.RunRecord]:
    waiting = (dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED)
    return list(instance.get_run_records(dg.RunsFilter(statuses=[s for s in IN_PROGRESS_RUN_STATUSES if s not in waiting])))


def _why_dead(instance: dg.DagsterInstance, record: dg.RunRecord) -> str:
    """Why nobody carries the run any more; empty when somebody does, or when that cannot be told from here."""
    run = record.dagster_run
    tag = run.tags.get(PROCESS, "")
    if tag:
        host, pid, began = tag.rsplit(":", 2)
        if host != socket.gethostname():
            return ""
        return "" if _alive(int(pid), began) else f"its process {pid} is gone"
    for entry in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT):
        pid = getattr(entry.dagster_event.engine_event_data.metadata.get("pid"), "value", None)  # type: ignore[union-attr]
        if pid is not None:
            return "" if _alive(int(pid), "") else f"its process {pid} is gone"
    if time.time() - record.create_timestamp.timestamp() > STARTING_SECONDS:
        return f"no process took it in {STARTING_SECONDS} s"
    return ""


def _alive(pid: int, began: str) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # there, and another user's
    return not began or _began(pid) == began


def _began(pid: int) -> str:
    """When a process began, in the system's own words; empty when it is gone."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        fields = stat.read_text().rpartition(")")[2].split()
        return "" if fields[0] == "Z" else fields[19]  # a zombie carries nothing; field 22 of proc(5), counted after the name
    except OSError:
        if Path("/proc/self").exists():
            return ""
    found = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout.strip().replace(":", ".")
