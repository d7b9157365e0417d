"""Which caches outlive an update: what is rebuilt is exact, what is kept goes on as under `keep`, whatever its group
does; and the choice is the formula's."""

import math
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from freerun.core import FinishReason
from freerun.engines.base import Sampling
from freerun.engines.config import OnUpdate
from freerun.engines.embedded.cache_choice import ENOUGH, MEASURE_SHARE, PROBES, CacheChoice, Error, Lengths, Pace
from freerun.engines.embedded.engine import EmbeddedEngine
from freerun.engines.embedded.recomputed import recomputed_logprobs
from freerun.engines.embedded.sequence import EndedAnswer, Request, Sequence
from tests.engines.ahead import AheadRunner
from tests.engines.test_embedded import SAMPLING, engine, recomputed, run
from tests.tiny import tiny_decoder

PROMPT = [2 + i % 40 for i in range(21)]
Chosen = dict[int, set[int]]
"""Update → which answers are rebuilt."""


@pytest.fixture(params=[False, True], ids=["plain", "ahead"])
def ahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param:
        monkeypatch.setattr("freerun.engines.embedded.engine.PlainRunner", AheadRunner)
    return bool(request.param)


def choosing(e: EmbeddedEngine, chosen: Chosen) -> None:
    """Have those answers rebuilt at each update, instead of what would be chosen."""

    def rebuilt(policy: OnUpdate, version: int) -> set[Sequence]:
        return {one for one in e._scheduler.running if one.index in chosen[version]}

    e._rebuilt = rebuilt  # type: ignore[method-assign]


def update(e: EmbeddedEngine) -> None:
    e.update_weights(e.version + 1, dict(tiny_decoder(e.version + 1).named_parameters()))


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10**6), block_tokens=st.sampled_from([1, 4, 16, 32]))
@pytest.mark.parametrize("is_ahead", [False, True])
def test_kept_and_rebuilt_answers_of_one_group_are_what_they_are_alone(
    is_ahead: bool, seed: int, block_tokens: int
) -> None:
    """Tokens and log-probabilities are those that the answer has where its whole group does as it does."""
    dice = random.Random(seed)
    chosen = {version: {i for i in range(4) if dice.random() < 0.5} for version in range(1, 5)}
    with pytest.MonkeyPatch.context() as patch:
        if is_ahead:
            patch.setattr("freerun.engines.embedded.engine.PlainRunner", AheadRunner)
        at: list[list[int]] = []
        mixed = all_answers(chosen, at, block_tokens)
        for i in range(4):
            alike = {version: set(range(4)) if i in rebuilt else set() for version, rebuilt in chosen.items()}
            alone = all_answers(alike, [[counts[i]] for counts in at], block_tokens, follow=i)
            assert alone[i].tokens == mixed[i].tokens
            assert alone[i].versions == mixed[i].versions
            difference = torch.tensor(alone[i].logprobs) - torch.tensor(mixed[i].logprobs)
            assert difference.abs().max() < 1e-4


def all_answers(
    chosen: Chosen, at: list[list[int]], block_tokens: int, follow: int | None = None
) -> dict[int, EndedAnswer]:
    """The answers of a group of four, which at each update does as `chosen`. Updates come every few steps, and `at`
    learns how many tokens each answer has then; or when the one to `follow` has as many as it says."""
    e = engine(tiny_decoder(0), on_update="auto", block_tokens=block_tokens, guesses=False)
    choosing(e, chosen)
    e.submit("a", PROMPT, replace(SAMPLING, max_new_tokens=60), 4)
    done: dict[int, EndedAnswer] = {}
    steps = 0
    while e.has_work:
        done |= {answer.index: answer for _, answer in e.step()}
        steps += 1
        running = {one.index: one for one in e._scheduler.running}
        if e.version == len(chosen) or not running:
            continue
        if follow is None:
            if steps % 5 == 0:
                update(e)
                at.append([len(running[i].tokens) for i in range(4)])
        elif running[follow].sampled == at[e.version][0]:
            update(e)
    assert e.version == len(chosen)
    assert e.free_blocks == e._blocks.count
    return done


