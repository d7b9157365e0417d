"""The training step itself: what every rank of the trainer does with a batch, on any device.

A step of reinforcement learning: advantages; whatever must be known by the weights before the step; then, for each PPO
minibatch, gradients accumulated over its micro-batches and one optimizer step. The loss is a weighted mean over the
trained tokens of the entire minibatch, however that was cut into micro-batches and dealt to ranks.
"""

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from freerun.core import Batch, Sample, TrainerError, Version
from freerun.core.reports import StepResult
from freerun.core.stretches import within
from freerun.machine.device import choose_device
from freerun.models.checkpoint import Common, decoder_to_share, load_decoder, save_tensors
from freerun.models.decoder import Decoder
from freerun.models.shape import Backend
from freerun.train.advantages import overlong_penalty
from freerun.train.assemble import assemble
from freerun.train.average import sequence_weights
from freerun.train.begun import Begun
from freerun.train.budget import MOST, Passes, micro_batch_budget
from freerun.train.causes import Causes
from freerun.train.config import TrainConfig
from freerun.train.corrections import Ratios, correct
from freerun.train.cutoffs import Probe
from freerun.train.diagnostics import Diagnostics
from freerun.train.distilled import mean_agreement
from freerun.train.drift import Reference
from freerun.train.estimate import estimate
from freerun.train.gae import value_loss
from freerun.train.health import Health
from freerun.train.how_sampled import ALL, HowSampled
from freerun.train.kl import kl_estimate
from freerun.train.lora import save_adapter
from freerun.train.losses import find_objective
from freerun.train.members import Added, Member, by_sample, compared, members_in, returned, trained_in, weights_of
from freerun.train.needs import PASS_TOKENS
from freerun.train.objective import Tokens, sequence_sum
from freerun.train.packing import Advantage, Packed, num_trained, pack, shared_out, untrained
from freerun.train.preferences import Pair, dpo, packed_pairs, pairs_of
from freerun.train.prefixes import distinct_tokens
from freerun.train.proximal import proximal_logprobs
from freerun.train.ranks import ALONE, Ranks
from freerun.train.shares import decoder_of
from freerun.train.speed import Phases, Speed


