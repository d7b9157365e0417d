"""The step with every objective and option: the same however it is cut, and each does what it says."""

from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from freerun.core import Batch, FinishReason, TrainerError
from freerun.train import trained
from freerun.train.checkpoint import CheckpointWriter, load_checkpoint
from freerun.train.config import TrainConfig
from freerun.train.diagnostics import Diagnostics
from freerun.train.health import Health
from freerun.train.learner import Learner
from freerun.train.losses import names
from freerun.train.members import members_in
from freerun.train.packing import Packed, pack
from freerun.train.protocol import Checkpoint
from freerun.train.worker import TrainerProcess
from tests.tiny import tiny_decoder
from tests.train.test_advantages import plain_gae
from tests.train.test_learner import plain_logprobs, random_batch

K1_IN_REWARD = {"coef": 0.3, "estimator": "k1", "apply_to": "reward"}


def learner(start: torch.dtype = torch.float64, **config: Any) -> Learner:
    settings = {"lr": 1e-2, "clip_grad": 1e9, **config}
    return Learner(tiny_decoder(dtype=start), TrainConfig.model_validate(settings), longest=12)


def weights(who: Learner) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in who.policy.tensors().items()}


OPTIONS: list[dict[str, Any]] = [{"objective": name} for name in names() if name != "distill"] + [
    {"objective": "distill", "teacher": "a/model"},
    {"corrections": [{"name": "icepop", "low": 0.2, "high": 1.5}]},
    {"corrections": ["sequence", {"name": "geometric", "low": 0.3, "high": 1.2}]},
    {"proximal": "interpolate"},
    {"kl": {"coef": 0.1}},
    {"kl": {"coef": 0.1, "apply_to": "reward", "estimator": "k1"}},
    {"kl": {"coef": 0.1, "apply_to": "reward", "estimator": "k1"}, "objective": "reinforce_pp"},
    {"kl": {"coef": 0.1, "apply_to": "reward", "estimator": "k1"}, "advantages": "gae"},
    {"entropy": {"coef": 0.05}},
    {"entropy": {"coef": 0.05, "floor": 5.0}},
    {"advantages": "gae"},
    {"objective": "dapo", "overlong_share": 0.5},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: " ".join(f"{k}={v}" for k, v in o.items()))
def test_how_a_batch_is_cut_changes_nothing(options: dict[str, Any]) -> None:
    results = []
    for micro_batch_tokens in (1, 40, 10_000):
        who = learner(micro_batch_tokens=micro_batch_tokens, minibatches=2, **options)
        for version in range(3):
            batch = random_batch(version, version)
            for sample in batch.samples if "teacher" in options else ():
                sample.teacher_logprobs = 0.5 * sample.behavior_logprobs
            metrics = who.step(batch).metrics
        results.append((weights(who), metrics))
    start = weights(learner())
    for mine, metrics in results:
        assert any(not torch.equal(mine[name], start[name]) for name in start), "nothing was learned"
        for name, tensor in mine.items():
            torch.testing.assert_close(tensor, results[0][0][name], atol=1e-6, rtol=1e-5)
        assert metrics["loss"] == pytest.approx(results[0][1]["loss"], rel=1e-4, abs=1e-7)


def test_the_bonus_for_entropy_fades_towards_its_floor() -> None:
    """None of it above, and none in the first step: nothing is known yet."""

    def after(steps: int, **settings: Any) -> dict[str, torch.Tensor]:
        who = learner(**settings)
        for version in range(steps):
            entropy = who.step(random_batch(version, version)).metrics["entropy"]
        assert 2.5 < entropy < 3.5
        return weights(who)

    def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
        return all(torch.equal(one[name], other[name]) for name in one)

    for steps in (1, 2):
        assert same(after(steps), after(steps, entropy={"coef": 0.5, "floor": 2.0}))
    assert same(after(1), after(1, entropy={"coef": 0.5, "floor": 6.0}))
    assert not same(after(2), after(2, entropy={"coef": 0.5, "floor": 6.0}))
    assert not same(after(1), after(1, entropy={"coef": 0.5}))