def test_what_is_rebuilt_is_exact(ahead: bool) -> None:
    """Every token that an answer samples behind a rebuild, up to the next update that it keeps its cache at, has the
    log-probability of a packed pass with the weights of its version; its siblings do otherwise."""
    chosen = {1: {0, 1}, 2: {1, 2}, 3: {3}}
    e = engine(tiny_decoder(0), on_update="auto", block_tokens=4)
    choosing(e, chosen)
    e.submit("a", PROMPT, replace(SAMPLING, max_new_tokens=80), 4)
    done: dict[int, EndedAnswer] = {}
    for step in range(1, 200):
        done |= {answer.index: answer for _, answer in e.step()}
        if step % 6 == 0 and e.version < 3:
            update(e)
    apart = []
    for index, answer in done.items():
        for version in (1, 2, 3):
            expected = recomputed(tiny_decoder(version), PROMPT, answer.tokens)
            at = [i for i, stamped in enumerate(answer.versions) if stamped == version]
            assert at, "every version sampled some of it"
            difference = (torch.tensor(answer.logprobs)[at] - expected[at]).abs()
            if index in chosen[version]:
                assert difference.max() < 1e-4
            else:
                apart.append(difference.mean().item())
    assert min(apart) > 1e-3, "what was kept is not what a recompute gives"


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6))
def test_nothing_leaks_whatever_is_chosen(seed: int) -> None:
    """Random groups, cancellations, updates and choices, a small cache: every answer ends once, every block returns."""
    dice = random.Random(seed)
    e = engine(tiny_decoder(0), cache_tokens=256, max_running=dice.randrange(1, 12), step_tokens=dice.randrange(1, 64),
               block_tokens=dice.choice([1, 4, 16]), on_update="auto")  # fmt: skip
    chosen = lambda policy, version: {one for one in e._scheduler.running if dice.random() < 0.5}  # noqa: E731
    e._rebuilt = chosen  # type: ignore[method-assign]
    owed: dict[str, int] = {}
    for round in range(60):
        if round < 30 and dice.random() < 0.5:
            owed[str(round)] = dice.randrange(1, 6)
            prompt = [dice.randrange(2, 48) for _ in range(dice.randrange(1, 70))]
            e.submit(str(round), prompt, Sampling(max_new_tokens=dice.randrange(1, 60), seed=round), owed[str(round)])
        if owed and dice.random() < 0.1:
            id = dice.choice(sorted(owed))
            e.cancel(id)
            del owed[id]
        if dice.random() < 0.2:
            update(e)
        for id, _ in e.step():
            owed[id] -= 1
    for id, _ in run(e):
        owed[id] -= 1
    assert not any(owed.values())
    assert e.free_blocks == e._blocks.count
    assert not e._requests


def test_what_older_weights_computed_is_not_remembered_beside_siblings_that_are_rebuilt() -> None:
    """The kept answer's cache is of two versions: its next turn must not begin with it, though its prompt was read
    again for a sibling."""
    e = engine(tiny_decoder(0), on_update="auto", block_tokens=4)
    choosing(e, {1: {1}})
    e.submit("a", PROMPT, SAMPLING, 2)
    for _ in range(12):
        e.step()
    update(e)
    kept = run(e)["a", 0]
    e.submit("b", [*PROMPT, *kept.tokens], SAMPLING, 1)
    answer = run(e)["b", 0]
    assert e.reused_tokens == 20, "the prompt's full blocks, which the sibling read again"
    expected = recomputed(tiny_decoder(1), [*PROMPT, *kept.tokens], answer.tokens)
    torch.testing.assert_close(torch.tensor(answer.logprobs), expected, atol=1e-4, rtol=1e-4)


def test_the_age_of_a_cache_is_the_mean_over_its_tokens() -> None:
    e = engine(tiny_decoder(0), on_update="keep", block_tokens=4, guesses=False)
    e.submit("a", PROMPT, SAMPLING, 2)
    for _ in range(11):
        e.step()
    one = next(iter(e._scheduler.running))
    cached = one.computed
    update(e)
    assert one.age == pytest.approx(1.0)
    e.step()
    e.step()
    assert one.age == pytest.approx(cached / (cached + 2))
    update(e)
    assert one.age == pytest.approx((2 * cached + 2) / (cached + 2))
    e.update_weights(3, dict(tiny_decoder(3).named_parameters()), "recompute")
    assert one.age == 0


