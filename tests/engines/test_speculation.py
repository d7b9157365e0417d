"""Guesses: whatever they are, what is sampled is what would have been sampled without them."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from freerun.core import FinishReason
from freerun.engines.base import Sampling
from freerun.engines.embedded import engine as engine_module
from freerun.engines.embedded.drafts import Drafts, Source
from freerun.engines.embedded.engine import EmbeddedEngine
from freerun.engines.embedded.sequence import EndedAnswer, Request, Sequence
from freerun.engines.embedded.speculation import Guesses, Speculation, StepCost
from freerun.engines.extras import Extras
from tests.engines.test_embedded import engine, recomputed, run
from tests.tiny import tiny_decoder

SAMPLING = Sampling(max_new_tokens=40, seed=5, ignore_eos=True)
Guesser = Callable[[Sequence], list[int]]


class Scripted(Speculation):
    """Guesses what a test says, in every step."""

    guesser: Guesser = staticmethod(lambda sequence: [])

    def plan(self, sequences: list[Sequence]) -> Guesses:  # type: ignore[override]
        left = {one: one.request.sampling.max_new_tokens - one.sampled - 1 for one in sequences}
        return {one: self.guesser(one)[: left[one]] for one in sequences}


@contextmanager
def guessing(guesser: Guesser) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "Speculation", type("Guessing", (Scripted,), {"guesser": staticmethod(guesser)}))
        yield


def answers(e: EmbeddedEngine, sampling: Sampling = SAMPLING) -> tuple[dict[tuple[str, int], EndedAnswer], int]:
    """Of some requests; and how many steps they took."""
    for i in range(3):
        e.submit(f"r{i}", [3, 4, 5 + i] * (4 * i + 1), replace(sampling, seed=i), 3)
    done: dict[tuple[str, int], EndedAnswer] = {}
    steps = 0
    while e.has_work:
        done |= {(id, answer.index): answer for id, answer in e.step()}
        steps += 1
    assert e.free_blocks == e._blocks.count
    return done, steps


def guessers(expected: dict[tuple[str, int], EndedAnswer]) -> dict[str, Guesser]:
    dice = random.Random(1)

    def right(sequence: Sequence) -> list[int]:
        begun = len(sequence.tokens)
        return expected[sequence.request.id, sequence.index].tokens[begun : begun + 5]

    return {
        "always right": right,
        "never right": lambda sequence: [(token + 1) % 48 for token in right(sequence)],
        "right at first": lambda sequence: [*right(sequence)[:2], 0, 0, 0],
        "anything": lambda sequence: [
            token if dice.random() < 0.6 else dice.randrange(48) for token in right(sequence)[: dice.randrange(6)]
        ],
    }


@pytest.mark.parametrize("kind", ["always right", "never right", "right at first", "anything"])
@pytest.mark.parametrize(
    "how", [{}, {"temperature": 0.0}, {"temperature": 0.6, "top_p": 0.9}, {"stop_token_ids": (7, 9)}]
)
def test_answers_are_the_same_whatever_is_guessed(kind: str, how: dict[str, object]) -> None:
    sampling = replace(SAMPLING, **how)  # type: ignore[arg-type]
    expected, plain_steps = answers(engine(tiny_decoder(2), guesses=False), sampling)
    with guessing(guessers(expected)[kind]):
        got, steps = answers(engine(tiny_decoder(2)), sampling)
    assert got.keys() == expected.keys()
    for key, answer in got.items():
        assert (answer.tokens, answer.finish) == (expected[key].tokens, expected[key].finish)
        assert answer.logprobs == pytest.approx(expected[key].logprobs, abs=1e-4)
        assert len(answer.versions) == len(answer.tokens)
    if kind == "always right":
        assert steps < plain_steps / 2
    if kind == "never right":
        assert steps == plain_steps


def test_the_distribution_is_the_models_own() -> None:
    """At temperature 1: each first token, and each second one behind the commonest first, as often as the model says,
    where that is what is always guessed."""
    decoder, answers_each, requests = tiny_decoder(3, std=0.15), 64, 60
    prompt = [5, 6, 7]
    hidden = decoder(torch.tensor(prompt), torch.arange(3), _packed(3))
    first_V = decoder.logits(hidden).float().softmax(-1)[-1].detach()
    commonest = int(first_V.argmax())
    hidden = decoder(torch.tensor([*prompt, commonest]), torch.arange(4), _packed(4))
    second_V = decoder.logits(hidden).float().softmax(-1)[-1].detach()
    guess = [commonest, int(second_V.argmax()), 1]
    found: list[list[int]] = []
    with guessing(lambda sequence: guess[len(sequence.tokens) :]):
        e = engine(decoder, max_running=answers_each)
        for seed in range(requests):
            e.submit("a", prompt, Sampling(max_new_tokens=4, seed=seed, ignore_eos=True), answers_each)
            found += [answer.tokens for answer in run(e).values()]
    _close([tokens[0] for tokens in found], first_V)
    _close([tokens[1] for tokens in found if tokens[0] == commonest], second_V)


def _packed(length: int) -> Callable[..., torch.Tensor]:
    from freerun.models.attention import PackedAttention

    return PackedAttention([length])


def _close(tokens: list[int], expected_V: torch.Tensor) -> None:
    """By a chi-square test, which one in ten thousand correct samplers would fail."""
    counts = torch.bincount(torch.tensor(tokens), minlength=len(expected_V)).double()
    expected = expected_V.double() * len(tokens)
    often = expected >= 5
    seen, due = [counts[often], counts[~often].sum()[None]], [expected[often], expected[~often].sum()[None]]
    seen_C, due_C = torch.cat(seen), torch.cat(due).clamp_min(1e-9)
    statistic = float(((seen_C - due_C) ** 2 / due_C).sum())
    freedom = len(due_C) - 1
    limit = freedom * (1 - 2 / (9 * freedom) + 3.72 * (2 / (9 * freedom)) ** 0.5) ** 3  # Wilson and Hilferty
    assert statistic < limit, f"{statistic:.0f} of {freedom}, at most {limit:.0f}"


@pytest.mark.parametrize("on_update", ["recompute", "keep"])
def test_new_weights_between_guesses(on_update: str) -> None:
    """Each token is stamped with the version that sampled it; guesses are old texts, and no version's tokens."""
    versions = [tiny_decoder(seed) for seed in range(5)]
    dice = random.Random(3)
    with guessing(lambda sequence: [dice.randrange(48) for _ in range(2)] + sequence.tokens[-1:]):
        e = engine(tiny_decoder(0), on_update=on_update)
        e.submit("a", [5, 6, 7], replace(SAMPLING, max_new_tokens=60, temperature=0.4), 4)
        done: dict[tuple[str, int], EndedAnswer] = {}
        steps = 0
        while e.has_work:
            done |= {(id, answer.index): answer for id, answer in e.step()}
            steps += 1
            if steps % 11 == 0 and e.version < 4:
                e.update_weights(e.version + 1, dict(versions[e.version + 1].named_parameters()))
    assert e.version == 4
    for answer in done.values():
        assert answer.versions == sorted(answer.versions)
        assert len(set(answer.versions)) == 5
        for version in set(answer.versions) if on_update == "recompute" else {0}:
            at = [i for i, stamped in enumerate(answer.versions) if stamped == version]
            expected = recomputed(versions[version], [5, 6, 7], answer.tokens, 0.4)[at]
            torch.testing.assert_close(torch.tensor([answer.logprobs[i] for i in at]), expected, atol=1e-4, rtol=1e-4)