def test_masked_tokens_count_as_if_they_were_not_there() -> None:
    """IcePop keeps a part of the tokens; the same step on that part alone, with the same weights, is the same step."""
    batch = random_batch(3)
    who = learner(corrections=[{"name": "icepop", "low": 0.5, "high": 2.0}], advantages="group_mean")
    plain = tiny_decoder(dtype=torch.float64)
    kept = random_batch(3)
    with torch.no_grad():
        for sample in kept.samples:
            policy = [0.0, *plain_logprobs(plain, sample).tolist()]
            ratios = torch.tensor(policy) - torch.tensor(sample.behavior_logprobs)
            sample.loss_mask = sample.loss_mask & ((ratios.exp() >= 0.5) & (ratios.exp() <= 2.0)).numpy()
    metrics = who.step(batch).metrics
    assert 0.1 < metrics["kept_share"] < 0.9
    other = learner(corrections=[{"name": "token", "cap": 100.0}], advantages="group_mean")
    other.step(kept)
    for name, tensor in weights(who).items():
        torch.testing.assert_close(tensor, weights(other)[name], atol=1e-6, rtol=1e-5)


def test_a_batch_that_is_masked_away_moves_nothing() -> None:
    who = learner(corrections=[{"name": "icepop", "low": 0.999999, "high": 1.000001}])
    metrics = who.step(random_batch(3)).metrics
    assert metrics["kept_share"] == 0
    assert "grad_norm" not in metrics
    assert all(torch.equal(tensor, weights(learner())[name]) for name, tensor in weights(who).items())
    assert who.version == 1


def test_the_reference_is_the_model_that_training_began_with() -> None:
    who, free = learner(kl={"coef": 20.0}), learner()
    divergences = [who.step(random_batch(v, v)).metrics["reference_kl"] for v in range(8)]
    assert divergences[0] == pytest.approx(0, abs=1e-12)
    assert divergences[1] > 1e-4
    for version in range(8):
        free.step(random_batch(version, version))
    start = tiny_decoder(dtype=torch.float64)
    samples = random_batch(9).samples

    def parted(who: Learner) -> float:
        """How far its log-probabilities are from the start's."""
        with torch.no_grad():
            return sum((plain_logprobs(who.decoder, s) - plain_logprobs(start, s)).abs().mean().item() for s in samples)

    assert parted(who) < 0.9 * parted(free)


def estimated(who: Learner, batch: Batch) -> list[tuple[float, float | None]]:
    """Advantage and return of every trained token in the batch's order, as the step uses them."""
    seen: list[tuple[float, float | None]] = []
    real = who._rl_backward

    def spy(micro: Packed, diagnostics: Diagnostics) -> torch.Tensor:
        returns = [None] * micro.num_trained if micro.returns_A is None else micro.returns_A.tolist()
        seen.extend(zip(micro.advantages_A.tolist(), returns, strict=True))
        return real(micro, diagnostics)

    who._rl_backward = spy  # type: ignore[method-assign]
    who.step(batch)
    return seen


def penalties(who: Learner, batch: Batch, kl_coef: float) -> list[list[float]]:
    """k1 at each trained token of each sample, times the coefficient, one sequence at a time."""
    start = tiny_decoder(dtype=torch.float64)
    result = []
    with torch.no_grad():
        for sample in batch.samples:
            parted = plain_logprobs(who.decoder, sample) - plain_logprobs(start, sample)
            marks = zip(parted.tolist(), sample.loss_mask[1:], strict=True)
            result.append([kl_coef * value for value, mark in marks if mark])
    assert max(abs(value) for row in result for value in row) > 1e-3
    return result


def standardised(rows: list[list[float]]) -> list[float]:
    flat = [value for row in rows for value in row]
    mean = sum(flat) / len(flat)
    spread = (sum((value - mean) ** 2 for value in flat) / len(flat)) ** 0.5
    return [(value - mean) / (spread + 1e-6) for value in flat]