def test_the_error_is_measured_against_a_recompute(ahead: bool) -> None:
    """With weights that moved, kept answers are measured; the figure is the mean distance of what they sampled."""
    e = engine(tiny_decoder(0), on_update="auto", max_running=8)
    e.submit("a", PROMPT, replace(SAMPLING, max_new_tokens=200), 8)
    for _ in range(60):
        e.step()
        if e.tokens > 8 * 12 and e.version == 0:
            update(e)
    choice = e.cache_choice
    assert (choice.kept, choice.rebuilt) == (PROBES, 8 - PROBES), "nothing is known at the first update"
    assert choice.error.tokens == ENOUGH
    (one, *_) = (one for one in e._scheduler.running if one.age)
    given = recomputed(e._decoder, PROMPT, one.tokens)[-ENOUGH:]
    torch.testing.assert_close(torch.tensor(recomputed_logprobs(e._decoder, one, ENOUGH)), given, atol=1e-4, rtol=1e-4)
    assert 0.01 < choice.error.mean < 5
    assert choice.measuring_s > 0


class Cheap(Pace):
    """Reading a token costs a hundredth of one, however busy this machine is."""

    read_cost = 0.01


def test_where_weights_hardly_move_caches_are_kept_and_where_they_leap_they_are_rebuilt() -> None:
    def kept_share(scale: float) -> float:
        e = engine(tiny_decoder(0), on_update="auto", max_running=16)
        start = {name: tensor.clone() for name, tensor in e._decoder.named_parameters()}
        other = dict(tiny_decoder(9).named_parameters())
        e.submit("a", PROMPT, replace(SAMPLING, max_new_tokens=400), 16)
        e.cache_choice = CacheChoice(pace=Cheap(), began_s=-1e9)  # as if there had been ages to measure in
        for step in range(1, 160):
            e.step()
            if step % 20 == 0:
                moved = scale * (e.version + 1)
                e.update_weights(e.version + 1, {k: t + moved * (other[k] - t) for k, t in start.items()})
            if step == 80:
                kept, rebuilt = e.cache_choice.kept, e.cache_choice.rebuilt
        kept, rebuilt = e.cache_choice.kept - kept, e.cache_choice.rebuilt - rebuilt
        return kept / (kept + rebuilt)

    assert kept_share(1e-6) == 1.0
    assert kept_share(0.1) < 0.5


# The formula.


def answer(prompt: int, sampled: int, most: int = 1_000, behind: int = 0) -> Sequence:
    request = Request("r", [0] * prompt, Sampling(max_new_tokens=most), 1)
    request.computed = prompt - 1
    one = Sequence(request, 0, tokens=[0] * sampled, logprobs=[0.0] * sampled, versions=[0] * sampled)
    one.computed, one.behind = prompt + sampled - 1, behind
    return one


def choice_of(square: float, read_cost: float) -> CacheChoice:
    """An error of so much for each version of age, and a price for reading."""
    choice = CacheChoice()
    choice.error.add([math.sqrt(square)] * 100, age=1.0)
    choice.pace.tick(0.0, 0, 0, 0)
    choice.pace.tick(1.0, 0, 10, 1_000)
    choice.pace.tick(2.0, 1_000, 10, 1_000)
    choice.pace._rt *= read_cost
    return choice


def test_a_cache_is_rebuilt_where_that_wins_more_effective_tokens_than_it_costs() -> None:
    """50 tokens of prompt and 100 of its own to read, each worth 1 token; 100 to come: by the formula."""
    one = answer(prompt=51, sampled=100, most=200)
    for square in (0.01, 0.5, 5.0):
        won = 100 * (math.exp(min(square, math.log(5) ** 2)) - 1)
        assert choice_of(square, 1.0).gain(one, 1) == pytest.approx(won - 150, rel=0.02)
    cheap = choice_of(0.5, 0.1)
    assert cheap.gain(one, 1) == pytest.approx(100 * (math.exp(0.5) - 1) - 15, rel=0.02)
    assert cheap.gain(one, 2) > cheap.gain(one, 1), "an older cache errs more"
    assert cheap.gain(one, 1, sharers=10) - cheap.gain(one, 1) == pytest.approx(45 * 0.1, rel=0.02)
    assert cheap.gain(answer(51, 100, most=110), 1) < 0, "too little is left"


def test_what_is_not_known_yet_is_rebuilt_but_for_probes() -> None:
    choice = CacheChoice()
    answers = [answer(10, 20 + i, most=40 + i) for i in range(6)]
    assert len(choice.rebuild(answers, 1)) == 6 - PROBES
    assert choice.gain(answers[0], 1) == math.inf
    assert (choice.kept, choice.rebuilt) == (PROBES, 6 - PROBES)
    assert len(choice.rebuild(answers[:PROBES], 1)) == PROBES, "of so few none is spared for that"


