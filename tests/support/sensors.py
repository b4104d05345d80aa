"""Ticks of schedules and sensors as the daemon makes them, and the runs they ask for."""

from __future__ import annotations

import dagster as dg

from assets.definitions import build_definitions
from resources.project import Project


class Ticker:
    """Ticks the sensors of a project on an instance; keeps their cursors and, as the daemon does, the run keys they used up."""

    def __init__(self, project: Project, instance: dg.DagsterInstance) -> None:
        self.project, self.instance = project, instance
        self.definitions = build_definitions(project)
        self.cursors: dict[str, str | None] = {}
        self.used: set[str] = set()
        self.said: str | None = None

    def tick(self, name: str) -> list[dg.RunRequest]:
        """One tick. Partitions are added; returns the runs whose keys are new. A body that raises leaves the cursor as it was."""
        sensor = self.definitions.resolve_sensor_def(name)
        context = dg.build_sensor_context(
            self.instance,
            cursor=self.cursors.get(name),
            repository_def=self.definitions.get_repository_def(),
            sensor_name=name,
            resources={"project": self.project},
            instance_ref=self.instance.get_ref(),  # run requests are resolved with the partitions of this one
        )
        with context:
            data = sensor.evaluate_tick(context)
        self.cursors[name] = data.cursor if data.cursor is not None else self.cursors.get(name)
        self.said = data.skip_message
        for request in data.dynamic_partitions_requests or []:
            self.instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
        new = [request for request in data.run_requests or [] if request.run_key not in self.used]
        self.used |= {request.run_key for request in new}
        return new

    def run(self, request: dg.RunRequest, job: str = "") -> dg.ExecuteInProcessResult:
        """Carry out a request in this process."""
        name = request.job_name or job
        return self.definitions.resolve_job_def(name).execute_in_process(
            run_config={**request.run_config, "loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
            instance=self.instance,
            partition_key=request.partition_key,
            raise_on_error=False,
        )
