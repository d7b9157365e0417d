"""`freerun bench replay`: what it is worth to train on the experts that the engine chose, on a model of random weights.

Engine and trainer compute in bf16, by different code. Their log-probabilities of what the engine sampled are compared
at equal weights, and after some training steps more; and the trainer's gradient with that of the same tokens in
float32, through the experts that sampled them. Both are done with the engine's choice of experts, and with the
trainer's own.
"""

import json
import random
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from freerun.bench.engine import decoder_of
from freerun.bench.likelihoods import spread
from freerun.core import Batch, ConfigError, Group, Sample, Task
from freerun.engines.base import Sampling
from freerun.engines.config import EngineConfig
from freerun.engines.embedded.in_process import InProcessEngine
from freerun.machine.device import choose_device
from freerun.models.decoder import Decoder
from freerun.rollouts.samples import sample_of_turns
from freerun.train.config import TrainConfig
from freerun.train.learner import Learner
from freerun.train.packing import pack, untrained
from freerun.train.trained import copy_in


@dataclass(frozen=True)
class Work:
    groups: int
    group_size: int
    prompt: int
    answer: int
    lr: float


@dataclass(frozen=True)
class Measured:
    staleness: int
    replayed: bool
    logprobs_off: float
    """Mean |Δ| of the trainer's log-probabilities from the engine's."""
    off_max: float
    drift: float
    """Half the mean square of the same, about a KL divergence: what the trainer has to correct for."""
    gradient_off: float
    """‖g − g*‖ / ‖g*‖, g* being in float32 through the engine's experts."""


@dataclass(frozen=True)
class Found:
    runs: list[Measured]
    flips: float
    """Share of the engine's choices that the trainer's router would not make at equal weights."""

    def ratio(self, staleness: int, figure: str) -> float:
        """How many times as far off the trainer is when it chooses itself."""
        one, other = (getattr(self._run(staleness, replayed), figure) for replayed in (False, True))
        return float(one / other)

    def _run(self, staleness: int, replayed: bool) -> Measured:
        return next(run for run in self.runs if (run.staleness, run.replayed) == (staleness, replayed))


def bench_replay(model: str, work: Work, staleness: int, seed: int) -> Found:
    device = choose_device()
    decoder = decoder_of(model, device, torch.float32)
    if not decoder.routes:
        raise ConfigError(f"--model {model} is no mixture of experts: there is nothing to choose from")
    spread(decoder)
    precise = deepcopy(decoder)
    config = TrainConfig(dtype="bfloat16", lr=work.lr, warmup_steps=0).on(device, compile=False)
    learner = Learner(decoder, config, seed=seed)
    engine = _engine(decoder, work)
    dice = random.Random(seed)
    first = batch(engine, work, dice, learner.version)
    runs, flips = _measured(learner, precise, first, 0), _flips(learner, first.samples)
    for step in range(staleness):
        learner.step(first if step == 0 else batch(engine, work, dice, learner.version))
        engine.swap_weights(learner.version, learner.policy.tensors())
    return Found(runs + (_measured(learner, precise, first, staleness) if staleness else []), flips)


def _engine(decoder: Decoder, work: Work) -> InProcessEngine:
    copy = copy_in(decoder, torch.bfloat16)
    assert isinstance(copy, Decoder)
    answers = work.groups * work.group_size
    tokens = answers * (work.prompt + work.answer + 128)  # on a GPU, too: the learner's memory is beside it
    return InProcessEngine(copy, EngineConfig(max_running=answers, cache_tokens=tokens, dtype="bfloat16"))


def batch(engine: InProcessEngine, work: Work, dice: random.Random, version: int) -> Batch:
    """Answers of the engine to random prompts, with random rewards."""
    vocabulary = engine.decoder.shape.vocab_size
    requests = []
    for _ in range(work.groups):
        prompt = [dice.randrange(2, vocabulary) for _ in range(work.prompt)]
        how = Sampling(max_new_tokens=work.answer, seed=dice.getrandbits(40), ignore_eos=True, routes=True)
        requests.append((prompt, how, work.group_size))
    groups = []
    for number, ((prompt, _, _), answers) in enumerate(zip(requests, engine.answer_all(requests), strict=True)):
        samples = [sample_of_turns([prompt, answer], answer.finish, "") for answer in answers]
        for sample in samples:
            sample.reward = dice.random()
        groups.append(Group(number, Task(str(number), "", []), samples, version))
    return Batch(version, groups)