def test_guesses_take_no_cache_from_others() -> None:
    """A cache that holds the answers and not one block more."""
    with guessing(lambda sequence: [1] * 16):
        e = engine(tiny_decoder(2), cache_tokens=112, block_tokens=16, max_running=3)
        e.submit("a", [3, 4, 5], replace(SAMPLING, max_new_tokens=29), 3)
        done = run(e)
    assert len(done) == 3
    assert e.preemptions == 0
    assert all(answer.finish is FinishReason.LENGTH for answer in done.values())


def test_a_second_pass_over_the_same_prompts_takes_fewer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedily, where nothing has changed, all of it was said before. Steps are said to take what they do on a GPU."""
    took = Speculation.took

    def as_on_a_gpu(self: Speculation, rows: int, seconds: float) -> None:
        took(self, rows, 0.002 + 1e-6 * (rows + sum(map(len, self._made.values()))))

    monkeypatch.setattr(Speculation, "took", as_on_a_gpu)
    e = engine(tiny_decoder(2))
    sampling = replace(SAMPLING, temperature=0.0, max_new_tokens=100)

    def steps(id: str) -> int:
        e.submit(id, [9, 8, 7, 6], sampling, 2)
        count = 0
        while e.has_work:
            e.step()
            count += 1
        return count

    steps("first")
    guessed, right = e.guessed[Source.EARLIER], e.right[Source.EARLIER]
    assert steps("second") < 40
    assert e.right[Source.EARLIER] - right > 0.9 * (e.guessed[Source.EARLIER] - guessed) > 0


def test_requests_with_extras_are_not_guessed_at() -> None:
    asked: list[Sequence] = []

    def guess(sequence: Sequence) -> list[int]:
        asked.append(sequence)
        return [3]

    with guessing(guess):
        e = engine(tiny_decoder(2))
        e.submit("a", [3, 4, 5], replace(SAMPLING, extras=Extras(repetition_penalty=1.3)), 2)
        run(e)
    assert not asked


def sequences_of(prompt: list[int], n: int, most: int = 100) -> list[Sequence]:
    request = Request("a", prompt, Sampling(max_new_tokens=most), n)
    return [Sequence(request, index) for index in range(n)]


def test_where_guesses_come_from() -> None:
    drafts = Drafts()
    one, other = sequences_of([1, 2, 3, 4, 5, 1, 2], 2)
    drafts.begin([one, other])
    own = drafts.guess(one, 4)
    assert [guess.token for guess in own] == [3, 4, 5, 1]
    assert {guess.source for guess in own} == {Source.OWN}
    other.tokens += [20, 21, 22, 23, 24]
    one.tokens += [20, 21]
    grouped = drafts.guess(one, 2)
    assert [(guess.token, guess.source) for guess in grouped] == [(22, Source.GROUP), (23, Source.GROUP)]
    assert grouped[1].matched == grouped[0].matched + 1
    drafts.end(one)
    drafts.end(other)
    assert not drafts._of
    assert not drafts._texts
    [later] = sequences_of([1, 2, 3, 4, 5, 1, 2], 1)
    drafts.begin([later])
    later.tokens += [20, 21]
    earlier = drafts.guess(later, 8)
    assert [(guess.token, guess.source) for guess in earlier] == [(token, Source.EARLIER) for token in (22, 23, 24)]


def test_the_likelier_of_two_is_guessed() -> None:
    drafts = Drafts()
    members = sequences_of([1, 2], 5)
    drafts.begin(members)
    for member, next_token in zip(members[1:], (30, 31, 31, 31), strict=True):
        member.tokens += [8, 9, next_token]
    members[0].tokens += [8, 9]
    [guess] = drafts.guess(members[0], 1)
    assert guess.token == 31
    assert guess.share == pytest.approx(0.75)


def test_short_answers_are_left_alone() -> None:
    drafts = Drafts()
    members = sequences_of([1, 2, 1, 2], 2, most=8)
    drafts.begin(members)
    assert drafts.guess(members[0], 4) == []
    drafts.end(members[0])


def test_what_is_kept_of_earlier_answers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("freerun.engines.embedded.drafts._EARLIER_TOKENS", 1_000)
    drafts = Drafts()
    for prompt in range(50):
        members = sequences_of([prompt, 2], 3)
        drafts.begin(members)
        for member in members:
            member.tokens += list(range(60))
            drafts.end(member)
    assert drafts._earlier_tokens == sum(len(a) for kept in drafts._earlier.values() for a in kept) <= 1_000
    assert len(drafts._earlier) == 5, "the newest"


def test_the_cost_of_a_step() -> None:
    cost, dice = StepCost(), random.Random(0)
    for _ in range(300):
        tokens = dice.randrange(4, 60)
        cost.saw(tokens, (10 + 0.5 * tokens) * dice.uniform(0.9, 1.1))
    assert cost.a_token == pytest.approx(0.5, rel=0.2)
    assert cost.of(20) == pytest.approx(20, rel=0.1)
    cost.saw(20, 1_000.0)
    assert cost.of(20) < 24, "one that took long for another reason"


@pytest.mark.parametrize(("a_token", "pays"), [(0.0001, True), (0.02, False)])
def test_it_guesses_where_that_pays(a_token: float, pays: bool) -> None:
    """Texts that repeat with chance 0.7 a token; steps of 10 ms and so much a token."""
    dice, drafts = random.Random(0), Drafts()
    speculation = Speculation(16, drafts)
    members = sequences_of([*range(20), *range(20)], 4, most=10_000)
    drafts.begin(members)
    for member in members:
        member.tokens += [0, 1]
    seconds = sampled = steps = guessed = 0.0
    while steps < 3_000:
        made = speculation.plan(members)
        for member in members:
            guesses = made.get(member, [])
            new = []
            for guess in guesses:
                if dice.random() < 0.3:
                    break
                new.append(guess)
            speculation.checked(member, len(new) + 1)
            member.tokens += [*new, (member.tokens[-1] + 1 + len(new)) % 20]
            sampled += len(new) + 1
        tokens = len(members) + sum(map(len, made.values()))
        guessed += bool(made)
        took_s = 0.01 + a_token * tokens
        speculation.took(len(members), took_s)
        seconds += took_s
        steps += 1
    plain_s = (0.01 + a_token * len(members)) / len(members)
    if pays:
        assert guessed > 0.9 * steps
        assert seconds / sampled < plain_s / 1.8
    else:
        assert guessed < 0.3 * steps
        assert seconds / sampled < plain_s * 1.05
