"""Models that only read, each in a process of its own: reward models, and a teacher. What they need of a GPU."""

from collections.abc import Iterator
from dataclasses import dataclass

from freerun.config.tree import RunConfig
from freerun.models.hub import cached_model
from freerun.models.shape import Shape, read_shape
from freerun.models.weight_files import count_numbers
from freerun.plan.placement import RunKind
from freerun.rewards.judges import MODELS
from freerun.rewards.reward_model import read_config
from freerun.rewards.spec import JudgeSpec

_SIZE = 2
"""Bytes of a number: on a GPU they compute in bfloat16."""
_SPARE = 2**30
_LEAST_TOKENS = 2_048
_TEACHERS_LOGITS = 2**31
"""A chunk of them, and their logarithms."""
TEACHER = "teacher"
"""The name of its process."""


@dataclass(frozen=True)
class Reader:
    name: str
    """Its process."""
    parameters: int
    width: int
    """Numbers that a token takes while it is computed, without a gradient."""
    pass_tokens: int
    """More in a pass gain nothing."""
    logits: int = 0
    """Bytes of logits held at a time."""

    @property
    def least(self) -> int:
        return self._bytes(min(_LEAST_TOKENS, self.pass_tokens))

    @property
    def most(self) -> int:
        return self._bytes(self.pass_tokens)

    @property
    def what(self) -> str:
        return f"{self.parameters * _SIZE / 2**30:.1f} GiB of weights, then passes of up to {self.pass_tokens:,} tokens"

    def _bytes(self, tokens: int) -> int:
        return _SIZE * (self.parameters + tokens * self.width) + self.logits + _SPARE


def reader_name(number: int) -> str:
    """The name of the process of a reward model."""
    return f"reward-model {number}" if number else "reward-model"


def readers_of(config: RunConfig, kind: RunKind, evaluates: bool, shape: Shape) -> tuple[Reader, ...]:
    """`shape` is the policy's."""
    models = list(_reward_models(config, shape)) if not kind.supervised or evaluates else []
    return (*models, *([_teacher(config.train.teacher_folder, shape)] if taught_by(config, kind) else []))


def taught_by(config: RunConfig, kind: RunKind) -> bool:
    """Whether such a run starts a teacher."""
    return kind is RunKind.TRAIN and config.train.teacher_folder is not None


def _teacher(path: str | None, policy: Shape) -> Reader:
    """As large as the policy where it is not here yet."""
    shape = policy
    if path is not None and (found := cached_model(path)) is not None and found.folder.is_dir():
        shape = read_shape(found.folder)
    width = 12 * shape.hidden + 4 * shape.ffn + 4 * (shape.heads + shape.kv_heads) * shape.head_dim
    return Reader(TEACHER, shape.num_parameters, width, 32_768, _TEACHERS_LOGITS)


def _reward_models(config: RunConfig, shape: Shape) -> Iterator[Reader]:
    models = [part for part in config.reward.parts if part.name in MODELS]
    for number, part in enumerate(models):
        parameters, hidden, ffn = _sizes(part, shape)
        yield Reader(reader_name(number), parameters, 12 * hidden + 4 * ffn, 32_768)


def _sizes(part: JudgeSpec, shape: Shape) -> tuple[int, int, int]:
    """The sizes of such a model; one that is not here yet counts as large as the policy."""
    found = cached_model(str(part.options.get("path", "")))
    if found is None or not found.folder.is_dir():
        return shape.num_parameters, shape.hidden, shape.ffn
    raw = read_config(found.folder)
    hidden = raw.get("hidden_size")
    hidden = hidden if isinstance(hidden, int) else shape.hidden
    ffn = raw.get("intermediate_size")
    return count_numbers(found.folder), hidden, ffn if isinstance(ffn, int) else 4 * hidden
