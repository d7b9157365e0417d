"""One run of `freerun bench staleness`, in a process of its own: engine and learner take turns on one device.

The engine samples every batch with the weights of exactly η versions ago, and the learner takes a step on it. How long
either takes is measured. What a version is worth is found when the run is over: a tenth of the versions are put aside,
and answer the held-out tasks then.
"""

import gc
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from itertools import islice
from pathlib import Path
from random import Random
from statistics import fmean

import msgspec
import numpy as np
import torch

from freerun.bench.staleness_tasks import WarmUpPlan, find_lesson
from freerun.commands.demo import LETTERS
from freerun.config.load import load_config
from freerun.config.text import Origins
from freerun.config.tree import RunConfig
from freerun.core import Batch, ConfigError, Group, Sample, Task, TrainerError
from freerun.core.reports import StepResult
from freerun.engines.base import Completion
from freerun.engines.embedded.in_process import InProcessEngine
from freerun.engines.embedded.load import load_for_engine
from freerun.machine.device import choose_device
from freerun.machine.parent import end_with_parent
from freerun.models.tiny import make_model
from freerun.rewards.base import Judged
from freerun.rewards.judges import PURE, resolve
from freerun.rewards.spec import parse_judge
from freerun.rollouts.single_turn import sample_of
from freerun.run.prepare import Prepared, example_of, prepare, prepare_sft
from freerun.train.learner import Learner

OBJECTIVES = {
    "ppo": "plain PPO",
    "paper": "decoupled PPO",
    "freerun": "with distance",
    "down": "distance, down",
}
CHANGES = {
    "ppo": ("train.objective=ppo",),
    "paper": ("train.objective=decoupled_ppo", "train.corrections=[token]"),
    "freerun": ("train.objective=decoupled_ppo", "train.corrections=[token, distance]"),
    "down": ("train.objective=decoupled_ppo", "train.corrections=[token, {name: distance, side: down}]"),
}
CHECK_EVERY, CHECKED = 5, 256
"""In the warm-up: supervised steps, and tasks to look at."""
CHECKS = 10
"""How often the weights of a run are put aside, to answer the held-out tasks once."""
MEASURE_EVERY = 5

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Supervised learning by a plan. `tasks` has the three files; without a model, one is
    made from nothing. What comes of it is the folder `warm`."""

    task: str
    tasks: str
    warm: str
    seed: int
    plan: WarmUpPlan
    model: str | None = None
    settings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """One run of reinforcement learning, from the model `start`."""

    task: str
    tasks: str
    start: str
    seed: int
    eta: int
    objective: str
    steps: int
    lr: float
    settings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.objective}-{self.eta}-seed{self.seed}"


@dataclass(frozen=True, slots=True)
class Check:
    """What the weights of a version are worth, and how long it took to get there: engine and learner in turns, as
    measured; and at once, as it would be if the two, on a device each, went on at the same time where η allows it."""

    step: int
    reward: float
    in_turns_s: float
    at_once_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a run. Shares and means are over the second half of its steps."""

    seed: int
    eta: int
    objective: str
    reward: float
    """The reward of the last weights on the held-out tasks."""
    checks: list[Check]
    rewards: list[float]
    """The rewards of the batches: a mean for each tenth of the run."""
    drift: float
    """Mean |log π_proximal / π_behavior| of a token, before the step."""
    ratio: float
    """Mean π_proximal / π_behavior."""
    outside_share: float
    """Tokens that are more than 0.2 from a ratio of 1 before the step has begun."""
    effective_samples: float
    clip_share: float
    kept_share: float
    """The share of tokens that the corrections leave a loss."""
    entropy: float
    """At the last step, of the tokens it trained on."""
    answer_tokens: float
    generate_s: float
    train_s: float
    """Seconds of a step that went into training, as `generate_s` into generating."""


class Sampler:
    """The engine, and the judge of its answers."""

    def __init__(self, prepared: Prepared) -> None:
        config = prepared.config
        self.engine = InProcessEngine(load_for_engine(prepared.model_folder, config.engine), config.engine)
        self._text, self._sampling = prepared.text, config.rollout.sampling()
        parts = parse_judge(config.reward.judge)
        if slow := [part.name for part in parts if part.name not in PURE]:
            raise ConfigError(
                f"the sweep judges answers in its own process, where {slow[0]} cannot: name another judge"
            )
        self._judges = [(part.weight, resolve(part)) for part in parts]

    def groups(self, tasks: Iterable[Task], size: int, seed: str) -> list[Group]:
        """All tasks together; the samples of each in the order of their index."""
        asked = list(tasks)
        seeds = [Random(f"{seed}/{index}").getrandbits(62) for index in range(len(asked))]
        found = self.engine.answer_all(
            [
                (task.prompt_tokens, replace(self._sampling, seed=own), size)
                for task, own in zip(asked, seeds, strict=True)
            ]
        )
        return [self._group(index, *one) for index, one in enumerate(zip(asked, found, strict=True))]

    def reward(self, tasks: Iterable[Task], size: int, seed: str) -> float:
        return fmean(reward for group in self.groups(tasks, size, seed) for reward in group.rewards)

    def _group(self, id: int, task: Task, found: list[Completion]) -> Group:
        samples = [self._judged(task, completion) for completion in found]
        return Group(id, task, samples, admitted_at=self.engine.version)

    def _judged(self, task: Task, completion: Completion) -> Sample:
        text = self._text.decode(completion.tokens, skip_special_tokens=True)
        sample = sample_of(task, completion, text)
        sample.reward = sum(weight * _number(judge(task, text)) for weight, judge in self._judges)
        return sample


