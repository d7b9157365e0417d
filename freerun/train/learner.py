"""The training step itself: what the trainer's process does with a batch. In one process, on any device.

A step of reinforcement learning: advantages by group; proximal log-probabilities of the whole batch by the weights
before the step; then, for each PPO minibatch, gradients accumulated over its micro-batches and one optimizer step. The
loss is a mean over the trained tokens of the whole minibatch, however it was cut into micro-batches.
"""

import random
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from freerun.core import Batch, Sample, TrainerError, Version
from freerun.models.attention import PackedAttention
from freerun.models.checkpoint import load_decoder, save_decoder
from freerun.models.decoder import Decoder
from freerun.train.advantages import advantages
from freerun.train.base import StepResult
from freerun.train.config import TrainConfig
from freerun.train.diagnostics import Diagnostics
from freerun.train.losses.decoupled_ppo import decoupled_ppo
from freerun.train.packing import Packed, micro_batches, num_trained, pack


class Learner:
    def __init__(self, decoder: Decoder, config: TrainConfig, temperature: float = 1.0, seed: int = 0) -> None:
        self.decoder = decoder.train()
        self._config = config
        self._temperature = temperature
        self._seed = seed
        matrices = [p for p in decoder.parameters() if p.dim() > 1]
        vectors = [p for p in decoder.parameters() if p.dim() <= 1]
        self._optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
        )
        self.version: Version = 0

    @classmethod
    def from_folder(cls, folder: Path, config: TrainConfig, temperature: float, seed: int) -> "Learner":
        return cls(load_decoder(folder), config, temperature, seed)

    def step(self, batch: Batch) -> StepResult:
        """Reinforcement learning on a batch of groups."""
        if batch.version != self.version:
            raise TrainerError(f"a batch for version {batch.version} came to a trainer at version {self.version}")
        samples = batch.samples
        rewards = [sample.reward for sample in samples if sample.reward is not None]
        if len(rewards) != len(samples):
            raise TrainerError("a sample without a reward came to the trainer")
        groups = [group.id for group in batch.groups for _ in group.samples]
        advantage = advantages(rewards, groups, self._config.advantages)
        phases = Phases()
        diagnostics = Diagnostics(self.version)
        minibatches = self._minibatches(samples)
        proximal = [self._proximal(self._packed(mb, samples, advantage)) for mb in minibatches]
        phases.end("proximal")
        for indices, proximal_logprobs in zip(minibatches, proximal, strict=True):
            packed = self._packed(indices, samples, advantage)
            tokens = sum(micro.num_trained for micro in packed)
            for micro, proximal_A in zip(packed, proximal_logprobs, strict=True):
                if micro.num_trained:
                    self._rl_backward(micro, proximal_A, tokens, diagnostics)
            diagnostics.optimizer_step(*self._optimize())
        phases.end("learn")
        self.version += 1
        return StepResult(self.version, diagnostics.result(), phases.ended)

    def sft(self, examples: Sequence[Sample]) -> StepResult:
        """Supervised learning on the answers, the mean over their tokens."""
        phases = Phases()
        packed = self._packed(list(range(len(examples))), examples, [0.0] * len(examples))
        tokens = sum(micro.num_trained for micro in packed)
        total = 0.0
        for micro in packed:
            logprobs_A, _ = self._logprobs(micro)
            loss = -logprobs_A.sum() / tokens
            torch.autograd.backward(loss)
            total += loss.item()
        grad_norm, lr = self._optimize()
        phases.end("learn")
        self.version += 1
        metrics = {"loss": total, "grad_norm": grad_norm, "lr": lr, "tokens": float(tokens)}
        return StepResult(self.version, metrics, phases.ended)

    def save(self, folder: Path, like: Path) -> None:
        save_decoder(self.decoder, folder, like)

    def _minibatches(self, samples: list[Sample]) -> list[list[int]]:
        """The batch in shuffled, near-equal shares. Samples without a trained token take part in none."""
        order = [i for i, sample in enumerate(samples) if num_trained(sample)]
        count = min(self._config.minibatches, len(order))
        if count > 1:
            random.Random(f"{self._seed}/{self.version}").shuffle(order)
        return [sorted(order[share::count]) for share in range(count)]

    def _packed(self, indices: list[int], samples: Sequence[Sample], advantage: Sequence[float]) -> list[Packed]:
        lengths = [len(samples[i].tokens) for i in indices]
        chosen = [[indices[i] for i in micro] for micro in micro_batches(lengths, self._config.micro_batch_tokens)]
        return [pack([samples[i] for i in micro], [advantage[i] for i in micro]) for micro in chosen]

    @torch.no_grad()
    def _proximal(self, packed: list[Packed]) -> list[Tensor | None]:
        """The batch's log-probabilities by the weights before the step.

        With one minibatch the policy is the proximal policy when its gradient is taken, so a pass of its own would
        compute the same numbers twice.
        """
        if self._config.minibatches == 1:
            return [None] * len(packed)
        return [self._logprobs(micro)[0] for micro in packed]

    def _rl_backward(self, micro: Packed, proximal_A: Tensor | None, tokens: int, diagnostics: Diagnostics) -> None:
        policy_A, entropy_A = self._logprobs(micro)
        proximal_A = policy_A.detach() if proximal_A is None else proximal_A
        loss = decoupled_ppo(
            policy_A,
            proximal_A,
            micro.behavior_logprobs_A,
            micro.advantages_A,
            self._config.clip_ratio,
            self._config.behavior_cap,
        )
        mean = loss.loss_A.sum() / tokens
        torch.autograd.backward(mean)
        diagnostics.micro_batch(micro, proximal_A, entropy_A, loss, mean.detach())

    def _logprobs(self, micro: Packed) -> tuple[Tensor, Tensor]:
        """Log-probability of each trained token, and the entropy where it was sampled (without gradient)."""
        hidden = self.decoder(micro.tokens_T, micro.positions_T, PackedAttention(micro.lengths))
        logits_AV = self.decoder.logits(hidden[micro.rows_A])
        precise = torch.promote_types(logits_AV.dtype, torch.float32)
        logprobs_AV = (logits_AV.to(precise) / self._temperature).log_softmax(-1)
        with torch.no_grad():
            entropy_A = -(logprobs_AV.exp() * logprobs_AV).sum(-1)
        return logprobs_AV.gather(1, micro.targets_A[:, None]).squeeze(1), entropy_A

    def _optimize(self) -> tuple[float, float]:
        """One optimizer step, the gradient clipped; its norm before that, and the learning rate."""
        lr = self._config.lr_at(self.version)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        norm = torch.nn.utils.clip_grad_norm_(self.decoder.parameters(), self._config.clip_grad)
        if not torch.isfinite(norm):
            raise TrainerError("the gradient is not finite; lower train.lr, or look at the rewards for huge values")
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return norm.item(), lr


class Phases:
    """Names the stretches of a step, one after another."""

    def __init__(self) -> None:
        self._start_s = time.monotonic()
        self.ended: list[tuple[str, float, float]] = []

    def end(self, name: str) -> None:
        now_s = time.monotonic()
        self.ended.append((name, self._start_s, now_s))
        self._start_s = now_s
