"""Everything that can be found wrong before a process starts, found here."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from freerun.config.preset import refuse_unmade
from freerun.config.text import Origins
from freerun.config.tree import RunConfig
from freerun.core import ConfigError, DataError, FinishReason, Sample, Task
from freerun.core.nouns import NOT_SAMPLED, VersionRuns
from freerun.data.pairs import load_pairs
from freerun.data.stream import TaskStream
from freerun.data.tasks import load_tasks
from freerun.machine.device import choose_device
from freerun.machine.forking import expect_children
from freerun.machine.machines import Machine
from freerun.models.hub import find_model
from freerun.models.shape import Shape, read_shape
from freerun.models.text import text_decoder
from freerun.models.tokenizer import load_tokenizer, refuse_of_another_model
from freerun.models.weight_files import check_weights, unused_weights
from freerun.plan.lengths import Lengths, check_lengths, lengths_of
from freerun.plan.placement import RunKind
from freerun.plan.plan import Plan, make_plan
from freerun.rollouts.agents.load import spec_of
from freerun.rollouts.agents.spec import AgentSpec
from freerun.rollouts.base import Rollout
from freerun.rollouts.load import load_own
from freerun.rollouts.template import template_of
from freerun.run.guests import Guests, load_guests
from freerun.run.identity import identity
from freerun.run.ray import NO_RAY
from freerun.run.reading import reading
from freerun.run.teachable import check_teacher

CHILD = "freerun.run.child"
"""The program of engines and trainers."""


@dataclass
class Prepared:
    """A configuration whose files exist and whose data is loaded."""

    config: RunConfig
    origins: Origins
    shape: Shape
    tokenizer: Any
    tasks: list[Task]
    held_out: list[Task]
    rollout: Rollout | None = None
    """The user's own; None for single-turn."""
    guests: Guests = field(default_factory=Guests)
    """The observers that the configuration names."""
    agent: AgentSpec | None = None
    """Who talks to the policy, where that is an agent."""
    model: Path | None = None
    """The folder of the model's files, where model.path is a name on the hub."""
    unused: Sequence[str] = ()
    """Tensors in the model's files that it has no use for."""

    @property
    def model_folder(self) -> Path:
        return self.model or Path(self.config.model.path).expanduser()

    @cached_property
    def text(self) -> Any:
        """Whose `decode` turns tokens into text as the tokenizer does, and faster where that is possible."""
        return text_decoder(self.tokenizer)

    @property
    def held_out_warning(self) -> str | None:
        """A line to show when tasks to evaluate on are also trained on: the evaluation is then too good."""
        trained = {asked_by(task) for task in self.tasks}
        again = sum(asked_by(task) in trained for task in self.held_out)
        if not again:
            return None
        return f"{again} of the {len(self.held_out)} held_out tasks are in data too, so evaluations will look too good"

    @property
    def unused_warning(self) -> str | None:
        """A line to show when the model's files hold weights that it has no use for."""
        return unused_weights(self.unused, self.shape, self.model_folder)

    @property
    def identity(self) -> dict[str, Any]:
        """What identifies the model; every checkpoint records it."""
        return identity(self.config, self.shape, self.tokenizer)

    @property
    def lengths(self) -> Lengths:
        return lengths_of(self.config, self.tasks + self.held_out, self.shape)

    def plan(
        self, kind: RunKind = RunKind.TRAIN, evaluates: bool = False, machines: list[Machine] | None = None
    ) -> Plan:
        """Who runs where on those machines, or on this one, as they are now. What cannot fit is a ConfigError."""
        evaluated = len(self.held_out) * self.config.evaluate.samples if evaluates else 0
        return make_plan(self.config, self.shape, self.lengths, kind, evaluated, machines)

    def stream(self, epochs: int | None) -> TaskStream:
        """The tasks to train on, in their order."""
        return TaskStream(self.tasks, seed=self.config.seed, shuffle=self.config.data.shuffle, epochs=epochs)


def prepare(config: RunConfig, origins: Origins, rollout: Rollout | None = None, planned: bool = True) -> Prepared:
    """For `train`: also that a batch can be filled, and that the run fits the model and the machine, unless it is not
    `planned`. `rollout` is one that is at hand already; else the configuration's is loaded."""
    check_launcher(config)
    own, guests = rollout or load_own(config.rollout), load_guests(config.observers)
    prepared = _load(config, origins, own)
    prepared.guests = guests
    config.reward.check()
    config.reward.check_tasks(prepared.tasks + prepared.held_out)
    check_teacher(config.train.teacher_folder, prepared.tokenizer, prepared.lengths.sequence)
    check_batch(config, prepared.tasks)
    if planned:
        _check_plan(prepared, RunKind.TRAIN, evaluates=bool(config.evaluate.every))
    return prepared


def check_batch(config: RunConfig, tasks: list[Task]) -> None:
    if config.control.groups_per_step > len(tasks):
        raise DataError(
            f"control.groups_per_step is {config.control.groups_per_step}, but {config.data.source} has only "
            f"{len(tasks)} tasks; lower it, or add data"
        )


def prepare_sft(config: RunConfig, origins: Origins, observed: bool = True) -> Prepared:
    """`observed`: by whoever the configuration names."""
    guests = load_guests(config.observers if observed else ())
    if config.sft.until is not None:
        config.reward.check()
    own = load_own(config.rollout) if config.sft.until is not None else None
    prepared = _load(config, origins, own, learns_answers=True)
    prepared.guests = guests
    if config.sft.until is not None:
        config.reward.check_tasks(prepared.held_out)
    return prepared