def _number(found: float | Judged) -> float:
    return found.reward if isinstance(found, Judged) else float(found)


class AtAge:
    """Engine and learner, the engine η versions behind.

    Invariant: `_past` holds the weights of the versions after the engine's, up to the learner's, oldest first. The
    first η steps train on what version 0 sampled, at an age that grows from 0 to η.
    """

    def __init__(self, prepared: Prepared) -> None:
        config = prepared.config
        self.sampler = Sampler(prepared)
        self.learner = learner_of(prepared)
        self._config, self._tasks = config, prepared.stream(epochs=None)
        self._past = deque[Weights]()

    def batch(self) -> Batch:
        """The next tasks, answered by the weights of η versions ago."""
        version, config = self.learner.version, self._config
        if version - config.control.max_staleness > self.sampler.engine.version:
            self.sampler.engine.swap_weights(version - config.control.max_staleness, self._past.popleft())
        tasks = islice(self._tasks, config.control.groups_per_step)
        return Batch(version, self.sampler.groups(tasks, config.rollout.group_size, f"{config.seed}/{version}"))

    def learn(self, batch: Batch) -> StepResult:
        return self.learner.step(batch)

    def keep(self) -> Weights:
        """The version that the last step made, for the batch of η steps later."""
        weights = {name: tensor.clone() for name, tensor in self.learner.policy.tensors().items()}
        self._past.append(weights)
        return weights

    def rewards(self, kept: Sequence[Weights], held_out: list[Task], answers: int) -> list[float]:
        """What those weights are worth; several `answers` of the last. The sweep is over: the engine's versions, which
        only go up, are mere numbers then."""
        found, device = [], self.learner.decoder.embed.weight.device
        for place, weights in enumerate(kept, start=1):
            there = {name: tensor.to(device) for name, tensor in weights.items()}
            self.sampler.engine.swap_weights(max(self.learner.version, self.sampler.engine.version) + 1, there)
            size = answers if place == len(kept) else 1
            found.append(self.sampler.reward(held_out, size, f"held-out/{self._config.seed}"))
        return found

    def ratios(self, batch: Batch) -> torch.Tensor:
        """π_proximal / π_behavior of every trained token, whatever the objective makes of it."""
        samples = batch.samples
        proximal = [logprob for logprobs in self.learner.score(samples) for logprob in logprobs]
        behavior = np.concatenate([sample.behavior_logprobs[sample.loss_mask] for sample in samples])
        return (torch.tensor(proximal) - torch.from_numpy(behavior)).exp()


def learner_of(prepared: Prepared) -> Learner:
    """Not compiled: a run takes a minute, of which compiling would take half."""
    config = prepared.config
    train = config.train.on(choose_device(), prepared.shape.num_parameters, compile=False, ranks=1)
    return Learner.from_folder(
        prepared.model_folder, train, 1.0, config.seed, config.rollout.max_new_tokens, backend=config.model.backend
    )


def warm_up(job: WarmUp) -> float:
    """Makes the warm model; its reward when it was last looked at."""
    warm, plan = Path(job.warm), job.plan
    model = Path(job.model) if job.model else warm.with_name(f"{warm.name}-from")
    if job.model is None:
        make_model(model, LETTERS + ">", job.seed)
    changes = (f"train.lr={plan.lr}", "train.warmup_steps=1", "train.weight_decay=0.01", "train.betas=[0.9, 0.999]")
    sizes = (f"control.groups_per_step={plan.groups}", f"control.steps={plan.steps}")
    prepared = prepare_sft(*_config(job, model, "sft", *job.settings, *changes, *sizes))
    checked = prepared.held_out[-CHECKED:]
    sampler, learner = Sampler(prepared), learner_of(prepared)
    stream, reward = prepared.stream(epochs=None), 0.0
    for step in range(1, plan.steps + 1):
        learner.sft([example_of(task, prepared) for task in islice(stream, plan.groups)])
        print(flush=True)
        if (step % CHECK_EVERY == 0 and plan.until is not None) or step == plan.steps:
            sampler.engine.swap_weights(learner.version, learner.policy.tensors())
            reward = sampler.reward(checked, 1, f"{job.seed}/{step}")
            if plan.until is not None and reward >= plan.until:
                break
    if not reward and plan.until:
        raise TrainerError(
            f"after {plan.steps} supervised steps no answer of {len(checked)} is right: no reward to learn by"
        )
    learner.save(warm, like=prepared.model_folder)
    return reward


