"""What few requests ask of sampling, and the fields of a request that say how to sample. Importable without torch.

The names are vLLM's, and OpenAI's where it has them. `embedded/shaping.py` does what is asked.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import msgspec

MOST_ANSWERS = 4096
"""How many answers one request may ask for, over all its prompts."""
MOST_ALTERNATIVES = 20
_MOST_STOPS, _LONGEST_STOP = 64, 1024
"""Every token is looked at with these in mind."""

Alternatives = list[tuple[int, float]]
"""Tokens that could have been sampled, likeliest first, and their log-probabilities."""


@dataclass(slots=True, frozen=True)
class Extras:
    """Applied in this order: allowed tokens, bias, `min_tokens`, penalties, temperature, min_p, top-k, top-p.

    Log-probabilities, those of the alternatives included, are among all tokens that are allowed, after temperature and
    before min_p, top-k and top-p.
    """

    allowed_token_ids: tuple[int, ...] = ()
    """No others are sampled; empty: all are allowed."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    """Until there are so many, nothing that ends the answer is sampled."""
    repetition_penalty: float = 1.0
    """Divides positive logits of tokens that prompt or answer hold, and multiplies negative ones."""
    frequency_penalty: float = 0.0
    """Off the logit of a token, for each time that the answer has it."""
    presence_penalty: float = 0.0
    """Off the logit of a token that the answer has."""
    min_p: float = 0.0
    """Tokens are left out that are less than this times as likely as the likeliest."""
    top_logprobs: int = 0
    """How many alternatives to note with every token."""


class SamplingFields(msgspec.Struct, kw_only=True):
    """What every route takes that generates."""

    ALTERNATIVES: ClassVar[str] = "logprobs"
    """What the field is called that says how many alternatives are wanted."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    min_tokens: int = 0
    stop_token_ids: list[int] = []
    ignore_eos: bool = False

    def stops(self) -> tuple[str, ...]:
        """Texts that end an answer. Each kind of request has fields of its own for these three; without, nothing is
        asked for."""
        return ()

    def longest_answer(self) -> int | None:
        """The most tokens that an answer may have, if the request says so."""
        return None

    def alternatives(self) -> int:
        """How many of the likeliest tokens to give with each sampled one."""
        return 0

    def extras(self) -> Extras | None:
        """None if nothing of it is asked for: such requests are sampled faster."""
        extras = Extras(
            allowed_token_ids=tuple(self.allowed_token_ids or ()),
            logit_bias=tuple((self.logit_bias or {}).items()),
            min_tokens=self.min_tokens,
            repetition_penalty=self.repetition_penalty,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            min_p=self.min_p,
            top_logprobs=self.alternatives(),
        )
        return None if extras == _NONE else extras

    def wrong(self) -> tuple[str, str] | None:
        """The first field that makes no sense, and what it must be."""
        stops, longest, biases = self.stops(), self.longest_answer(), (self.logit_bias or {}).values()
        for sound, field, rule in (
            (1 <= self.n <= MOST_ANSWERS, "n", f"must lie in 1..{MOST_ANSWERS}"),
            (longest is None or longest >= 1, "max_tokens", "must be 1 or more"),
            (math.isfinite(self.temperature) and self.temperature >= 0, "temperature", "must be 0 or more, and finite"),
            (0 < self.top_p <= 1, "top_p", "must be above 0 and at most 1"),
            (self.top_k >= -1, "top_k", "must be 0 (all) or more"),
            (0 <= self.min_p <= 1, "min_p", "must lie in 0..1"),
            (abs(self.presence_penalty) <= 2, "presence_penalty", "must lie in -2..2"),
            (abs(self.frequency_penalty) <= 2, "frequency_penalty", "must lie in -2..2"),
            (0.01 <= self.repetition_penalty <= 100, "repetition_penalty", "must lie in 0.01..100; 1 changes nothing"),
            (all(abs(bias) <= 100 for bias in biases), "logit_bias", "must hold numbers in -100..100"),
            (self.allowed_token_ids != [], "allowed_token_ids", "must not be empty"),
            (0 <= self.alternatives() <= MOST_ALTERNATIVES, self.ALTERNATIVES, f"must lie in 0..{MOST_ALTERNATIVES}"),
            (self.min_tokens >= 0, "min_tokens", "must be 0 or more"),
            (longest is None or self.min_tokens <= longest, "min_tokens", "must not be more than max_tokens"),
            (not (self.min_tokens and stops), "min_tokens", "does not go with stop, only with stop_token_ids"),
            ("" not in stops, "stop", "must not be empty text"),
            (
                len(stops) <= _MOST_STOPS and all(len(stop) <= _LONGEST_STOP for stop in stops),
                "stop",
                f"must be at most {_MOST_STOPS} texts of at most {_LONGEST_STOP} characters",
            ),
        ):
            if not sound:
                return field, rule
        return None


_NONE = Extras()