def prepare_dpo(config: RunConfig, origins: Origins) -> Prepared:
    """For `freerun dpo`: pairs to learn from, and pairs to look at."""
    check_launcher(config)
    guests = load_guests(config.observers)
    model = load_model(config)
    tasks = load_pairs(config.data, model.tokenizer, reading(config.data.source))
    held_out = load_pairs(config.held_out, model.tokenizer) if config.held_out else []
    prepared = Prepared(
        *(model.config, origins, model.shape, model.tokenizer, tasks, held_out),
        guests=guests,
        model=model.folder,
        unused=model.unused,
    )
    if config.launcher == "local":
        prepared.plan(RunKind.DPO)
    return prepared


def prepare_eval(config: RunConfig, origins: Origins) -> Prepared:
    """Held-out tasks only; without `held_out`, those of `data`."""
    check_launcher(config)
    config.reward.check()
    own = load_own(config.rollout)
    model = load_model(config, weights=not config.engine.urls)
    config = model.config
    agent = load_agent(config, model.tokenizer)
    tasks = load_tasks(config.held_out or config.data, model.tokenizer, needs_prompt=agent is None)
    config.reward.check_tasks(tasks)
    prepared = Prepared(config, origins, model.shape, model.tokenizer, [], tasks, own, agent=agent, model=model.folder)
    if config.launcher == "local":
        _check_plan(prepared, RunKind.EVALUATE)
    return prepared


def _check_plan(prepared: Prepared, kind: RunKind, evaluates: bool = False) -> None:
    """Refuse what cannot fit this machine. What others have is known when they have joined: until then, only lengths
    can be checked."""
    config = prepared.config
    if config.launcher == "local":
        prepared.plan(kind, evaluates)
    else:
        check_lengths(prepared.lengths, prepared.shape, config.engine.on(choose_device(bool(config.resources.gpus))))


def _load(config: RunConfig, origins: Origins, own: Rollout | None, learns_answers: bool = False) -> Prepared:
    model = load_model(config)
    config, tokenizer = model.config, model.tokenizer
    agent = load_agent(config, tokenizer)
    needs_prompt = agent is None
    rendered, in_parts = needs_prompt or learns_answers, reading(config.data.source)
    tasks = load_tasks(config.data, tokenizer, needs_answer=learns_answers, needs_prompt=rendered, in_parts=in_parts)
    held_out = load_tasks(config.held_out, tokenizer, needs_prompt=needs_prompt) if config.held_out else []
    return Prepared(
        *(config, origins, model.shape, tokenizer, tasks, held_out, own),
        agent=agent,
        model=model.folder,
        unused=model.unused,
    )


def load_agent(config: RunConfig, tokenizer: Any) -> AgentSpec | None:
    """What is wrong with an agent, or with a model that is to talk to one, is a ConfigError."""
    if not config.rollout.is_agent:
        return None
    template_of(tokenizer)
    return spec_of(config.rollout)


def asked_by(task: Task) -> str:
    """What tells tasks apart: the prompt; where an environment asks, what it is to ask (a seed, say)."""
    if task.prompt_tokens or task.prompt:
        return repr(task.prompt_tokens or (task.prompt, task.messages))
    return repr({key: value for key, value in task.extra.items() if key != "id"})


def check_launcher(config: RunConfig) -> None:
    if config.launcher == "ray" and find_spec("ray") is None:
        raise ConfigError(NO_RAY)


@dataclass(frozen=True)
class LoadedModel:
    """What is read of a model before a process starts."""

    config: RunConfig
    """With the commit behind a name on the hub: a run that goes on has the same files."""
    folder: Path
    shape: Shape
    tokenizer: Any
    unused: Sequence[str]
    """Tensors that the model has no use for."""


def load_model(config: RunConfig, weights: bool = True) -> LoadedModel:
    """Its files, from the hub where `model.path` is a name there. Refuses what cannot be loaded; `weights`: also files
    of weights that are missing, damaged or another model's."""
    refuse_unmade(config.preset, config.model.path)
    found = find_model(config.model.path)
    shape = read_shape(found.folder, config.model.code)
    unused = check_weights(found.folder, shape) if weights else []
    if found.is_of_hub:
        config = config.model_copy(update={"model": config.model.model_copy(update={"path": found.name})})
    if config.launcher == "local":
        expect_children(CHILD, config.resources.threads)  # while the rest is read
    tokenizer = load_tokenizer(found.folder)
    refuse_of_another_model(tokenizer, found.folder, shape.vocab_size)
    return LoadedModel(config, found.folder, shape, tokenizer, unused)


def _end(prepared: Prepared) -> list[int]:
    """The token that ends an answer: the tokenizer's own, with which its chat template ends a turn."""
    ends, own = prepared.shape.eos_token_ids, prepared.tokenizer.eos_token_id
    if own is not None and (own in ends or not ends):
        return [own]
    return list(ends[:1])


def example_of(task: Task, prepared: Prepared) -> Sample:
    """A prompt and its reference answer as something to learn from."""
    return example(task, task.answer or "", prepared)


def example(task: Task, answer: str, prepared: Prepared) -> Sample:
    """A task's prompt and this answer, ended by the model's end token."""
    said = prepared.tokenizer.encode(answer, add_special_tokens=False) + _end(prepared)
    given, length = len(task.prompt_tokens), len(task.prompt_tokens) + len(said)
    return Sample(
        tokens=task.prompt_tokens + said,
        loss_mask=np.arange(length) >= given,
        behavior_logprobs=np.zeros(length, np.float32),
        versions=VersionRuns.joined([(NOT_SAMPLED, length)]),
        finish=FinishReason.STOP,
    )
