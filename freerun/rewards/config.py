"""The `reward` section: who judges answers, in how many processes, and for how long."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import PrivateAttr, field_validator

from freerun.core import Task
from freerun.core.section import Section, knob
from freerun.machine.host import processors
from freerun.rewards.judges import BUILT_IN, JUDGES, check, check_tasks
from freerun.rewards.spec import JudgeSetting, JudgeSpec, parse_judge, typed

MOST_WORKERS = 32
"""Unless somebody says how many. A worker that runs programs may hold half a gigabyte of theirs."""


class RewardConfig(Section):
    judge: JudgeSetting = knob(
        "exact",
        "exact, number, math, code, reasoning-gym, verifiers, or your own: path/to/file.py:function or "
        "package.module:function, given (task, text); or a list of judges with weights and options, also constant, "
        "format, length, overlong, reward_model, model and http: see docs/rewards.md.",
    )
    workers: int | None = knob(
        None,
        "How many processes judge at the same time; empty: as many as the run's other processes leave processors for, "
        "at least 1 and at most 32; of a judge that mostly waits, more while answers queue.",
        ge=1,
    )
    where: Literal["controller", "machines"] = knob(
        "controller", "Whether judges run on the controller's machine, or on those that joined the run."
    )
    timeout_s: float = knob(10.0, "A judgement that takes longer is killed and its sample not trained on.", gt=0)

    _may_grow: bool = PrivateAttr(False)

    @property
    def processes(self) -> int:
        """How many processes judge when the judge has the machine to itself."""
        return self.workers or self.beside(0).processes

    def beside(self, threads: int, cores: int | None = None) -> "RewardConfig":
        """With workers for the processors that so many busy threads leave over, unless it says how many. `cores` are
        those of the machine where they run, which is this one unless told."""
        spare = min(max((cores or processors()) - threads, 1), MOST_WORKERS)
        if self.workers:
            return self
        planned = self.model_copy(update={"workers": spare})
        planned._may_grow = True
        return planned

    @property
    def may_grow(self) -> bool:
        """Whether the number of workers was planned, and nobody has said that it must be this one."""
        return self._may_grow or not self.workers

    @field_validator("judge", mode="plain")
    @classmethod
    def _well_formed(cls, judge: Any) -> Any:
        if isinstance(judge, list):
            return [typed(one) for one in judge] if judge else parse_judge(judge)
        return typed(judge)

    @property
    def parts(self) -> list[JudgeSpec]:
        return parse_judge(self.judge)

    @property
    def in_words(self) -> str:
        """`math + 0.2 format - 0.001 length`."""
        words = (part.name if part.weight == 1 else f"{part.weight:g} {part.name}" for part in self.parts)
        return " + ".join(words).replace("+ -", "- ")

    @property
    def files(self) -> list[Path]:
        """The files that hold the user's own judges."""
        found = [JUDGES.find(part.name).file for part in self.parts if part.name not in BUILT_IN]
        return [file for file in found if file is not None]

    def check(self) -> None:
        """Refuse judges that cannot be, in one line that names the fix."""
        check(self.judge, self.timeout_s)

    def check_tasks(self, tasks: Sequence[Task]) -> None:
        """Refuse tasks that no answer can be judged by, in one line that names them."""
        check_tasks(self.judge, tasks)