def test_once_caches_are_known_to_err_one_is_kept_when_that_costs_little_or_long_after() -> None:
    harmless, harmful = choice_of(square=0.02, read_cost=1e-6), choice_of(square=2.5, read_cost=1e-6)
    answers = [answer(10, 20) for _ in range(10)]
    assert len(harmless.rebuild(answers, 1)) == 9
    rebuilt = [len(harmful.rebuild(answers, 1)) for _ in range(60)]
    assert rebuilt[0] == 10
    first = rebuilt.index(9)
    assert 20 < first < 50, "while nothing is measured, what is known is believed less and less"


def test_measuring_takes_a_small_share_of_the_time() -> None:
    choice = CacheChoice()
    one, others = answer(10, 30, behind=39), [answer(10, 30), answer(10, 30)]
    one.request.behind = 9
    choice.rebuild([one, *others], 1)
    assert choice.to_measure(version=1, most_tokens=100, now_s=10.0) is None, "it has sampled nothing since"
    one.versions[-ENOUGH:] = [1] * ENOUGH
    assert choice.to_measure(version=1, most_tokens=39, now_s=10.0) is None, "it is too long for one step"
    assert choice.to_measure(version=2, most_tokens=100, now_s=10.0) is None, "nothing is of that version"
    assert choice.to_measure(version=1, most_tokens=100, now_s=10.0) is one
    assert choice.to_measure(version=1, most_tokens=100, now_s=1e6) is None, "once an update"
    choice.measured(one, [0.1] * ENOUGH, took_s=1.0)
    assert choice.error.mean == pytest.approx(0.1)
    choice.pace = choice_of(1.0, 1e3).pace
    assert not choice.rebuild([one, *others], 1), "reading is dear"
    assert choice.to_measure(1, 100, now_s=11.0) is None, "that would be too much of the time"
    assert choice.to_measure(1, 100, now_s=10.0 + 1.1 / MEASURE_SHARE) is one
    assert not choice.rebuild([one, *others], 1)
    one.finish = FinishReason.STOP
    assert choice.to_measure(1, 100, now_s=1e9) is None, "it is over"


def test_one_token_far_astray_counts_as_far_as_the_trainer_lets_it() -> None:
    error = Error()
    error.add([10.0, 0.0], age=1.0)
    assert error.lost(1.0) == pytest.approx(math.exp(math.log(5) ** 2 / 2) - 1)


def test_the_error_follows_what_is_measured_now() -> None:
    error = Error()
    error.add([1.0] * 10, age=1.0)
    for _ in range(60):
        error.add([0.1] * 10, age=2.0)
    assert error.lost(2.0) == pytest.approx(math.exp(0.01) - 1, rel=0.1)
    assert error.mean == pytest.approx(0.1, rel=0.05)
    assert error.tokens == 610


def test_reading_and_sampling_are_told_apart() -> None:
    """2 ms a step of 10 tokens, 0.1 ms a token read: reading one costs what half a token does."""
    pace, dice = Pace(), random.Random(0)
    now_s, read, steps = 0.0, 0, 0
    assert pace.read_cost is None
    for _ in range(50):
        pace.tick(now_s, read, steps, 10 * steps)
        new_read, new_steps = dice.choice([0, 0, 0, 300]), dice.randrange(1, 4)
        now_s, read, steps = now_s + 1e-4 * new_read + 2e-3 * new_steps, read + new_read, steps + new_steps
    assert pace.read_cost == pytest.approx(0.5, rel=1e-3)
    pace.rest()
    pace.tick(now_s + 100, read, steps, 10 * steps)
    assert pace.read_cost == pytest.approx(0.5, rel=1e-3), "nothing was done in that time"


def test_how_much_is_left_is_what_others_that_long_had() -> None:
    lengths = Lengths()
    assert lengths.left(100, 1_000) == 100, "as long again, while nothing is known"
    assert lengths.left(100, 130) == 30
    for tokens in (10, 10, 20, 40, 60, 80, 100):
        lengths.add(tokens)
    assert lengths.left(30, 1_000) == (40 + 60 + 80 + 100) / 4 - 30
    assert lengths.left(90, 1_000) == 90, "one of seven says little"
    assert lengths.left(0, 12) == 12


def test_ended_answers_say_how_long_answers_are() -> None:
    e = engine(tiny_decoder(0), on_update="auto")
    e.submit("a", PROMPT, replace(SAMPLING, max_new_tokens=30), 5)
    assert all(answer.finish is FinishReason.LENGTH for answer in run(e).values())
    assert e.cache_choice.lengths.left(10, 1_000) == 20
