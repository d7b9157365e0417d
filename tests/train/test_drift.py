"""Drift by name: each cause alone, by a real engine and a real learner; mixtures; and the pure function."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from freerun.core import Batch, Group
from freerun.core.reports import StepResult
from freerun.engines.base import Sampling
from freerun.engines.embedded.engine import EmbeddedEngine
from freerun.engines.embedded.sampler import truncated
from freerun.train import before
from freerun.train.config import TrainConfig
from freerun.train.cutoffs import cut_off
from freerun.train.drift import PARTS, Compared, Reference, Seen, take_apart
from freerun.train.health import Health
from freerun.train.how_sampled import HowSampled
from freerun.train.learner import Learner
from tests.tiny import tiny_decoder
from tests.train.sampling import Weights, an_engine, batch_of, sampled
from tests.train.test_members import batches


def a_learner(how: HowSampled | None = None, temperature: float = 1.0, **config: Any) -> Learner:
    settings = TrainConfig.model_validate({"lr": 1e-3, "weight_decay": 0.0, **config})
    return Learner(tiny_decoder(4), settings, temperature, how=how or HowSampled())


def engine(dtype: torch.dtype = torch.float32, **config: Any) -> EmbeddedEngine:
    return an_engine(tiny_decoder(4, dtype=dtype), **config)


def learned(learner: Learner, versions: int, dtype: torch.dtype = torch.float32) -> list[Weights]:
    """So many steps on fresh answers; the weights after each."""
    fresh, made = engine(dtype), list[Weights]()
    for version in range(versions):
        if made:
            fresh.update_weights(version, made[-1])
        learner.step(batch_of(version, sampled(fresh, seed=100 + version)))
        made.append({name: tensor.clone() for name, tensor in learner.policy.tensors().items()})
    return made


def parts_of(metrics: Mapping[str, float]) -> dict[str, float]:
    """Each as a share. They add up."""
    parts = {part: metrics[f"drift_{part}"] for part in PARTS}
    assert min(parts.values()) >= 0
    assert sum(parts.values()) == pytest.approx(metrics["drift"], rel=1e-4, abs=1e-9)
    return {part: value / metrics["drift"] for part, value in parts.items()}


def share_of(part: str, result: StepResult) -> float:
    return parts_of(result.metrics)[part]


def test_rounding_is_numerics() -> None:
    result = a_learner().step(batch_of(0, sampled(engine(torch.bfloat16))))
    assert share_of("numerics", result) > 0.99
    assert 1e-5 < result.metrics["drift"] < 1e-3
    assert result.metrics["mismatched_tokens"] == 0
    assert result.warnings == []
    same = a_learner().step(batch_of(0, sampled(engine())))
    assert same.metrics["drift"] < 1e-10
    assert same.metrics["mismatched_tokens"] == 0


@pytest.mark.parametrize("across_a_swap", [False, True])
def test_weights_that_moved_on_are_staleness(across_a_swap: bool) -> None:
    """Whether answers are all by one version, or go on with the next one and caches made by that."""
    learner = a_learner(lr=3e-3)
    made = learned(learner, 2)
    old = sampled(engine(), seed=5, swaps=[(8, made[0])] if across_a_swap else [])
    result = learner.step(batch_of(2, old))
    assert result.metrics["drift"] > 0.005
    assert share_of("staleness", result) > 0.95


def test_caches_of_older_weights_are_cache() -> None:
    """The weights came in the middle of the answers, and are the trainer's; only what they sampled has a loss."""
    learner = a_learner(HowSampled(keeps_cache=True), lr=3e-3)
    crossed = sampled(engine(on_update="keep"), seed=7, swaps=[(8, learned(learner, 1)[0])])
    for sample in (sample for group in crossed for sample in group.samples):
        sample.mask_older_than(1)
    result = learner.step(batch_of(1, crossed))
    assert result.metrics["drift"] > 1e-3
    assert share_of("cache", result) > 0.95


