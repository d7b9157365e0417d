"""TensorBoard: event files in the run's folder. Written by TensorBoard's own package, without torch."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from freerun.core.metrics import metric_of
from freerun.observe.loggers.base import (
    ANSWERS,
    Figures,
    LoggedRun,
    LoggedSample,
    Logger,
    Outcome,
    evaluation_table,
    markdown,
    table,
)


@dataclass(kw_only=True, eq=False)
class TensorBoard(Logger):
    library: ClassVar[str] = "tensorboard"
    extra: ClassVar[str] = "tensorboard"
    replaces: ClassVar[bool] = True

    folder: str | None = None
    """Where event files go; empty: tensorboard/ in the run's folder. Otherwise a folder of the run's name in it."""

    def begin(self, run: LoggedRun) -> str:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.plugins.hparams import summary_v2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event: Any = event_pb2.Event
        folder = Path(self.folder).expanduser() / run.name if self.folder else run.folder / "tensorboard"
        self._writer: Any = EventFileWriter(str(folder))
        if run.step or run.kept:  # what was logged of later steps is no more
            begins = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._write(run.step + 1, session_log=begins)
        run.keep(folder=str(folder))
        config = {key: _hyperparameter(value) for key, value in run.flat_config.items()}
        self._write(0, summary=summary_v2.hparams_pb(config, trial_id=run.name))
        self._text(0, "config", markdown(["key", "value"], [[key, str(value)] for key, value in config.items()]))
        self._writer.flush()
        return f"logs to {folder}; look at it by: tensorboard --logdir {folder.parent}"

    def step(self, step: int, figures: Figures, samples: Sequence[LoggedSample]) -> None:
        self._scalars(step, figures)
        if samples:
            self._text(step, ANSWERS, markdown(*table(samples)))
        self._writer.flush()

    def evaluated(self, step: int, figures: Figures, so_far: Sequence[Figures]) -> None:
        self._scalars(step, figures)
        self._text(step, "evaluations", markdown(*evaluation_table(so_far)))
        self._writer.flush()

    def note(self, step: int, text: str) -> None:
        self._text(step, "notes", markdown(["note"], [[text]]))
        self._writer.flush()

    def end(self, outcome: Outcome) -> None:
        self._writer.close()

    def _scalars(self, step: int, figures: Figures) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.scalar.metadata import create_summary_metadata

        values = [
            Summary.Value(tag=name, simple_value=value, metadata=create_summary_metadata(name, _description(name)))
            for name, value in figures.items()
        ]
        self._write(step, summary=Summary(value=values))

    def _text(self, step: int, tag: str, text: str) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING
        from tensorboard.plugins.text.metadata import create_summary_metadata

        one = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
        tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()], tensor_shape=one)
        shown = create_summary_metadata(display_name=tag, description="")
        self._write(step, summary=Summary(value=[Summary.Value(tag=tag, metadata=shown, tensor=tensor)]))

    def _write(self, step: int, **what: Any) -> None:
        self._writer.add_event(self._event(step=step, wall_time=time.time(), **what))


def _description(name: str) -> str:
    known = metric_of(name)
    return f"**{known.title}**{f' ({known.unit})' if known.unit else ''}. {known.says} {known.healthy}" if known else ""


def _hyperparameter(value: Any) -> bool | int | float | str:
    return value if isinstance(value, bool | int | float | str) else str(value)