class Learner:
    """`longest` is the most tokens that an answer may have; `folder` has the weights where the decoder has none yet."""

    def __init__(
        self,
        decoder: Decoder,
        config: TrainConfig,
        temperature: float = 1.0,
        seed: int = 0,
        longest: int = 0,
        ranks: Ranks = ALONE,
        folder: Path | None = None,
        how: HowSampled = ALL,
    ) -> None:
        at = decoder.embed.weight.device
        self._device = torch.device(ranks.device) if at.type == "meta" else at
        config = config.on("cuda" if self._device.type == "cuda" else "cpu", decoder.shape.num_parameters)
        self._config, self._seed, self._longest, self._ranks = config, seed, longest, ranks
        self._objective = find_objective(config.objective)
        models = assemble(decoder, config, ranks, temperature, seed, folder, how)
        self.policy, self._critic, self._reference = models.policy, models.critic, models.reference
        self._shape = decoder.shape
        self._health, self._causes = Health(), Causes(how, ranks)
        self._how = how
        most = PASS_TOKENS if config.recompute == "offload" else MOST
        self._passes = Passes(
            config.micro_batch_tokens,
            lambda: micro_batch_budget(self.policy, self._critic, self._device, ranks, most),
            alone=ranks.size == 1,
        )
        self._entropy = math.inf
        self._agreement = 0.0
        """How far the newest batch agreed with its teacher: the baseline of what that teaches."""
        self.version: Version = 0
        self.savable = True
        """These are a version's weights: not those in the middle of a step, nor diverged."""

    @classmethod
    def from_folder(
        cls,
        folder: Path,
        config: TrainConfig,
        temperature: float = 1.0,
        seed: int = 0,
        longest: int = 0,
        ranks: Ranks = ALONE,
        how: HowSampled = ALL,
        backend: Backend = "auto",
        common: Common | None = None,
    ) -> "Learner":
        """Each of several ranks reads its share of the weights and no more. Below an adapter, weights are in the type
        that is computed in, and may be `common` with other processes."""
        found, rest = config.on(choose_device()), (config, temperature, seed, longest, ranks)
        if ranks.size > 1:
            return cls(decoder_to_share(folder, found.device, backend), *rest, folder, how)
        frozen = found.lora.rank > 0 and found.advantages != "gae"  # a critic learns all of its weights
        common = common if frozen else None
        dtype = torch.bfloat16 if frozen and found.low_precision else torch.float32
        return cls(load_decoder(folder, dtype, found.device, backend, common, found.lora.bits), *rest, how=how)

    @property
    def decoder(self) -> Decoder:
        return decoder_of(self.policy.module)

    def warm_up(self) -> None:
        """Find out now how long a pass may be, which compiles on a GPU: nobody waits for it yet."""
        _ = self._passes.tokens

    def step(self, batch: Batch) -> StepResult:
        """Reinforcement learning on a batch of groups."""
        if batch.version != self.version:
            raise TrainerError(f"a batch for version {batch.version} came to a trainer at version {self.version}")
        if any(sample.reward is None for sample in batch.samples):
            raise TrainerError("a sample without a reward came to the trainer")
        if self._objective.taught and any(sample.teacher_logprobs is None for sample in batch.samples):
            raise TrainerError("a sample that no teacher has read came to the trainer")
        with self._without_gradients_left():
            begun = self._passes.fitting(lambda: self._begin(batch), undo=self._forget_gradients)
            with self._passes.for_good():
                return self._complete(begun, batch)

    def _begin(self, batch: Batch) -> Begun:
        """As far as it may be tried again: until the first minibatch has its gradient, nothing is learned."""
        phases, speed = Phases(), Speed(self._shape, self._device, self._ranks.context.size)
        if self._objective.taught:
            self._agreement = mean_agreement(batch.samples)
        diagnostics = Diagnostics(self.version, self._ranks)
        plan = self._plan(batch)
        self._before_the_step(plan, batch, diagnostics)
        phases.end("proximal")
        kept_share = self._backward(plan[0], diagnostics) if plan else None
        return Begun(plan, kept_share, diagnostics, phases, speed)

    def _complete(self, begun: Begun, batch: Batch) -> StepResult:
        """Learn from the first gradient, then from the other minibatches. None of it can be done twice."""
        diagnostics, phases = begun.diagnostics, begun.phases
        if begun.kept_share is not None:
            self._optimize(begun.kept_share, diagnostics)
        for minibatch in begun.plan[1:]:
            self._optimize(self._backward(minibatch, diagnostics), diagnostics)
        phases.end("learn")
        self.version, self.savable = self.version + 1, True
        result = diagnostics.result()
        self._entropy = result.get("entropy", self._entropy)
        before = diagnostics.before.tokens(batch)
        metrics = result | self._causes.of(batch, before, result) | self._tokens_once(begun.plan, batch)
        metrics |= begun.speed.of(sum(len(s.tokens) for s in batch.samples), begun.micros, phases.ended)
        warnings = self._passes.take_notes() + self._health.warnings(metrics)
        logprobs = before.by_sample() if before else None
        return StepResult(self.version, metrics, phases.ended, warnings, before_logprobs=logprobs)

    def sft(self, examples: Sequence[Sample]) -> StepResult:
        """Supervised learning on the answers, the mean over their tokens."""
        phases = Phases()
        with self._without_gradients_left():
            total = self._passes.fitting(lambda: self._sft_backward(examples), undo=self._forget_gradients)
            lr = self._lr
            with self._passes.for_good():
                grad_norm = self.policy.clip()
                self.policy.apply(lr)
                loss = self._ranks.sum(total).item()
        phases.end("learn")
        self.version += 1
        tokens = sum(num_trained(example) for example in examples)
        metrics = {"loss": loss, "grad_norm": grad_norm, "lr": lr, "tokens": float(tokens)}
        return StepResult(self.version, metrics, phases.ended, self._passes.take_notes())

    def _sft_backward(self, examples: Sequence[Sample]) -> Tensor:
        """The gradient; this rank's share of the loss."""
        weights = sequence_weights([num_trained(example) for example in examples], "token", self._longest)
        total = torch.zeros((), device=self._device)
        for micro in self._packed(list(range(len(examples))), examples, [0.0] * len(examples), weights):
            logprobs_A = self.policy(micro).logprobs_A
            loss = -(micro.weights_A * logprobs_A).sum()
            torch.autograd.backward(loss)
            total += loss.detach()
        return total

    def dpo(self, samples: Sequence[Sample], beta: float) -> StepResult:
        """Learning from preference pairs, chosen and rejected answers in turns: see `preferences.py`."""
        phases, pairs = Phases(), pairs_of(samples)
        with self._without_gradients_left():
            sums = self._passes.fitting(lambda: self._dpo_backward(pairs, beta), undo=self._forget_gradients)
            lr = self._lr
            with self._passes.for_good():
                grad_norm = self.policy.clip()
                self.policy.apply(lr)
                loss, chosen, rejected, right = (self._ranks.sum(sums) / len(pairs)).tolist()
        phases.end("learn")
        self.version += 1
        metrics = {"loss": loss, "grad_norm": grad_norm, "lr": lr, "tokens": float(sum(map(num_trained, samples)))}
        metrics |= {"pair_accuracy": right, "pair_margin": chosen - rejected}
        metrics |= {"chosen_reward": chosen, "rejected_reward": rejected}
        return StepResult(self.version, metrics, phases.ended, self._passes.take_notes())

    def _dpo_backward(self, pairs: Sequence[Pair], beta: float) -> Tensor:
        """The gradient of the mean over all pairs. This rank's sums: of the loss, of chosen and rejected answers'
        rewards, and how many pairs are right."""
        sums = torch.zeros(4, device=self._device, dtype=torch.float64)
        for micro in packed_pairs(pairs, self._passes.tokens, self._ranks.num_teams)[self._ranks.team]:
            here = micro.to(self._device)
            found = dpo(self.policy(here.packed).logprobs_A, here, beta)
            torch.autograd.backward(found.loss_P.sum() / len(pairs))
            right = (found.chosen_P > found.rejected_P).sum()
            sums += torch.stack([x.detach().double().sum() for x in (*found, right)])
        return sums

    @torch.no_grad()
    def score(self, samples: Sequence[Sample]) -> list[list[float]]:
        """The present weights' log-probability of every token that `loss_mask` marks."""
        order = sorted(range(len(samples)), key=lambda i: len(samples[i].tokens))
        scores: list[list[float]] = [[] for _ in samples]
        for indices in within(order, [len(s.tokens) for s in samples], self._passes.tokens):
            micro = pack([samples[i] for i in indices]).to(self._device)
            logprobs, places = self.policy(micro)[0].tolist(), micro.sequence_A.tolist()
            for place, logprob in zip(places, logprobs, strict=True):
                scores[indices[place]].append(logprob)
        return scores

    def save(self, folder: Path, like: Path) -> None:
        """An ordinary Hugging Face folder; with LoRA, the merged model, and the adapter beside it in `adapter`."""
        tensors = self.policy.tensors()
        if self._ranks.is_first:
            save_tensors(tensors | self.decoder.fixed(), self._shape, folder, like)
        if self._config.lora.rank:
            save_adapter(self.decoder, folder / "adapter", str(like), writes=self._ranks.is_first)

    def state(self) -> dict[str, Any]:
        """All that the next step depends on, its batch and the configuration aside. Live tensors."""
        critic = {"critic": self._critic.state()} if self._critic else {}
        figures = {"version": self.version, "entropy": self._entropy, "drift": self._causes.reference.plain}
        return {**self.policy.state(), **critic, **figures}

    def load_state(self, state: dict[str, Any]) -> None:
        self.policy.load_state(state)
        if self._critic:
            self._critic.load_state(state["critic"])
        self.version, self._entropy = state["version"], state["entropy"]
        self._causes.reference = Reference.of(state["drift"])

    @property
    def _lr(self) -> float:
        return self._config.lr_at(self.version)

    def _tokens_once(self, plan: list[list[Packed]], batch: Batch) -> dict[str, float]:
        """How many tokens all teams computed in a pass over the plan, and how many different ones it has."""
        mine = torch.tensor(float(sum(len(micro.tokens_T) for minibatch in plan for micro in minibatch)))
        computed = self._ranks.sum(mine.to(self._device)).item()
        learned = trained_in(batch.groups, self._config.skip_truncated)
        different = distinct_tokens([sample for member in learned for sample in member.samples])
        return {"computed_tokens": computed, "distinct_tokens": float(different)}

    def _plan(self, batch: Batch) -> list[list[Packed]]:
        """The batch in shuffled minibatches of near-equally many members, each of them as this team's micro-batches. A
        member is in one of them with all its branches."""
        advantage = self._advantages(batch)
        order = trained_in(batch.groups, self._config.skip_truncated)
        count = min(self._config.minibatches, len(order))
        if count > 1:
            random.Random(f"{self._seed}/{self.version}").shuffle(order)
        plan = []
        for members in (order[share::count] for share in range(count)):
            weights = weights_of(members, self._config.average, self._longest)
            indices = sorted(weights)
            plan.append(list(self._packed(indices, batch.samples, advantage, [weights[i] for i in indices])))
        if self._how.cuts_off:
            Probe(batch.samples).mark(chain.from_iterable(plan), self._device)
        return plan

    def _packed(
        self, indices: list[int], samples: Sequence[Sample], advantage: Sequence[Advantage], weights: Sequence[float]
    ) -> Iterator[Packed]:
        """This team's micro-batches of those samples; `weights` go with `indices`, `advantage` with `samples`. One that
        is empty, so that all teams have as many, is a short sample of which no token is trained."""
        among = [samples[i] for i in indices]
        for places in shared_out(among, self._passes.tokens, self._ranks.num_teams)[self._ranks.team]:
            if places:
                counts = [weights[place] for place in places]
                packed = pack([among[place] for place in places], [advantage[indices[p]] for p in places], counts)
                packed.places = [indices[place] for place in places]
            else:
                packed = pack([untrained(min(among, key=lambda sample: len(sample.tokens)))])
            yield packed.to(self._device)

    def _advantages(self, batch: Batch) -> Sequence[Advantage]:
        """Advantages of each sample, by token; where a critic or a penalty has a part in them, what is still to come of
        the rewards: see `estimate.py`."""
        members = members_in(batch.groups)
        added = self._added(batch.samples, members)
        if self._by_token:
            return by_sample(members, returned(members, added))
        return by_sample(members, compared(members, added, self._config.advantages))

    @property
    def _by_token(self) -> bool:
        """Whether the tokens of an answer have advantages of their own: by a critic, or by what is still to come of the
        penalty for parting from the reference (REINFORCE++). Within groups entire answers are compared."""
        return self._critic is not None or (self._penalises and self._config.advantages == "batch")

    @property
    def _penalises(self) -> bool:
        """Whether parting from the reference is taken from the reward."""
        return self._reference is not None and self._config.kl.apply_to == "reward"

    def _added(self, samples: Sequence[Sample], members: Sequence[Member]) -> list[Added]:
        """To each member's reward: what being long costs, and what parting from the reference does if that is by
        member."""
        last = int(self._longest * self._config.overlong_share)
        penalties = [overlong_penalty(member.num_sampled, self._longest, last) for member in members]
        if not self._penalises or self._by_token:
            return [Added(penalty) for penalty in penalties]
        costs = self._kl_costs(samples)
        by_member = (sum(costs[place] for place in member.places) for member in members)
        return [Added(penalty, cost) for penalty, cost in zip(penalties, by_member, strict=True)]

    @torch.no_grad()
    def _kl_costs(self, samples: Sequence[Sample]) -> list[float]:
        """Each sample's divergence from the reference, summed over its tokens. Every rank does all of them."""
        costs = [0.0] * len(samples)
        order = [i for i, sample in enumerate(samples) if num_trained(sample)]
        for indices in within(order, [len(s.tokens) for s in samples], self._passes.tokens):
            micro = pack([samples[i] for i in indices]).to(self._device)
            cost_A = self._kl_cost(micro, self.policy(micro)[0])
            for i, total in zip(indices, sequence_sum(cost_A, micro.sequence_A, len(indices)).tolist(), strict=True):
                costs[i] = total
        return costs

    def _kl_cost(self, micro: Packed, before_A: Tensor) -> Tensor:
        """What each token's divergence from the reference costs, by the weights before the step."""
        assert self._reference is not None
        return self._config.kl.coef * kl_estimate(self._config.kl.estimator, before_A, self._reference(micro)[0])

    @torch.no_grad()
    def _before_the_step(self, plan: list[list[Packed]], batch: Batch, diagnostics: Diagnostics) -> None:
        """What is asked of the weights before the step: proximal and reference log-probabilities, values.

        With one minibatch the policy is the proximal policy when its gradient is taken, so a pass of its own would
        compute the same numbers twice.
        """
        recompute = self._config.proximal == "recompute" and len(plan) > 1
        for micro in (micro for minibatch in plan for micro in minibatch):
            if recompute:
                micro.proximal_A, _, micro.cut_off_P, _ = self.policy(micro)
            if self._reference and self._config.kl.apply_to == "loss":
                micro.reference_A = self._reference(micro)[0]
            if self._penalises and self._by_token:
                before_A = self.policy(micro)[0] if micro.proximal_A is None else micro.proximal_A
                micro.penalty_A = self._kl_cost(micro, before_A)
            if self._critic:
                micro.values_A = self._critic(micro)
        if self._by_token and plan:
            gamma, lam = (self._config.critic.gamma, self._config.critic.lam) if self._critic else (1.0, 1.0)
            estimate([micro for minibatch in plan for micro in minibatch], gamma, lam, self._ranks)

    def _backward(self, minibatch: list[Packed], diagnostics: Diagnostics) -> float:
        """The minibatch's gradient; how much of its weight was kept by the corrections."""
        sums = torch.zeros(3, device=self._device, dtype=torch.float64)
        for micro in minibatch:
            sums += self._rl_backward(micro, diagnostics)
        kept, total, loss = self._ranks.sum(sums).tolist()
        diagnostics.minibatch(loss / (kept / total) if kept else 0.0)
        return float(kept / total)

    def _rl_backward(self, micro: Packed, diagnostics: Diagnostics) -> Tensor:
        """One micro-batch. The weight of its tokens that were kept, that of all, and its share of the loss."""
        policy_A, entropy_A, cut_off_P, routed = self.policy(micro)
        tokens = self._tokens(micro, policy_A)
        loss = self._objective.loss(tokens, self._config.clip.bounds)
        log_ratio_A = tokens.proximal_A - tokens.behavior_A
        ratios = Ratios(log_ratio_A, tokens.advantages_A, micro.sequence_A, micro.num_sequences)
        correction = correct(self._config.corrections, ratios)
        bonus = self._config.entropy.coef_after(self._entropy)
        extra_A = -bonus * entropy_A if bonus else torch.zeros_like(policy_A)
        if micro.reference_A is not None:
            divergence_A = kl_estimate(self._config.kl.estimator, policy_A, micro.reference_A)
            extra_A = extra_A + self._config.kl.coef * divergence_A
            diagnostics.add(reference_kl=divergence_A)
        token_loss_A = correction.weight_A * loss.loss_A + correction.kept_A * extra_A
        total = (micro.weights_A * token_loss_A).sum()
        torch.autograd.backward(total)
        if self._critic:
            self._critic_backward(micro, diagnostics)
        if self._objective.taught and micro.teacher_A is not None:
            diagnostics.add(teacher_kl=tokens.proximal_A - micro.teacher_A)
        diagnostics.micro_batch(tokens, entropy_A, loss, correction)
        if routed:
            diagnostics.routed(routed)
        if not diagnostics.has_learned:
            diagnostics.drift(micro, policy_A.detach(), cut_off_P)
        elif micro.proximal_A is not None:
            diagnostics.drift(micro, micro.proximal_A, micro.cut_off_P)
        weights_A = micro.weights_A.double()  # summed so that it does not matter how the minibatch was cut
        return torch.stack([(weights_A * correction.kept_A).sum(), weights_A.sum(), total.detach().double()])

    def _tokens(self, micro: Packed, policy_A: Tensor) -> Tokens:
        staleness_A = self.version - micro.versions_A
        recomputed_A = policy_A.detach() if micro.proximal_A is None else micro.proximal_A
        proximal_A = proximal_logprobs(self._config.proximal, policy_A, micro.behavior_A, staleness_A, recomputed_A)
        return Tokens(
            policy_A=policy_A,
            proximal_A=proximal_A,
            behavior_A=micro.behavior_A,
            advantages_A=micro.advantages_A + self._taught(micro, proximal_A),
            sequence_A=micro.sequence_A,
            num_sequences=micro.num_sequences,
            staleness_A=staleness_A,
        )

    def _taught(self, micro: Packed, proximal_A: Tensor) -> Tensor | float:
        """What a teacher adds to the advantages."""
        if not self._objective.taught:
            return 0.0
        assert micro.teacher_A is not None
        return micro.teacher_A - proximal_A - self._agreement

    def _critic_backward(self, micro: Packed, diagnostics: Diagnostics) -> None:
        assert self._critic
        assert micro.values_A is not None
        assert micro.returns_A is not None
        loss = value_loss(self._critic(micro), micro.values_A, micro.returns_A, self._config.critic.clip)
        torch.autograd.backward((micro.weights_A * loss.loss_A).sum())
        diagnostics.add(value_loss=loss.loss_A)

    @contextmanager
    def _without_gradients_left(self) -> Iterator[None]:
        """Whatever ends the step: the next one must not learn from what this one left."""
        try:
            yield
        finally:
            self._forget_gradients()

    def _forget_gradients(self) -> None:
        self.policy.forget_gradients()
        if self._critic:
            self._critic.forget_gradients()

    def _optimize(self, kept_share: float, diagnostics: Diagnostics) -> None:
        """By the gradient of a minibatch of which the corrections kept so much; what they left nothing of teaches the
        critic still. Both gradients are looked at before either changes anything."""
        if self._critic:
            self._critic.clip()
        grad_norm = self.policy.clip(kept_share) if kept_share else None
        if self._critic:
            self.savable = False
            self._critic.apply(self._lr)
        if grad_norm is not None:
            self.savable = False
            self.policy.apply(self._lr)
            diagnostics.optimizer_step(grad_norm, self._lr)
        self._forget_gradients()
