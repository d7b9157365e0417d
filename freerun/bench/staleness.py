"""`freerun bench staleness`: what the age of data does to learning, with plain PPO and with decoupled PPO, the paper's
and ours.

A run paces itself so that its data is no older than need be, so what staleness does is seen only where it is held. Here
the real engine samples every batch with the weights of exactly η versions ago, and the real learner takes a step on it:
one process a run, the two taking turns, on the demo's task. All runs of a seed start from the same weights and see the
same tasks in the same order; they differ in η and in the objective alone.
"""

import asyncio
import json
import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from importlib.resources import as_file, files
from itertools import islice
from pathlib import Path
from random import Random
from statistics import fmean, stdev
from typing import Any

import msgspec
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from freerun.bench.staleness_picture import Line, picture
from freerun.commands.demo import LETTERS, write_tasks
from freerun.commands.progress import counting
from freerun.config.load import load_config
from freerun.control.waiting import together
from freerun.core import Batch, ConfigError, Group, ProcessDied, Sample, Task, TrainerError
from freerun.engines.base import Completion
from freerun.engines.embedded.in_process import InProcessEngine
from freerun.machine.parent import end_with_parent
from freerun.machine.processes import ChildProcess, describe_exit
from freerun.models.checkpoint import load_decoder
from freerun.models.tiny import make_model
from freerun.rollouts.single_turn import sample_of
from freerun.run.prepare import Prepared, example_of, prepare, prepare_sft
from freerun.train.learner import Learner

OBJECTIVES = {"ppo": "plain PPO", "paper": "decoupled PPO", "freerun": "with distance"}
CHANGES = {
    "ppo": ("train.objective=ppo",),
    "paper": ("train.objective=decoupled_ppo", "train.corrections=[token]"),
    "freerun": ("train.objective=decoupled_ppo",),
}
WARM_UP = (
    "train.lr=1e-3",
    "train.warmup_steps=1",
    "train.decay_steps=0",
    "control.groups_per_step=128",
    "control.steps=2000",
)
REGIME = (
    "control.groups_per_step=16", "rollout.group_size=16", "train.minibatches=4", "train.warmup_steps=10",
    "train.decay_steps=0", "train.entropy.coef=0", "train.betas=[0.9, 0.95]",
)  # fmt: skip
"""What differs from the demo: the paper's four minibatches, its constant learning rate and its β₂; half as many groups;
each objective's own corrections, and nothing for entropy."""
WARM = 0.4
"""The share of answers that should be right when reinforcement learning begins."""
CHECK_EVERY, CHECKED = 5, 256
"""In the warm-up: supervised steps, and tasks to look at."""
ANSWERS = 4
"""To each held-out task, when a run is over."""
MEASURE_EVERY = 5


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Supervised learning from nothing, until that share of the answers is right."""

    folder: str
    seed: int
    until: float


@dataclass(frozen=True, slots=True)
class Run:
    """One run of reinforcement learning, from where the warm-up of its seed ended."""

    folder: str
    seed: int
    eta: int
    objective: str
    steps: int
    lr: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a run. Shares and means are over the second half of its steps."""

    seed: int
    eta: int
    objective: str
    reward: float
    """The reward of the last weights on the held-out tasks."""
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
    entropy: float
    """At the last step, of the tokens it trained on."""


class Sampler:
    """The engine, and the judge of its answers."""

    def __init__(self, prepared: Prepared) -> None:
        config = prepared.config
        self.engine = InProcessEngine(load_decoder(Path(config.model.path)), config.engine)
        self._tokenizer, self._sampling = prepared.tokenizer, config.rollout.sampling()

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
        text = self._tokenizer.decode(completion.tokens.tolist(), skip_special_tokens=True)
        sample = sample_of(task, completion, text)
        sample.reward = float(text.strip() == task.answer)
        return sample


class AtAge:
    """Engine and learner, the engine η versions behind.

    Invariant: `_past` holds the weights of the versions after the engine's, up to the learner's, oldest first. The
    first η steps train on what version 0 sampled, at an age that grows from 0 to η.
    """

    def __init__(self, prepared: Prepared) -> None:
        config = prepared.config
        self.sampler = Sampler(prepared)
        self.learner = Learner(
            load_decoder(Path(config.model.path)), config.train, 1.0, config.seed, config.rollout.max_new_tokens
        )
        self._config, self._tasks = config, prepared.stream(epochs=None)
        self._past = deque[dict[str, torch.Tensor]]()

    def batch(self) -> Batch:
        """The next tasks, answered by the weights of η versions ago."""
        version, config = self.learner.version, self._config
        if version - config.control.max_staleness > self.sampler.engine.version:
            self.sampler.engine.swap_weights(version - config.control.max_staleness, self._past.popleft())
        tasks = islice(self._tasks, config.control.groups_per_step)
        return Batch(version, self.sampler.groups(tasks, config.rollout.group_size, f"{config.seed}/{version}"))

    def learn(self, batch: Batch) -> dict[str, float]:
        metrics = self.learner.step(batch).metrics
        self._past.append({name: tensor.clone() for name, tensor in self.learner.policy.tensors().items()})
        return metrics

    def final_reward(self, held_out: list[Task]) -> float:
        self.sampler.engine.swap_weights(self.learner.version, self.learner.policy.tensors())
        return self.sampler.reward(held_out, ANSWERS, f"held-out/{self._config.seed}")

    def ratios(self, batch: Batch) -> torch.Tensor:
        """π_proximal / π_behavior of every trained token, whatever the objective makes of it."""
        samples = batch.samples
        proximal = [logprob for logprobs in self.learner.score(samples) for logprob in logprobs]
        behavior = np.concatenate([sample.behavior_logprobs[sample.loss_mask] for sample in samples])
        return (torch.tensor(proximal) - torch.from_numpy(behavior)).exp()


