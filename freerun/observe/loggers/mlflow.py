"""MLflow: a tracking server, or a database on this machine."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

from freerun.observe.loggers.base import (
    ANSWERS,
    Figures,
    LoggedRun,
    LoggedSample,
    Logger,
    Outcome,
    SampleTable,
    evaluation_table,
    table,
)

_PARAMETERS_AT_A_TIME = 100
_LONGEST_PARAMETER = 500
"""What every version of its server takes."""
_STATUS: dict[Outcome, str] = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED", "killed": "FAILED"}


@dataclass(kw_only=True, eq=False)
class MLflow(Logger):
    library: ClassVar[str] = "mlflow"
    extra: ClassVar[str] = "mlflow"

    tracking_uri: str | None = None
    """A server's address, or sqlite:///FILE; empty: MLFLOW_TRACKING_URI, or MLflow's own default, ./mlflow.db."""
    experiment: str = "freerun"
    samples_every: int = 10
    """Steps from one table of samples to the next; each has the samples of all steps in between."""

    def begin(self, run: LoggedRun) -> str:
        from mlflow import MlflowClient, get_tracking_uri
        from mlflow.entities import Metric, Param

        self._metric: Any = Metric
        uri = self.tracking_uri or get_tracking_uri()
        self._client: Any = MlflowClient(tracking_uri=uri, registry_uri=uri)
        if "run_id" not in run.kept:
            run.keep(run_id=self._client.create_run(self._experiment_id(), run_name=run.name).info.run_id)
        self._id: str = run.kept["run_id"]
        self._client.update_run(self._id, status="RUNNING")
        known = self._client.get_run(self._id).data.params  # a parameter cannot change: config.yaml has what it is now
        given = {key: str(value)[:_LONGEST_PARAMETER] for key, value in run.flat_config.items()}
        new = (Param(key, value) for key, value in given.items() if key not in known)
        while some := list(islice(new, _PARAMETERS_AT_A_TIME)):
            self._client.log_batch(self._id, params=some)
        self._client.log_artifact(self._id, str(run.folder / "config.yaml"))
        self._table = SampleTable(self.samples_every)
        self._notes: list[str] = run.kept.get("notes", [])
        self._run = run
        return f"logs to the run {self._id} of the experiment {self.experiment} at {uri}"

    def step(self, step: int, figures: Figures, samples: Sequence[LoggedSample]) -> None:
        self._client.log_batch(self._id, metrics=list(self._metrics(step, figures)))
        self._log_samples(self._table.add(step, samples))

    def evaluated(self, step: int, figures: Figures, so_far: Sequence[Figures]) -> None:
        self._client.log_batch(self._id, metrics=list(self._metrics(step, figures)))
        self._log_table(*evaluation_table(so_far), "evaluations.json")

    def note(self, step: int, text: str) -> None:
        self._notes.append(f"step {step}: {text}")
        self._run.keep(notes=self._notes)
        self._client.log_text(self._id, "\n".join(self._notes) + "\n", "notes.txt")

    def end(self, outcome: Outcome) -> None:
        self._log_samples(self._table.take())
        self._client.set_terminated(self._id, _STATUS[outcome])

    def _experiment_id(self) -> str:
        found = self._client.get_experiment_by_name(self.experiment)
        return str(found.experiment_id if found else self._client.create_experiment(self.experiment))

    def _metrics(self, step: int, figures: Figures) -> Iterator[Any]:
        now_ms = int(time.time() * 1000)
        return (self._metric(name, value, now_ms, step) for name, value in figures.items())

    def _log_samples(self, samples: Sequence[LoggedSample]) -> None:
        if samples:
            self._log_table(*table(samples), f"{ANSWERS}/step_{samples[-1].step:06}.json")

    def _log_table(self, columns: list[str], data: list[list[Any]], file: str) -> None:
        """As MLflow's own tables are."""
        self._client.log_dict(self._id, {"columns": columns, "data": data}, file)