@pytest.mark.parametrize("limits", [{"top_k": 8}, {"top_p": 0.8}, {"top_k": 20, "top_p": 0.5}], ids=str)
def test_what_is_cut_off_is_cutoffs(limits: dict[str, Any]) -> None:
    learner = a_learner(HowSampled(**limits), temperature=0.8, micro_batch_tokens=300)
    groups = sampled(engine(), temperature=0.8, **limits)
    result = learner.step(batch_of(0, groups))
    assert share_of("cutoffs", result) > 0.99
    assert result.metrics["drift_cutoffs"] == pytest.approx(exact_cut_off(groups, 0.8, limits), rel=0.1)
    assert "100% of it by cut-offs: raise rollout.top_p" in result.warnings[0]


def exact_cut_off(groups: Sequence[Group], temperature: float, limits: dict[str, Any]) -> float:
    """At every token, by the engine's own function."""
    from freerun.models.attention import PackedAttention

    decoder, found = tiny_decoder(4), []
    for sample in (sample for group in groups for sample in group.samples):
        tokens = torch.tensor(sample.tokens)
        with torch.no_grad():
            hidden = decoder(tokens, torch.arange(len(tokens)), PackedAttention([len(tokens)]))
            logits = decoder.logits(hidden)[torch.from_numpy(np.flatnonzero(sample.loss_mask) - 1)] / temperature
        left = truncated(logits, [Sampling(max_new_tokens=1, **limits)] * len(logits))
        found.append(logits.logsumexp(-1) - left.logsumexp(-1))
    return float(torch.cat(found).mean())


def replaced(groups: list[Group], every: int) -> list[Group]:
    """In one answer of so many, one token is another than was sampled."""
    dice = random.Random(3)
    for number, sample in enumerate(sample for group in groups for sample in group.samples):
        if number % every == 0:
            place = dice.choice(np.flatnonzero(sample.loss_mask)[8:-2])
            sample.tokens[place] = 2 + (sample.tokens[place] - 2 + dice.randrange(1, 46)) % 46
    return groups


def shifted(groups: list[Group], every: int) -> list[Group]:
    """One answer of so many has its tokens one place further on than they were sampled."""
    for sample in [sample for group in groups for sample in group.samples][::every]:
        start = int(sample.loss_mask.argmax())
        sample.tokens[start:] = np.roll(sample.tokens[start:], 1)
    return groups


def other_contexts(groups: list[Group], every: int) -> list[Group]:
    """One answer of so many is after another prompt than it was sampled for."""
    for sample in [sample for group in groups for sample in group.samples][::every]:
        start = int(sample.loss_mask.argmax())
        sample.tokens[:start] = (sample.tokens[:start] + 7) % 40 + 2
    return groups


@pytest.mark.parametrize("change", [replaced, shifted, other_contexts])
@pytest.mark.parametrize(("dtype", "every"), [(torch.float32, 1), (torch.float32, 6), (torch.bfloat16, 6)])
def test_tokens_that_were_not_sampled_there_do_not_match(change: Any, every: int, dtype: torch.dtype) -> None:
    result = a_learner().step(batch_of(0, change(sampled(engine(dtype)), every)))
    assert result.metrics["mismatched_tokens"] > 0
    assert share_of("tokens", result) > 0.9
    assert any("nothing encodes answers again" in warning for warning in result.warnings)


def test_tokens_that_do_not_match_are_known_when_all_are_old() -> None:
    """Whoever changes them does so from the first step on, when tokens are fresh."""
    learner, source = a_learner(lr=1e-4), engine()
    fresh, old = (replaced(sampled(source, seed=seed), 4) for seed in (1, 1))
    learner.step(batch_of(0, fresh))
    assert share_of("tokens", learner.step(batch_of(1, old))) > 0.9


def test_numerics_and_staleness_together_are_what_each_is_alone() -> None:
    """Half of the batch is fresh. Then none is, and numerics are known from before."""
    low, source = a_learner(lr=3e-4), engine(torch.bfloat16)
    old, older = sampled(source, seed=5), sampled(source, seed=8)
    rounding = a_learner().step(batch_of(0, sampled(source, seed=5))).metrics["drift"]
    source.update_weights(1, learned(low, 1, torch.bfloat16)[0])
    stale = moved(low, old)
    both = low.step(batch_of(1, old, sampled(source, seed=6))).metrics
    assert 0.2 < parts_of(both)["numerics"] < 0.8
    assert both["drift_numerics"] == pytest.approx(rounding, rel=0.2)
    assert both["drift_staleness"] == pytest.approx(stale / 2, rel=0.2)
    stale = moved(low, older)
    both = low.step(batch_of(2, older)).metrics
    assert both["drift_numerics"] == pytest.approx(rounding, rel=0.2)
    assert both["drift_staleness"] == pytest.approx(stale, rel=0.2)