@pytest.mark.parametrize("minibatches", [1, 2])
def test_reinforce_pp_takes_the_penalty_still_to_come(minibatches: int) -> None:
    """A_t = r − β Σ_{i ≥ t} (log π − log π_ref), normalised over all tokens: by hand. An answer's first tokens pay for
    all of it, its last one for itself alone."""
    who = learner(objective="reinforce_pp", kl=K1_IN_REWARD, minibatches=minibatches)
    for version in range(3):
        who.step(random_batch(version, version))
    batch = random_batch(3, 3)
    costs = penalties(who, batch, 0.3)
    rows = [
        [(sample.reward or 0.0) - sum(row[t:]) for t in range(len(row))]
        for sample, row in zip(batch.samples, costs, strict=True)
    ]
    got, expected = sorted(value for value, _ in estimated(who, batch)), sorted(standardised(rows))
    assert got == pytest.approx(expected, abs=1e-5)


def test_a_critic_is_told_the_penalty_token_by_token() -> None:
    who = learner(advantages="gae", kl=K1_IN_REWARD, critic={"lam": 0.9, "gamma": 0.95})
    for version in range(3):
        who.step(random_batch(version, version))
    batch = random_batch(3, 3)
    costs = penalties(who, batch, 0.3)
    assert who._critic is not None
    values, rewards = [], []
    for sample, row in zip(batch.samples, costs, strict=True):
        if row:
            with torch.no_grad():
                values.append(who._critic(pack([sample])).tolist())
            rewards.append([*(-cost for cost in row[:-1]), (sample.reward or 0.0) - row[-1]])
    advantages, returns = plain_gae(values, rewards, gamma=0.95, lam=0.9)
    got = estimated(who, batch)
    assert sorted(value for value, _ in got) == pytest.approx(sorted(standardised([advantages])), abs=1e-5)
    assert sorted(value for _, value in got if value is not None) == pytest.approx(sorted(returns), abs=1e-5)


def test_within_groups_the_penalty_is_the_whole_answers() -> None:
    """RLOO and the others compare answers: what an answer costs is one number."""
    who = learner(objective="rloo", kl=K1_IN_REWARD)
    for version in range(3):
        who.step(random_batch(version, version))
    batch = random_batch(3, 3)
    costs = [sum(row) for row in penalties(who, batch, 0.3)]
    assert [added.to(0.0) for added in who._added(batch.samples, members_in(batch.groups))] == pytest.approx(
        [-cost for cost in costs], abs=1e-6
    )


def test_a_critic_learns_what_to_expect() -> None:
    who = learner(advantages="gae", critic={"lr": 1e-2, "clip": 10.0}, lr=1e-9)
    losses = [who.step(batch).metrics["value_loss"] for batch in (random_batch(1, version) for version in range(25))]
    assert losses[-1] < 0.3 * losses[0]


def test_overlong_answers_cost() -> None:
    who = learner(objective="dapo", overlong_share=0.5)
    batch = random_batch(1)
    for sample, added in zip(batch.samples, who._added(batch.samples, members_in(batch.groups)), strict=True):
        expected = min(0.0, max(-1.0, (12 - 6 - sample.num_sampled) / 6))
        assert added.to(sample.reward or 0.0) == pytest.approx((sample.reward or 0.0) + expected)


def test_how_much_of_a_batch_teaches() -> None:
    batch = random_batch(1)
    for sample in batch.groups[0].samples + batch.groups[2].samples:
        sample.reward = 1.0
    tokens = [(group, sum(sample.loss_mask[1:])) for group in batch.groups for sample in group.samples]
    teaching = sum(count for group, count in tokens if len({sample.reward for sample in group.samples}) > 1)
    assert teaching
    share = learner().step(batch).metrics["signal_share"]
    assert share == pytest.approx(teaching / sum(count for _, count in tokens))


def test_truncated_answers_are_compared_with_but_not_trained_on() -> None:
    batch, masked = random_batch(1), random_batch(1)
    for sample, other in list(zip(batch.samples, masked.samples, strict=True))[::3]:
        sample.finish = FinishReason.LENGTH
        other.loss_mask = np.zeros(len(other.tokens), np.bool_)
    who, expected, trained = learner(skip_truncated=True), learner(), learner()
    who.step(batch)
    expected.step(masked)
    trained.step(batch)
    assert all(torch.equal(tensor, weights(expected)[name]) for name, tensor in weights(who).items())
    assert any(not torch.equal(tensor, weights(trained)[name]) for name, tensor in weights(who).items())