def _measured(learner: Learner, precise: Decoder, first: Batch, staleness: int) -> list[Measured]:
    """The first version's samples, by the present weights."""
    samples = first.samples
    exact = _in_float32(learner, precise)
    expected = gradient(exact, samples)
    runs = []
    for replayed in (True, False):
        seen = samples if replayed else [_bare(sample) for sample in samples]
        off = _off(learner.score(seen), samples)
        difference = torch.linalg.vector_norm(gradient(learner, seen) - expected)
        norm = torch.linalg.vector_norm(expected)
        figures = off.mean(), off.max(), 0.5 * off.square().mean(), difference / norm
        runs.append(Measured(staleness, replayed, *(figure.item() for figure in figures)))
    return runs


@torch.no_grad()
def _flips(learner: Learner, samples: Sequence[Sample]) -> float:
    compared = different = 0.0
    for some in _passes([(sample, 0.0) for sample in samples]):
        micro = pack([sample for sample, _ in some]).to(learner.decoder.embed.weight.device)
        routed = learner.policy(micro).routed
        compared, different = compared + routed.compared.item(), different + routed.different.item()
    return different / compared


def _in_float32(learner: Learner, precise: Decoder) -> Learner:
    """The weights that the learner computes with, rounded as they are, in a learner that rounds nothing else."""
    tensors = learner.policy.tensors()
    with torch.no_grad():
        for name, parameter in precise.named_parameters():
            parameter.copy_(tensors[name])
    config = TrainConfig(dtype="float32").on(choose_device(), compile=False)
    return Learner(precise.requires_grad_(True), config)


def _bare(sample: Sample) -> Sample:
    bare = untrained(sample)
    bare.loss_mask, bare.routes = sample.loss_mask, None
    return bare


def _off(scores: Sequence[Sequence[float]], samples: Sequence[Sample]) -> Tensor:
    pairs = zip(scores, samples, strict=True)
    return torch.cat([
        (torch.tensor(mine) - torch.from_numpy(sample.behavior_logprobs[sample.loss_mask])).abs()
        for mine, sample in pairs
    ])  # fmt: skip


def gradient(learner: Learner, samples: Sequence[Sample]) -> Tensor:
    """The gradient of the answers' log-probabilities, each weighed by how much better than the mean it was."""
    rewards = [sample.reward or 0.0 for sample in samples]
    mean, policy = sum(rewards) / len(rewards), learner.policy
    policy.forget_gradients()
    for some in _passes(list(zip(samples, rewards, strict=True))):
        advantages = [reward - mean for _, reward in some]
        micro = pack([sample for sample, _ in some], advantages).to(learner.decoder.embed.weight.device)
        torch.autograd.backward(-(micro.advantages_A * policy(micro).logprobs_A).sum())
    found = torch.cat([p.grad.flatten().float() for p in policy.parameters if p.grad is not None])
    policy.forget_gradients()
    return found


def _passes(samples: list[tuple[Sample, float]]) -> Iterator[list[tuple[Sample, float]]]:
    for start in range(0, len(samples), 8):
        yield samples[start : start + 8]


def show(model: str, work: Work, found: Found, json_only: bool) -> None:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} thread(s)"
    staleness = sorted({run.staleness for run in found.runs})
    figures = "logprobs_off", "drift", "gradient_off"
    ratios = {str(age): {figure: found.ratio(age, figure) for figure in figures} for age in staleness}
    if not json_only:
        tokens = work.groups * work.group_size * work.answer
        table = Table(title=f"{model}, bfloat16, {tokens:,} sampled tokens; {device}")
        for column in ("staleness", "experts", "mean |Δ log-prob|", "largest", "drift", "gradient off by"):
            table.add_column(column, justify="right")
        for run in found.runs:
            table.add_row(
                str(run.staleness), "the engine's" if run.replayed else "the trainer's", f"{run.logprobs_off:.5f}",
                f"{run.off_max:.3f}", f"{run.drift:.2g}", f"{run.gradient_off:.2%}",
            )  # fmt: skip
        Console().print(table)
        print(f"the trainer's router would change {found.flips:.2%} of the engine's choices at equal weights")
        for age, those in ratios.items():
            print(
                f"at a staleness of {age}, without replay log-probabilities are {those['logprobs_off']:.1f} times as "
                f"far off, drift is {those['drift']:.1f} times as large, and the gradient {those['gradient_off']:.1f} "
                "times as far off"
            )
    record: dict[str, Any] = {"bench": "replay", "model": model, "device": device, **asdict(work)}
    print(json.dumps(record | {"runs": [asdict(run) for run in found.runs], "flips": found.flips, "ratios": ratios}))