def moved(learner: Learner, groups: Sequence[Group]) -> float:
    """How far the learner's weights are from those it began with, at these tokens: no engine has a part in it."""
    samples = [sample for group in groups for sample in group.samples]
    now, then = (np.concatenate(one.score(samples)) for one in (learner, a_learner()))
    return float((0.5 * (now - then) ** 2).mean())


def test_caches_and_staleness_together_are_what_each_is_alone() -> None:
    """Old tokens before the swap, tokens of the trainer's own version behind it. What kept caches add is what drift
    would be less by with `recompute`."""
    drift = {}
    for on_update in ("keep", "recompute"):
        learner = a_learner(HowSampled(keeps_cache=on_update == "keep"), lr=3e-3)
        made = learned(learner, 1)
        crossed = sampled(engine(on_update=on_update), seed=7, groups=24, swaps=[(8, made[0])])
        drift[on_update] = learner.step(batch_of(1, crossed)).metrics
    parts_of(drift["keep"])
    added = drift["keep"]["drift"] - drift["recompute"]["drift"]
    assert added > 0.1 * drift["keep"]["drift"]
    assert drift["keep"]["drift_cache"] == pytest.approx(added, rel=0.3)
    assert drift["recompute"]["drift_cache"] == 0


@pytest.mark.parametrize("how", [HowSampled(), HowSampled(top_k=9, top_p=0.9, keeps_cache=True)])
@pytest.mark.parametrize("config", [{}, {"minibatches": 3}, {"minibatches": 2, "objective": "cispo"}], ids=str)
@pytest.mark.parametrize("branches", [0, 1])
def test_parts_add_up_for_branches_minibatches_and_all_ages(
    branches: int, config: dict[str, Any], how: HowSampled
) -> None:
    """The whole is summed on the device, the parts come from tokens that were gathered and put in order."""
    learner = a_learner(how, micro_batch_tokens=60, **config)
    for version in range(3):
        batch = batches(version)[branches]
        batch.version = version
        parts_of(learner.step(batch).metrics)


@pytest.mark.parametrize("config", [{}, {"minibatches": 3}, {"minibatches": 3, "proximal": "behavior"}], ids=str)
def test_each_sampled_token_is_told_its_log_probability_before_the_step(config: dict[str, Any]) -> None:
    """In the order of the batch; NaN for what is not trained, or no longer by the weights before the step."""
    batch = Batch(0, [*batches(1)[1].groups, *sampled(engine(), groups=3)])
    truncated_sample = batch.samples[-1]
    batch.samples[-2].loss_mask = batch.samples[-2].loss_mask & (np.arange(len(batch.samples[-2].tokens)) % 3 > 0)
    learner = a_learner(micro_batch_tokens=60, skip_truncated=True, **config)
    expected = learner.score(batch.samples)
    told = learner.step(batch).before_logprobs
    assert told is not None
    known = 0
    for sample, values, scores in zip(batch.samples, told, expected, strict=True):
        versions = sample.versions.by_token()
        assert values.dtype == np.float32
        assert len(values) == sample.num_sampled
        full = np.full(len(sample.tokens), np.nan)
        if not sample.truncated:
            full[np.flatnonzero(sample.loss_mask)] = scores
        found = ~np.isnan(values)
        np.testing.assert_allclose(values[found], full[versions >= 0][found], atol=1e-5)
        known += int(found.sum())
        if config.get("proximal") != "behavior":
            np.testing.assert_array_equal(found, ~np.isnan(full[versions >= 0]))
    assert truncated_sample.truncated
    total = sum(int(s.loss_mask.sum()) for s in batch.samples if not s.truncated)
    assert known == total or (config.get("proximal") == "behavior" and 0 < known < total)


