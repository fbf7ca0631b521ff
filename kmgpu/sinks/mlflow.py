"""The sink mlflow: a run of the experiment named after the recipe, where MLFLOW_TRACKING_URI says or MLflow's default.

MLflow's own client writes it; no run becomes MLflow's active one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from kmgpu.sinks.scalars import Scalars

TAG = "kmgpu.run"  # path of the run directory
MOST = 1000  # metrics in a batch (mlflow.utils.validation.MAX_METRICS_PER_BATCH)
MOST_PARAMETERS = 100


class Sink:
    """Writes the points of a run, in place of what an earlier one wrote for it; deletes that one."""

    name = "mlflow"

    def __init__(self) -> None:
        self._client = MlflowClient()
        self._run = ""
        self._waiting: list[Metric] = []
        self._scalars = Scalars()

    def __call__(self, record: dict[str, Any]) -> None:
        kind = record["event"]
        if kind == "launch":
            self._begin(record)
        elif kind == "start":
            facts = ("framework", "keras", "device_kind", "batch_size", "epochs", "rows", "parameters", "learning_rate")
            self._log_parameters({name: record[name] for name in facts if name in record})
        self._waiting += [
            Metric(point.name, point.value, int(point.time * 1000), point.step) for point in self._scalars.of(record)
        ]
        if kind in ("epoch", "outcome") or len(self._waiting) >= MOST // 2:
            self._send()
        if kind == "outcome":
            status = {"ok": "FINISHED", "interrupted": "KILLED"}.get(record["status"], "FAILED")
            self._client.set_terminated(self._run, status, int(record["time"] * 1000))

    def close(self) -> None:
        self._send()

    def _begin(self, record: dict[str, Any]) -> None:
        job = record["job"]
        name = Path(job["recipe"]).stem
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        for earlier in self._client.search_runs([number], f"tags.`{TAG}` = '{record['path']}'"):
            self._client.delete_run(earlier.info.run_id)
        run = self._client.create_run(
            number, int(record["time"] * 1000), {TAG: record["path"]}, run_name=Path(record["path"]).name
        )
        self._run = run.info.run_id
        settings = {f"settings.{key}": value for key, value in job["settings"].items()}
        self._log_parameters(
            {name: job[name] for name in ("backend", "strategy", "devices", "seed", "track")} | settings
        )

    def _log_parameters(self, values: dict[str, Any]) -> None:
        params = [Param(name, str(value)) for name, value in values.items()]
        for first in range(0, len(params), MOST_PARAMETERS):
            self._client.log_batch(self._run, params=params[first : first + MOST_PARAMETERS])

    def _send(self) -> None:
        while self._waiting:
            self._client.log_batch(self._run, metrics=self._waiting[:MOST])
            self._waiting = self._waiting[MOST:]