@pytest.mark.parametrize("advantages", ["group", "gae"])
def test_a_batch_of_nothing_but_truncated_answers_teaches_nothing(advantages: str) -> None:
    who, batch = learner(skip_truncated=True, advantages=advantages), random_batch(1)
    for sample in batch.samples:
        sample.finish = FinishReason.LENGTH
    before = weights(who)
    assert who.step(batch).version == 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(who).items())


@pytest.mark.parametrize("proximal", ["behavior", "interpolate", "recompute"])
@pytest.mark.parametrize("minibatches", [1, 2])
def test_drift_is_measured_whatever_the_objective_is_relative_to(proximal: str, minibatches: int) -> None:
    """The log-probabilities of the first minibatch, where nobody asked for the others before the step."""
    who, batch = learner(proximal=proximal, corrections=[], minibatches=minibatches), random_batch(1)
    metrics = who.step(batch).metrics
    expected = learner(proximal="recompute", corrections=[]).step(batch).metrics
    for name in ("behavior_ratio", "behavior_kl", "effective_samples"):
        near = 1e-9 if minibatches == 1 or proximal == "recompute" else 0.5
        assert metrics[name] == pytest.approx(expected[name], rel=near), name
        assert metrics[name] not in (0.0, 1.0)


def test_corrections_that_would_do_nothing_are_refused() -> None:
    for options in ({"objective": "ppo"}, {"objective": "cispo"}, {"objective": "grpo", "proximal": "behavior"}):
        with pytest.raises(ValueError, match=r"set train\.proximal=recompute, or leave them out"):
            TrainConfig.model_validate({**options, "corrections": ["icepop"]})
        TrainConfig.model_validate({**options, "corrections": []})
        TrainConfig.model_validate({"corrections": ["icepop"]} | options | {"proximal": "recompute"})


def test_half_a_step_is_not_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two minibatches fails. Until the first was learned from, the weights are the version's."""
    for fails_at, savable in ((1, True), (2, False)):
        who = learner(minibatches=2)
        done: list[int] = []
        real = who.policy.clip

        def clip(*arguments: Any, real: Any = real, done: list[int] = done, fails_at: int = fails_at) -> float:
            done.append(1)
            if len(done) == fails_at:
                raise TrainerError("the gradient is not finite")
            return float(real(*arguments))

        monkeypatch.setattr(who.policy, "clip", clip)
        with pytest.raises(TrainerError, match="not finite"):
            who.step(random_batch(1))
        assert (who.version, who.savable) == (0, savable)
    worker = TrainerProcess.__new__(TrainerProcess)
    worker._learner = who
    with pytest.raises(TrainerError, match="the step after it failed half-way"):
        worker.save("nowhere")
    with pytest.raises(TrainerError, match="the step after it failed half-way"):
        worker.checkpoint(Checkpoint(0, "nowhere", "", "token"))


def test_lora_trains_the_adapter_alone_and_is_saved_both_ways(tmp_path: Path) -> None:
    who = learner(torch.float32, lora={"rank": 2})
    before = {name: p.detach().clone() for name, p in who.decoder.named_parameters()}
    plain = dict(tiny_decoder().named_parameters())
    for version in range(3):
        who.step(random_batch(version, version))
    for name, parameter in who.decoder.named_parameters():
        assert torch.equal(parameter, before[name]) != (".lora_" in name), name
    merged = who.policy.tensors()
    assert merged.keys() == plain.keys()
    again = tiny_decoder()
    again.load_state_dict(merged, strict=False)
    samples = random_batch(5).samples
    with torch.no_grad():
        for sample, scores in zip(samples, who.score(samples), strict=True):
            expected = [s for s, m in zip(plain_logprobs(again, sample), sample.loss_mask[1:], strict=True) if m]
            assert scores == pytest.approx([float(s) for s in expected], abs=1e-4)
    writer = CheckpointWriter(2)
    writer.begin(who, tmp_path, "{}")
    writer.finish()
    loaded = learner(torch.float32, lora={"rank": 2})
    load_checkpoint(tmp_path / "step-3", loaded)
    assert all(torch.equal(tensor, loaded.policy.tensors()[name]) for name, tensor in merged.items())


