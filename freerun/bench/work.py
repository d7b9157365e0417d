"""What benchmarks of the whole loop give it to do: a model of random weights, tasks, and answers of forced lengths.

The same work gives the same tasks in the same order and the same length to each answer, however the loop is run. A text
is the toss of a coin and a reward says how it fell: the loop does everything it does in earnest, and learns nothing.
"""

import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from freerun.bench.engine import SHAPES, shape_named
from freerun.config.load import load_config
from freerun.core import ConfigError, Task
from freerun.machine.gpus import visible_gpus
from freerun.machine.scratch import memory_folder, scratch_folder
from freerun.models.checkpoint import save_decoder
from freerun.models.own import random_decoder
from freerun.models.shape import Shape, read_shape
from freerun.models.tiny import make_model
from freerun.models.unwritten import write_unwritten
from freerun.rollouts.forced import ForcedLengths
from freerun.run.prepare import Prepared

TINY = "tiny"
TASKS = 4_096
HEADS = "1"


class Coin:
    """In a tokenizer's place: any tokens at all become one of two texts."""

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        return HEADS if sum(token_ids) % 2 else "0"


@dataclass(frozen=True)
class Work:
    model: str
    groups: int
    """How many a step has."""
    slots: int
    """Answers that run at a time beside training: the fewer, the sooner each ends and the less a new version makes
    stale. At η = 0, where nothing else is going on, it is all of a step's."""
    prompt: int
    """Tokens of a prompt."""
    mu: float
    """Lengths of answers: lognormal(mu, sigma), clipped to shortest and longest."""
    shortest: int
    longest: int
    settings: tuple[str, ...]
    """Other settings of the run, as on a command line."""
    sigma: float = 1.0
    group_size: int = 8

    @classmethod
    def here(
        cls,
        model: str | None = None,
        groups: int | None = None,
        slots: int | None = None,
        longest: int | None = None,
        overrides: Sequence[str] = (),
        lora: int = 0,
        cap_gib: float | None = None,
    ) -> "Work":
        """What is right for this machine, where nothing else is said."""
        base = LARGE if visible_gpus() else SMALL
        if model in _FEWER:
            base = replace(base, groups=_FEWER[model], slots=8 * _FEWER[model])
        asked = [f"train.lora.rank={lora}"] if lora else []
        asked += [f"resources.gpu_memory={cap_gib:g}"] if cap_gib else []
        work = replace(
            base,
            model=model or base.model,
            groups=groups or base.groups,
            slots=slots or base.slots,
            longest=longest or base.longest,
            settings=(*base.settings, *asked, *overrides),
        )
        if work.model not in (TINY, *SHAPES):
            raise ConfigError(f"--model {work.model} is not known; it is {', '.join((TINY, *SHAPES))}")
        if work.model in _FEWER and not visible_gpus():
            raise ConfigError(f"--model {work.model} is too large for a CPU: use a GPU, or a smaller one")
        if work.longest < work.shortest:
            raise ConfigError(f"--longest {work.longest} is too short; make it at least {work.shortest}")
        return work

    @property
    def answers(self) -> int:
        """How many a step has."""
        return self.groups * self.group_size

    @property
    def on_gpu(self) -> bool:
        return bool(visible_gpus())

    @contextmanager
    def model_folder(self) -> Iterator[Path]:
        """The model, written once. In memory, where there is room for it and for its versions on their way. On a GPU,
        our engines and trainers make its weights up as they load it."""
        shape = self._shape()
        size = 2 * shape.num_parameters if shape else 0
        if shutil.disk_usage(memory_folder()).free > 4 * size:
            with scratch_folder() as place:
                yield self._write(shape, place / "model")
        else:
            with tempfile.TemporaryDirectory(prefix="freerun-bench-") as place_name:
                yield self._write(shape, Path(place_name) / "model")

    def _shape(self) -> Shape | None:
        return None if self.model == TINY else shape_named(self.model, self.prompt + self.longest)

    def _write(self, shape: Shape | None, folder: Path) -> Path:
        if shape and self.on_gpu and not any(setting.startswith("engine.kind=") for setting in self.settings):
            write_unwritten(shape, folder)
        elif shape:
            save_decoder(random_decoder(shape, "cpu", torch.bfloat16), folder)
        else:
            make_model(folder, "abcdefghij>", seed=0, hidden=128, layers=3)
        return folder

    def prepared(self, model: Path, threads: int) -> Prepared:
        """A run whose processes have so many CPU threads each; its folder is beside the model's."""
        config, origins = load_config(
            None,
            [
                f"model.path={model}", f"runs={model.parent}", "name=bench", "data.source=random",
                f"data.max_prompt_tokens={self.prompt}", f"rollout.group_size={self.group_size}",
                f"rollout.max_new_tokens={self.longest}", f"control.groups_per_step={self.groups}",
                f"engine.max_running={max(self.slots, self.answers)}", f"resources.threads={threads}",
                *self.settings,
            ],
        )  # fmt: skip
        shape = read_shape(model)
        return Prepared(config, origins, shape, Coin(), list(self._tasks(shape)), [])

    def _tasks(self, shape: Shape) -> Iterator[Task]:
        for index in range(TASKS):
            tokens = random.Random(index).choices(range(2, shape.vocab_size), k=self.prompt)
            yield Task(f"t{index}", "", tokens, answer=HEADS)

    def rollout(self, prepared: Prepared) -> ForcedLengths:
        config = prepared.config.rollout
        return ForcedLengths(Coin(), config.sampling(), config.group_size, self.mu, self.sigma, self.shortest)

    def __str__(self) -> str:
        return (
            f"{self.model}, {self.groups} groups of {self.group_size} a step, prompts of {self.prompt}, answers "
            f"lognormal({self.mu:g}, {self.sigma:g}) within {self.shortest}..{self.longest:,}, {self.slots} at a time"
        )


SMALL = Work(
    TINY, groups=8, slots=64, prompt=11, mu=4.0, shortest=1, longest=1_024, settings=("train.micro_batch_tokens=4096",)
)
"""For two CPU cores."""
_FEWER = {"7b": 8, "8b": 8, "32b": 4}
"""Groups of a step, for models that take long for one; as many answers run at a time as a step has."""
LARGE = Work("1.5b", groups=32, slots=128, prompt=128, mu=6.2, shortest=32, longest=8_192, settings=())
"""For a GPU."""