def train(job: Run, stepped: Callable[[], None] = lambda: None) -> Outcome:
    prepared = prepare_run(job)
    at_age, rewards, lengths, ratios = AtAge(prepared), list[float](), list[float](), list[torch.Tensor]()
    clock, late, kept, metrics = Clock(job.eta), list[dict[str, float]](), list[Weights](), dict[str, float]()
    checked = checked_steps(job.steps)
    start = at_age.sampler.reward(prepared.held_out, 1, f"held-out/{job.seed}")
    for step in range(1, job.steps + 1):
        with clock.generating():
            batch = at_age.batch()
        if step > job.steps // 2 and (job.steps - step) % MEASURE_EVERY == 0:
            ratios.append(at_age.ratios(batch))
        with clock.training():
            metrics = at_age.learn(batch).metrics
        weights = at_age.keep()
        rewards.append(fmean(reward for group in batch.groups for reward in group.rewards))
        lengths.append(fmean(int(sample.loss_mask.sum()) for sample in batch.samples))
        if step > job.steps // 2:
            late.append(metrics)
        if step in checked:
            kept.append({name: tensor.cpu() for name, tensor in weights.items()})
        stepped()
    gc.collect()
    found = at_age.rewards(kept, prepared.held_out, find_lesson(job.task).answers)
    checks = [Check(step, reward, *clock.until(step)) for step, reward in zip(checked, found, strict=True)]
    ratio, tenth = torch.cat(ratios).double(), max(job.steps // 10, 1)
    return Outcome(
        seed=job.seed,
        eta=job.eta,
        objective=job.objective,
        reward=found[-1],
        checks=[Check(0, start, 0.0, 0.0), *checks],
        rewards=[round(fmean(rewards[at : at + tenth]), 3) for at in range(0, job.steps, tenth)],
        drift=ratio.log().abs().mean().item(),
        ratio=ratio.mean().item(),
        outside_share=((ratio - 1).abs() > 0.2).double().mean().item(),
        effective_samples=(ratio.mean() ** 2 / ratio.square().mean()).item(),
        clip_share=fmean(one["clip_share"] for one in late),
        kept_share=fmean(one["kept_share"] for one in late),
        entropy=metrics["entropy"],
        answer_tokens=fmean(lengths),
        generate_s=fmean(clock.generate_s),
        train_s=fmean(clock.train_s),
    )


class Clock:
    """How long the steps of a run took. The first one's seconds count as the second's: kernels are compiled in them."""

    def __init__(self, eta: int) -> None:
        self._at_once = eta > 0
        self._generate_s, self._train_s = list[float](), list[float]()

    @contextmanager
    def generating(self) -> Iterator[None]:
        yield from self._timed(self._generate_s)

    @contextmanager
    def training(self) -> Iterator[None]:
        yield from self._timed(self._train_s)

    @property
    def generate_s(self) -> list[float]:
        return _but_for_the_first(self._generate_s)

    @property
    def train_s(self) -> list[float]:
        return _but_for_the_first(self._train_s)

    def until(self, step: int) -> tuple[float, float]:
        """Seconds until that step has ended: in turns, and at once. At η = 0 nothing can go on at once."""
        pairs = list(zip(self.generate_s[:step], self.train_s[:step], strict=True))
        in_turns = sum(generate + train for generate, train in pairs)
        return round(in_turns, 4), round(sum(map(max, pairs)) if self._at_once else in_turns, 4)

    @staticmethod
    def _timed(into: list[float]) -> Iterator[None]:
        start_s = time.monotonic()
        yield
        into.append(time.monotonic() - start_s)


def _but_for_the_first(seconds: list[float]) -> list[float]:
    return [*seconds[1:2], *seconds[1:]] if len(seconds) > 1 else list(seconds)


def prepare_run(job: Run, *overrides: str) -> Prepared:
    """What a sweep changes comes before `overrides`; how old data is and what is learned, after the settings of all."""
    changes = (f"train.lr={job.lr}", *job.settings, *CHANGES[job.objective], f"control.max_staleness={job.eta}")
    return prepare(*_config(job, Path(job.start), "train", *changes, *overrides), planned=False)


def _config(job: WarmUp | Run, model: Path, data: str, *overrides: str) -> tuple[RunConfig, Origins]:
    tasks = Path(job.tasks)
    paths = (f"model.path={model}", f"data.source={tasks / data}.jsonl", f"held_out.source={tasks / 'held_out.jsonl'}")
    with as_file(files("freerun.bench") / "staleness.yaml") as file:
        return load_config(file, [*paths, f"seed={job.seed}", *find_lesson(job.task).settings, *overrides])


def checked_steps(steps: int) -> list[int]:
    """After which steps weights are put aside; after the last, too."""
    count = min(CHECKS, steps)
    return [steps * place // count for place in range(1, count + 1)]


if __name__ == "__main__":
    end_with_parent()
    kind, settings = sys.argv[1:]
    if kind == WarmUp.__name__:
        print(warm_up(msgspec.json.decode(settings, type=WarmUp)))
    else:
        print(msgspec.json.encode(train(msgspec.json.decode(settings, type=Run), lambda: print(flush=True))).decode())