def test_scores_are_log_probabilities() -> None:
    who = learner(micro_batch_tokens=30)
    samples = random_batch(2).samples
    with torch.no_grad():
        for sample, scores in zip(samples, who.score(samples), strict=True):
            policy = plain_logprobs(who.decoder, sample)
            expected = [p.item() for p, mark in zip(policy, sample.loss_mask[1:], strict=True) if mark]
            assert scores == pytest.approx(expected, abs=1e-9)


def test_what_makes_it_smaller_changes_nothing() -> None:
    plain, recomputing = learner(), learner(recompute=True)
    for version in range(3):
        plain.step(random_batch(version, version))
        recomputing.step(random_batch(version, version))
    for name, tensor in weights(plain).items():
        torch.testing.assert_close(weights(recomputing)[name], tensor, atol=1e-12, rtol=1e-12)


def test_bf16_over_float32_weights_on_a_cpu() -> None:
    exact, low = learner(torch.float32), learner(torch.float32, dtype="bfloat16")
    for version in range(4):
        wanted = exact.step(random_batch(version, version)).metrics
        got = low.step(random_batch(version, version)).metrics
        assert got["loss"] == pytest.approx(wanted["loss"], abs=0.05)
    owned = dict(low.policy._owner.named_parameters())
    assert {p.dtype for p in owned.values()} == {torch.float32}
    for name, tensor in low.policy.tensors().items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, owned[f"decoder.{name}"].bfloat16()), "the copy follows the weights"


def test_a_figure_that_leaves_its_range_is_said_once() -> None:
    health = Health()
    assert health.warnings({"clip_share": 0.1, "engine_mismatch": 0.01}) == []
    assert "lower train.lr" in health.warnings({"clip_share": 0.7})[0]
    assert health.warnings({"clip_share": 0.8}) == []
    assert health.warnings({"clip_share": 0.1}) == []
    assert len(health.warnings({"clip_share": 0.9, "effective_samples": 0.1})) == 2


