"""What few requests ask of sampling, against the same in plain Python on a plain forward pass."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from freerun.core import EngineError, FinishReason
from freerun.engines.base import Sampling
from freerun.engines.embedded.sequence import EndedAnswer
from freerun.engines.extras import Extras, SamplingFields
from freerun.models.attention import PackedAttention
from freerun.models.decoder import Decoder
from tests.engines.ahead import AheadRunner
from tests.engines.test_embedded import engine, run
from tests.tiny import tiny_decoder

PROMPT = [5, 6, 7, 5]
SAMPLING = Sampling(max_new_tokens=30, seed=11, ignore_eos=True)
ASKED = [
    Extras(top_logprobs=5),
    Extras(repetition_penalty=1.7, top_logprobs=2),
    Extras(frequency_penalty=0.8, presence_penalty=-0.4, top_logprobs=48),
    Extras(min_p=0.2, top_logprobs=3),
    Extras(logit_bias=((9, 4.0), (10, -100.0)), allowed_token_ids=tuple(range(4, 30)), top_logprobs=20),
]


def expected(decoder: Decoder, tokens: list[int], how: Sampling) -> dict[int, float]:
    """Log-probabilities of the next token among those that are allowed."""
    extras, sequence = how.extras or Extras(), torch.tensor(PROMPT + tokens)
    with torch.no_grad():
        hidden = decoder(sequence, torch.arange(len(sequence)), PackedAttention([len(sequence)]))
        logits = dict(enumerate(decoder.logits(hidden)[-1].double().tolist()))
    if extras.allowed_token_ids:
        logits = {token: logits[token] for token in extras.allowed_token_ids}
    for token, bias in extras.logit_bias:
        logits[token] += bias
    for token in logits.keys() & {*PROMPT, *tokens}:
        logits[token] *= extras.repetition_penalty ** (-1 if logits[token] > 0 else 1)
    for token in logits.keys() & set(tokens):
        logits[token] -= extras.frequency_penalty * tokens.count(token) + extras.presence_penalty
    scaled = {token: logit / (how.temperature or 1) for token, logit in logits.items()}
    total = math.log(sum(map(math.exp, scaled.values())))
    return {token: logit - total for token, logit in scaled.items()}


def may_be_sampled(logprobs: dict[int, float], how: Sampling) -> set[int]:
    """What min_p and top-k leave."""
    least = max(logprobs.values()) + math.log((how.extras and how.extras.min_p) or 1e-30)
    left = [token for token in sorted(logprobs, key=lambda token: -logprobs[token]) if logprobs[token] >= least - 1e-4]
    return set(left[: how.top_k or None])


def check(decoder: Decoder, answer: EndedAnswer, how: Sampling) -> None:
    assert how.extras
    for at, (token, logprob, best) in enumerate(
        zip(answer.tokens, answer.logprobs, answer.alternatives, strict=True),
    ):
        right = expected(decoder, answer.tokens[:at], how)
        assert token in may_be_sampled(right, how)
        assert logprob == pytest.approx(right[token], abs=1e-3)
        likeliest = sorted(right.values(), reverse=True)[: how.extras.top_logprobs]
        assert [value for _, value in best] == pytest.approx(likeliest, abs=1e-3)
        assert dict(best) == pytest.approx({token: right[token] for token, _ in best}, abs=1e-3)


@pytest.mark.parametrize("how", [{}, {"temperature": 0.6, "top_k": 7}, {"temperature": 0.0}])
def test_log_probabilities_and_alternatives_are_among_all_tokens(how: dict[str, Any]) -> None:
    decoder = tiny_decoder(1)
    e = engine(decoder)
    for number, extras in enumerate(ASKED):
        e.submit(str(number), PROMPT, replace(SAMPLING, extras=extras, **how), 2)
    done = run(e)
    for (id, _), answer in done.items():
        check(decoder, answer, replace(SAMPLING, extras=ASKED[int(id)], **how))


def test_nobody_else_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers in the company of such requests, and after them, are those there would be; ahead of the host as well."""

    def answers(alone: bool) -> list[list[int]]:
        e = engine(tiny_decoder(2))
        e.submit("plain", PROMPT, replace(SAMPLING, max_new_tokens=50), 3)
        for number, extras in enumerate([] if alone else ASKED):
            e.submit(str(number), PROMPT, replace(SAMPLING, extras=extras), 2)
        e.submit("told", PROMPT, replace(SAMPLING, extras=None if alone else ASKED[0]), 1)
        done = run(e)
        assert (e.free_blocks, e._special) == (e._blocks.count, set())
        return [done["plain", i].tokens for i in range(3)] + [done["told", 0].tokens]

    right = answers(alone=True)
    assert answers(alone=False) == right
    monkeypatch.setattr("freerun.engines.embedded.engine.PlainRunner", AheadRunner)
    assert answers(alone=True) == right
    assert answers(alone=False) == right


def test_no_answer_ends_before_min_tokens() -> None:
    stops = tuple(range(2, 40))
    e = engine()
    e.submit("free", PROMPT, replace(SAMPLING, stop_token_ids=stops), 4)
    e.submit("held", PROMPT, replace(SAMPLING, stop_token_ids=stops, extras=Extras(min_tokens=9)), 4)
    done = run(e)
    assert min(len(done["free", i].tokens) for i in range(4)) < 9
    for i in range(4):
        assert done["held", i].finish is FinishReason.STOP
        assert len(done["held", i].tokens) >= 10
        assert not set(done["held", i].tokens[:9]) & set(stops)


@pytest.mark.parametrize(
    ("extras", "says"),
    [
        (Extras(logit_bias=((48, 1.0),)), r"logit_bias: token ids must lie in 0\.\.47"),
        (Extras(allowed_token_ids=(3, -1)), r"allowed_token_ids: token ids must lie in 0\.\.47"),
        (Extras(allowed_token_ids=(3,), min_tokens=2), "every token that may be sampled ends the answer"),
    ],
)
def test_what_cannot_be_sampled_is_refused(extras: Extras, says: str) -> None:
    e = engine()
    with pytest.raises(EngineError, match=says):
        e.submit("a", PROMPT, replace(SAMPLING, stop_token_ids=(3,), extras=extras), 1)
    assert not e.has_work


class Fields(SamplingFields):
    def stops(self) -> tuple[str, ...]:
        return ()

    def longest_answer(self) -> int | None:
        return 8

    def alternatives(self) -> int:
        return 0


def test_who_asks_for_nothing_is_sampled_as_before() -> None:
    assert Fields().extras() is None
    assert Fields().wrong() is None
    assert Fields(min_p=0.1).extras() == Extras(min_p=0.1)
    assert Fields(min_tokens=9).wrong() == ("min_tokens", "must not be more than max_tokens")
    for nonsense in (math.nan, math.inf, -1.0):
        assert Fields(temperature=nonsense).wrong() == ("temperature", "must be 0 or more, and finite")