def warm_up(job: WarmUp) -> float:
    """Makes model and tasks in the folder, and the warm model, `warm`; its reward when it was last looked at."""
    folder = Path(job.folder)
    make_model(folder / "model", LETTERS + ">", job.seed)
    write_tasks(folder, job.seed)
    prepared = prepare_sft(*_config(job, "model", "sft", *WARM_UP))
    config, checked = prepared.config, prepared.held_out[-CHECKED:]
    sampler, learner = Sampler(prepared), Learner(load_decoder(folder / "model"), config.train, seed=job.seed)
    stream = prepared.stream(epochs=None)
    for step in range(1, config.control.steps + 1):
        learner.sft([example_of(task, prepared) for task in islice(stream, config.control.groups_per_step)])
        if step % CHECK_EVERY == 0:
            sampler.engine.swap_weights(learner.version, learner.policy.tensors())
            reward = sampler.reward(checked, 1, f"{job.seed}/{step}")
            if reward >= job.until:
                learner.save(folder / "warm", like=folder / "model")
                return reward
    raise TrainerError(f"seed {job.seed} is not at {job.until} after {config.control.steps} supervised steps; lower it")


def train(job: Run, stepped: Callable[[], None] = lambda: None) -> Outcome:
    prepared = prepare_run(job)
    at_age, rewards, clipped, ratios = AtAge(prepared), list[float](), list[float](), list[torch.Tensor]()
    metrics = dict[str, float]()
    for version in range(job.steps):
        batch = at_age.batch()
        if version >= job.steps // 2 and (job.steps - 1 - version) % MEASURE_EVERY == 0:
            ratios.append(at_age.ratios(batch))
        metrics = at_age.learn(batch)
        rewards.append(fmean(reward for group in batch.groups for reward in group.rewards))
        clipped.append(metrics["clip_share"])
        stepped()
    ratio, tenth = torch.cat(ratios).double(), max(job.steps // 10, 1)
    return Outcome(
        seed=job.seed,
        eta=job.eta,
        objective=job.objective,
        reward=at_age.final_reward(prepared.held_out),
        rewards=[round(fmean(rewards[at : at + tenth]), 3) for at in range(0, job.steps, tenth)],
        drift=ratio.log().abs().mean().item(),
        ratio=ratio.mean().item(),
        outside_share=((ratio - 1).abs() > 0.2).double().mean().item(),
        effective_samples=(ratio.mean() ** 2 / ratio.square().mean()).item(),
        clip_share=fmean(clipped[job.steps // 2 :]),
        entropy=metrics["entropy"],
    )


def prepare_run(job: Run, *overrides: str) -> Prepared:
    changes = (*CHANGES[job.objective], f"train.lr={job.lr}", f"control.max_staleness={job.eta}")
    return prepare(*_config(job, "warm", "train", *REGIME, *changes, *overrides))


def _config(job: WarmUp | Run, model: str, data: str, *overrides: str) -> Any:
    """The demo's, with changes."""
    folder = Path(job.folder)
    paths = [f"model.path={folder / model}", f"data.source={folder / data}.jsonl", f"seed={job.seed}"]
    paths.append(f"held_out.source={folder / 'held_out.jsonl'}")
    with as_file(files("freerun.commands") / "demo.yaml") as file:
        return load_config(file, [*paths, *overrides])


def parse_etas(text: str) -> list[int]:
    try:
        etas = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise ConfigError(f"--etas {text} is not a list of whole numbers, such as 0,1,4,16") from None
    if etas[0] < 0:
        raise ConfigError(f"--etas {text}: data cannot come from {-etas[0]} versions ahead; leave {etas[0]} out")
    return etas


async def bench_staleness(etas: list[int], seeds: list[int], steps: int, lr: float, out: Path, json_only: bool) -> None:
    if steps <= 2 * max(etas):
        raise ConfigError(f"--steps {steps} is too few for η = {max(etas)}: make it more than {2 * max(etas)}")
    room = asyncio.Semaphore(os.cpu_count() or 1)
    with (
        tempfile.TemporaryDirectory(prefix="freerun-staleness-") as place,
        counting("steps", len(seeds) * len(etas) * len(OBJECTIVES) * steps) as stepped,
    ):
        folders = {seed: Path(place) / f"seed-{seed}" for seed in seeds}
        for folder in folders.values():
            folder.mkdir()
        warm_ups = (WarmUp(str(folder), seed, WARM) for seed, folder in folders.items())
        starts = await together(*(_child(job, room, stepped) for job in warm_ups))
        outcomes = await sweep(folders, etas, steps, lr, room, stepped)
    show(outcomes, [float(start) for start in starts], steps, lr, out, json_only)


async def sweep(
    folders: dict[int, Path],
    etas: list[int],
    steps: int,
    lr: float,
    room: asyncio.Semaphore,
    stepped: Callable[[], None],
) -> list[Outcome]:
    """Every η with every objective from every seed's warm model, as many at a time as there is room for."""
    runs = [
        Run(str(folder), seed, eta, objective, steps, lr)
        for seed, folder in folders.items()
        for eta in etas
        for objective in OBJECTIVES
    ]
    ended = await together(*(_child(run, room, stepped) for run in runs))
    return [msgspec.json.decode(line, type=Outcome) for line in ended]


async def _child(job: WarmUp | Run, room: asyncio.Semaphore, stepped: Callable[[], None]) -> bytes:
    """The last line that the job's process writes; it writes an empty one for each step before."""
    kind = type(job).__name__
    what = kind if isinstance(job, WarmUp) else f"{job.objective}-{job.eta}"
    log = Path(job.folder) / f"{what}.log"
    async with room:
        child = await ChildProcess.start(
            *(what, "freerun.bench.staleness", kind, msgspec.json.encode(job).decode()),
            environment={"OMP_NUM_THREADS": "1"},
            log=log,
            stdout=asyncio.subprocess.PIPE,
        )
        assert child.process.stdout
        try:
            last = b""
            async for line in child.process.stdout:
                last = line.strip()
                if not last:
                    stepped()
            if code := await child.process.wait():
                raise ProcessDied(f"the process of {what}, seed {job.seed}, {describe_exit(code)}", child.log_tail())
            return last
        finally:
            await child.end(grace_s=0)


def show(outcomes: list[Outcome], starts: list[float], steps: int, lr: float, out: Path, json_only: bool) -> None:
    etas = sorted({outcome.eta for outcome in outcomes})
    lines = [
        Line(name, [[o.reward for o in outcomes if (o.objective, o.eta) == (objective, eta)] for eta in etas])
        for objective, name in OBJECTIVES.items()
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(picture(etas, lines, f"Held-out reward after {steps} steps on data of age η, lr {lr:g}"))
    console = Console(stderr=json_only)
    console.print(_table(outcomes, steps, lr))
    falls = [f"{line.name} from {fmean(line.rewards[0]):.3f} to {fmean(line.rewards[-1]):.3f}" for line in lines]
    console.print(f"η from {etas[0]} to {etas[-1]}: {', '.join(falls)}; picture: {out}", highlight=False)
    head = {"bench": "staleness", "steps": steps, "lr": lr, "regime": REGIME, "starts": starts}
    print(json.dumps(head | {"runs": [asdict(outcome) for outcome in outcomes]}))


def _table(outcomes: list[Outcome], steps: int, lr: float) -> Table:
    seeds = len({outcome.seed for outcome in outcomes})
    table = Table(title=f"Held-out reward after {steps} steps, lr {lr:g}, {seeds} seed(s), mean ± standard deviation")
    for column in ("η", "objective", "reward", "worst", "drift", "outside ±0.2", "effective", "clipped", "entropy"):
        table.add_column(column, justify="right")
    cells: dict[tuple[int, str], list[Outcome]] = {}
    for outcome in outcomes:
        cells.setdefault((outcome.eta, outcome.objective), []).append(outcome)
    for (eta, objective), found in cells.items():
        rewards = [outcome.reward for outcome in found]
        spread = stdev(rewards) if len(rewards) > 1 else 0.0
        table.add_row(
            str(eta),
            OBJECTIVES[objective],
            f"{fmean(rewards):.3f} ± {spread:.3f}",
            f"{min(rewards):.3f}",
            f"{fmean(o.drift for o in found):.3f}",
            f"{fmean(o.outside_share for o in found):.1%}",
            f"{fmean(o.effective_samples for o in found):.0%}",
            f"{fmean(o.clip_share for o in found):.1%}",
            f"{fmean(o.entropy for o in found):.3f}",
        )
    return table


if __name__ == "__main__":
    end_with_parent()
    torch.set_num_threads(1)
    kind, settings = sys.argv[1:]
    if kind == WarmUp.__name__:
        print(warm_up(msgspec.json.decode(settings, type=WarmUp)))
    else:
        print(msgspec.json.encode(train(msgspec.json.decode(settings, type=Run), print)).decode())