@pytest.mark.parametrize("how", ["forward", "backward"])
def test_a_pass_that_does_not_fit_is_cut_and_done_again(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU never runs out like this, so it is made to: above 1,100 tokens, before or after gradients are there."""
    batch = random_batch(0, groups=250)
    real = Learner._rl_backward

    def narrow(self: Learner, micro: Packed, diagnostics: Diagnostics) -> torch.Tensor:
        fits = len(micro.tokens_T) <= 1100
        result = real(self, micro, diagnostics) if how == "backward" or fits else None
        if result is None or not fits:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return result

    plain = learner(micro_batch_tokens=1_000_000)
    expected = plain.step(batch)
    monkeypatch.setattr(Learner, "_rl_backward", narrow)
    who = learner(micro_batch_tokens=2_000)
    got = who.step(batch)
    assert got.warnings[:2] == [
        "passes of 2000 tokens did not fit into memory; goes on with 1500",
        "passes of 1500 tokens did not fit into memory; goes on with 1125",
    ]
    assert got.metrics["loss"] == pytest.approx(expected.metrics["loss"])
    for name, tensor in weights(who).items():
        torch.testing.assert_close(tensor, weights(plain)[name], atol=1e-6, rtol=1e-5)


def test_a_gradient_half_handed_over_is_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bf16 memory can run out while a gradient goes from the copy that computed it to the weights that learn."""
    batch, real = random_batch(0), trained._hand_over
    expected, handed = learner(torch.float32, dtype="bfloat16"), []
    expected.step(batch)

    def narrow(owner: torch.nn.Parameter, parameter: torch.Tensor) -> None:
        handed.append(1)
        if len(handed) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        real(owner, parameter)

    monkeypatch.setattr(trained, "_hand_over", narrow)
    who = learner(torch.float32, dtype="bfloat16", micro_batch_tokens=2_000)
    got = who.step(batch)
    assert "did not fit into memory" in got.warnings[0]
    assert all(torch.equal(tensor, weights(expected)[name]) for name, tensor in weights(who).items())


def test_memory_that_runs_out_after_the_weights_changed_does_not_repeat_the_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    who, applied = learner(micro_batch_tokens=10_000), []
    real = who.policy.apply

    def apply(lr: float) -> None:
        applied.append(lr)
        real(lr)

    def full(_: Diagnostics) -> dict[str, float]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(who.policy, "apply", apply)
    monkeypatch.setattr(Diagnostics, "result", full)
    with pytest.raises(TrainerError, match="passes of 10000 tokens do not fit"):
        who.step(random_batch(0))
    assert len(applied) == 1
    assert (who.version, who.savable) == (1, True)


@pytest.mark.parametrize("options", [{}, {"advantages": "gae"}, {"minibatches": 2}], ids=str)
def test_a_step_without_a_finite_gradient_leaves_nothing_to_the_next(options: dict[str, Any]) -> None:
    """Nor does it change anything, a critic included."""
    who, fresh, broken = learner(**options), learner(**options), random_batch(1)
    for sample in broken.samples:
        sample.reward = float("nan")
    with pytest.raises(TrainerError, match="gradient is not finite"):
        who.step(broken)
    assert (who.version, who.savable) == (0, True)
    who.step(random_batch(2))
    fresh.step(random_batch(2))
    assert all(torch.equal(tensor, weights(fresh)[name]) for name, tensor in weights(who).items())


def test_a_critic_learns_from_what_is_masked_away() -> None:
    who = learner(
        advantages="gae", corrections=[{"name": "icepop", "low": 0.999999, "high": 1.000001}], critic={"lr": 1e-2}
    )
    assert who._critic is not None
    before = {name: p.detach().clone() for name, p in who._critic.module.named_parameters()}
    assert who.step(random_batch(3)).metrics["kept_share"] == 0
    assert any(not torch.equal(p, before[name]) for name, p in who._critic.module.named_parameters())
    assert all(torch.equal(tensor, weights(learner())[name]) for name, tensor in weights(who).items())


def test_the_loss_is_that_of_what_was_kept() -> None:
    """Half of the tokens masked does not halve it: the mean over the others, by hand."""
    batch = random_batch(3)
    who = learner(corrections=[{"name": "icepop", "low": 0.5, "high": 2.0}], advantages="group_mean")
    plain, total, kept = tiny_decoder(dtype=torch.float64), 0.0, 0
    for group in batch.groups:
        mean = sum(sample.reward or 0.0 for sample in group.samples) / len(group.samples)
        for sample in group.samples:
            with torch.no_grad():
                policy = [0.0, *plain_logprobs(plain, sample).tolist()]
            for at, trained_on in enumerate(sample.loss_mask):
                ratio = exp(policy[at] - sample.behavior_logprobs[at])
                if trained_on and 0.5 <= ratio <= 2.0:
                    kept, total = kept + 1, total - ratio * ((sample.reward or 0.0) - mean)
    assert who.step(batch).metrics["loss"] == pytest.approx(total / kept, rel=1e-4)


def test_memory_that_does_not_suffice_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Learner, "_rl_backward", never)
    who = learner(micro_batch_tokens=2_000)
    with pytest.raises(TrainerError, match=r"passes of 1024 tokens do not fit .* set train.micro_batch_tokens"):
        who.step(random_batch(0))


@pytest.mark.parametrize("minibatches", [1, 3])
def test_what_has_begun_to_change_the_weights_is_not_done_again(
    minibatches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that runs out in the optimizer: it makes its moments when it first steps."""
    tried = []

    def full(*_: Any) -> None:
        tried.append(1)
        raise torch.OutOfMemoryError("CUDA out of memory")

    who = learner(micro_batch_tokens=10_000, minibatches=minibatches)
    monkeypatch.setattr(who.policy, "apply", full)
    with pytest.raises(TrainerError, match="passes of 10000 tokens do not fit"):
        who.step(random_batch(0))
    with pytest.raises(TrainerError, match="passes of 10000 tokens do not fit"):
        who.sft(random_batch(0).samples)
    assert len(tried) == 2
    assert who.version == 0


def test_a_batch_without_anything_to_train_on_moves_nothing() -> None:
    batch = random_batch(0)
    for sample in batch.samples:
        sample.loss_mask = np.zeros(len(sample.tokens), np.bool_)
    who = learner(entropy={"coef": 0.1, "floor": 1.0})
    assert who.step(batch).metrics["tokens"] == 0
    assert all(torch.equal(tensor, weights(learner())[name]) for name, tensor in weights(who).items())
    assert who.version == 1
