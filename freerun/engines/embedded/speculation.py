"""How much to guess. Where few answers run, a forward pass over some tokens more takes hardly longer, and each guess
that turns out right saves one.

What a guess is worth is measured: how often such guesses were right, what steps took by how many tokens they had, and
what they take without any. Nothing is guessed where that does not pay, save for a try now and then.
"""

from collections import Counter
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

from freerun.engines.embedded.drafts import Drafts, Guess
from freerun.engines.embedded.sequence import Sequence

Guesses = dict[Sequence, list[int]]

_LONGEST = 16
"""Tokens that are guessed of one answer."""
_MOST_TOKENS = 256
"""In a step with guesses: with more, every token has its price on any device."""
_ENOUGH = 4
"""Steps of a kind, before what they took is believed."""
_TRIES = (1, 3)
"""Guesses an answer, in steps that try whether it pays."""
_FIRST_WAIT, _LAST_WAIT = 64, 2_048
"""Steps until that is tried again; each time twice as many."""
_FORGET = 0.97
"""What an earlier step's time still counts for with each further one."""


class StepCost:
    """Seconds a step takes: a constant, and so much a token."""

    def __init__(self) -> None:
        self.steps = 0
        self._weight = self._tokens = self._squares = self._seconds = self._products = 0.0
        self._a_token = 0.0

    def saw(self, tokens: int, seconds: float) -> None:
        if self.steps >= _ENOUGH:
            seconds = min(seconds, 4 * self.of(tokens))  # something else took the time
        self.steps += 1
        self._weight = self._weight * _FORGET + 1
        self._tokens = self._tokens * _FORGET + tokens
        self._squares = self._squares * _FORGET + tokens**2
        self._seconds = self._seconds * _FORGET + seconds
        self._products = self._products * _FORGET + tokens * seconds
        spread = self._squares / self._weight - (self._tokens / self._weight) ** 2
        if spread > 0.5:
            together = self._products / self._weight - self._tokens * self._seconds / self._weight**2
            self._a_token = min(max(together / spread, 0.0), self._seconds / self._tokens)

    @property
    def a_token(self) -> float:
        return self._a_token

    def of(self, tokens: int) -> float:
        if not self._weight:
            return 0.0
        return (self._seconds + self._a_token * (tokens * self._weight - self._tokens)) / self._weight


class Odds:
    """How often guesses of a kind are right: by how much was alike before, and how many places agree."""

    def __init__(self) -> None:
        self._right: Counter[tuple[int, int]] = Counter()
        self._all: Counter[tuple[int, int]] = Counter()

    def saw(self, guess: Guess, right: bool) -> None:
        kind = _kind(guess)
        if self._all[kind] >= 512:  # weights change, and what is alike with them
            self._all[kind] //= 2
            self._right[kind] //= 2
        self._all[kind] += 1
        self._right[kind] += right

    def of(self, guess: Guess) -> float:
        kind = _kind(guess)
        return (self._right[kind] + 1) / (self._all[kind] + 2)


def _kind(guess: Guess) -> tuple[int, int]:
    return min(guess.matched, 31).bit_length(), int(3.99 * guess.share)


@dataclass(slots=True)
class _Plain:
    """Steps without guesses, of about as many rows."""

    cost: StepCost = field(default_factory=StepCost)
    wait: int = _FIRST_WAIT
    left: int = 0
    """Steps until guesses are tried again."""
    tries: list[int] = field(default_factory=lambda: list(_TRIES))

    def put_off(self) -> None:
        self.left, self.tries = self.wait, list(_TRIES)
        self.wait = min(2 * self.wait, _LAST_WAIT)


class Speculation:
    def __init__(self, most: int, drafts: Drafts) -> None:
        """`most`: tokens of one answer that a step can check. 0: nothing is ever guessed."""
        self._longest = min(most, _LONGEST)
        self._drafts = drafts
        self._odds = Odds()
        self._cost = StepCost()
        self._plain: dict[int, _Plain] = {}
        self._made: dict[Sequence, list[Guess]] = {}
        """For the step that is under way."""

    def plan(self, sequences: Rows[Sequence]) -> Guesses:
        """Guesses for a step of these, which all sample."""
        self._made = {}
        rows = len(sequences)
        if not self._longest or not rows or 2 * rows > _MOST_TOKENS:
            return {}
        plain = self._plain.setdefault(rows.bit_length(), _Plain())
        if plain.left or plain.cost.steps < _ENOUGH:
            plain.left = max(plain.left - 1, 0)
            return {}
        guesses = {one: self._drafts.guess(one, self._most(one)) for one in sequences}
        if not any(guesses.values()):
            plain.left = _ENOUGH
            return {}
        if plain.tries:
            most, a_token = rows * plain.tries.pop(0), 0.0
            self._made, _ = self._likeliest(rows, guesses, most, a_token)
        else:
            most, a_token = _MOST_TOKENS - rows, self._cost.a_token
            made, expected = self._likeliest(rows, guesses, most, a_token)
            tokens = rows + sum(map(len, made.values()))
            if not made or self._cost.of(tokens) * rows > plain.cost.of(rows) * expected:
                plain.put_off()
                return {}
            plain.wait = _FIRST_WAIT
            self._made = made
        return {one: [guess.token for guess in theirs] for one, theirs in self._made.items()}

    def _most(self, sequence: Sequence) -> int:
        """One token it samples in any case."""
        return min(self._longest, sequence.request.sampling.max_new_tokens - sequence.sampled - 1)

    def _likeliest(
        self, rows: int, guesses: dict[Sequence, list[Guess]], most: int, a_token: float
    ) -> tuple[dict[Sequence, list[Guess]], float]:
        """At most so many of all, as long as one more makes a token cheaper where each takes so many seconds; and how
        many tokens the step then samples."""
        chances = []
        for sequence, theirs in guesses.items():
            chance = 1.0
            for depth, guess in enumerate(theirs):
                chance *= self._odds.of(guess)
                chances.append((-chance, depth, sequence))
        chances.sort(key=lambda one: one[:2])  # a chance never rises along a row: its guesses stay in order
        counts: Counter[Sequence] = Counter()
        tokens, expected = rows, float(rows)
        for less, _, sequence in chances[:most]:
            if a_token * expected > -less * self._cost.of(tokens):
                break
            counts[sequence] += 1
            tokens += 1
            expected -= less
        return {sequence: guesses[sequence][:count] for sequence, count in counts.items()}, expected

    def checked(self, sequence: Sequence, sampled: int) -> None:
        """How many tokens it sampled in the step: one more than guesses were right."""
        for at, guess in enumerate(self._made.get(sequence, ())):
            right = at < sampled - 1
            self._drafts.guessed[guess.source] += 1
            self._drafts.right[guess.source] += right
            if at < sampled:  # what comes behind a wrong one is not looked at
                self._odds.saw(guess, right)

    def took(self, rows: int, seconds: float) -> None:
        """A step in which nobody did anything but sample."""
        if self._made:
            self._cost.saw(rows + sum(map(len, self._made.values())), seconds)
        elif rows:
            self._plain.setdefault(rows.bit_length(), _Plain()).cost.saw(rows, seconds)