def test_only_so_many_tokens_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(before, "MOST", 100)
    result = a_learner().step(batch_of(0, sampled(engine(torch.bfloat16))))
    assert result.before_logprobs is not None
    assert [not np.isnan(values).any() for values in result.before_logprobs] == [True] * 4 + [False] * 44
    assert share_of("numerics", result) > 0.99


def test_nothing_to_train_on_is_no_drift() -> None:
    assert "drift" not in a_learner().step(Batch(0, [])).metrics


def test_the_note_names_the_largest_part_and_its_remedy() -> None:
    health = Health()
    metrics = {"drift": 0.08, "drift_staleness": 0.059, "drift_numerics": 0.021, "effective_samples": 0.2}
    stale, numerics = health.warnings(metrics)
    assert stale == "drift is 0.08 nats, 74% of it by staleness: lower control.max_staleness or train.lr"
    assert "train.drift_numerics is 0.021" in numerics
    assert health.warnings(metrics) == [], "once"
    fine = {"drift": 0.01, "drift_staleness": 0.01, "drift_numerics": 0.0, "effective_samples": 1.0}
    assert [note for _ in range(8) for note in health.warnings(fine)] == []
    far = {"drift": 0.2, "drift_staleness": 0.2, "effective_samples": 0.1}
    assert health.warnings(far) == [], "one step is no trend: tokens at forks move far"
    (again,) = health.warnings({"drift": 0.5, "drift_staleness": 0.5})
    assert "% of it by staleness: lower control.max_staleness" in again
    (low,) = Health().warnings({"drift": 0.09, "drift_numerics": 0.09})
    assert "by numerics: engine and trainer disagree at equal weights: compare engine.dtype" in low


def test_what_has_never_been_seen_fresh_is_unexplained() -> None:
    learner = a_learner()
    learner.version = 1
    result = learner.step(batch_of(1, sampled(engine(torch.bfloat16))))
    assert share_of("unexplained", result) > 0.99


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 1e-6, 0.05, 0.5, 3.0, 40.0]),
    st.booleans(),
    st.integers(0, 300),
    st.sampled_from([0, 1, 4]),
)
@settings(max_examples=400, deadline=None)
def test_parts_are_never_negative_and_add_up(seed: int, scale: float, known: bool, count: int, oldest: int) -> None:
    dice = np.random.default_rng(seed)
    off = dice.standard_t(2, count) * scale - (dice.random(count) < 0.05) * 10
    tokens = Compared(
        off, dice.integers(0, 20 if oldest == 4 else oldest + 1, count), dice.random(count) < 0.3,
        np.sort(dice.integers(0, 9, count)),
    )  # fmt: skip
    seen = [Seen(float(m), float(n)) for m, n in zip(dice.random(4), dice.integers(0, 1000, 4), strict=True)]
    reference = Reference(*seen) if known else Reference()
    for _ in range(3):
        found = take_apart(tokens, reference)
        assert set(found.parts) == set(PARTS)
        assert min(found.parts.values()) >= 0
        whole = float((0.5 * off**2).mean()) if count else 0.0
        assert sum(found.parts.values()) == pytest.approx(whole, rel=1e-9, abs=1e-12)
        assert found.parts["cutoffs"] == 0
        reference = Reference.of(found.reference.plain)
        assert reference == found.reference


@given(st.integers(0, 10_000), st.integers(0, 60), st.sampled_from([0.1, 0.5, 0.9, 0.999, 1.0]))
@settings(max_examples=60, deadline=None)
def test_what_is_cut_off_is_as_the_engine_does_it(seed: int, top_k: int, top_p: float) -> None:
    logits = torch.randn(5, 48, generator=torch.Generator().manual_seed(seed)) * 3
    left = truncated(logits / 0.7, [Sampling(max_new_tokens=1, top_k=top_k, top_p=top_p)] * 5)
    expected = (logits / 0.7).logsumexp(-1) - left.logsumexp(-1)
    torch.testing.assert_close(cut_off(logits, 0.7, HowSampled(top_k, top_p)), expected, atol=1e-5, rtol=1e-5)
