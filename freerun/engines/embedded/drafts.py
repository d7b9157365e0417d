"""Guesses at how an answer goes on, from texts at hand: its prompt, itself, the other answers to the same prompt, and
those that were given to it earlier.

A guess is what followed where the same tokens stood before. It may be anything: whoever takes it samples as if it were
not there, and keeps it only where what is sampled is the same.
"""

from array import array
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from freerun.engines.embedded.sequence import Sequence

_LOOK_BACK = 16
"""Tokens: two places that have so many before them in common are as alike as can be."""
_PLACES = 24
"""The newest so many of those that end with the same pair of tokens are looked at."""
_BASE = 2.0
"""A place counts so many times as much for every token that it has in common."""
_EARLIER_TOKENS = 4_000_000
"""Tokens of answers that are over; the prompts that were not asked for longest are forgotten first."""
_EARLIER_ANSWERS = 16
"""To one prompt."""
_SHORT = 32
"""Answers that may not have so many tokens are not guessed at: they are over before it pays."""


class Source(StrEnum):
    OWN = "own"
    """The prompt, and what the answer has already."""
    GROUP = "group"
    """Other answers to the prompt, which are being written or were asked for together with this one."""
    EARLIER = "earlier"
    """Answers to the same prompt when it was asked before."""


@dataclass(slots=True, frozen=True)
class Guess:
    token: int
    matched: int
    """How many tokens before it are alike, where it was found."""
    share: float
    """The share of the places found that say this, weighted by how alike they are."""
    source: Source


@dataclass(slots=True, eq=False)
class _Text:
    """The end of the prompt and an answer."""

    tokens: list[int]
    source: Source
    """To others than its writer."""
    answer: list[int]
    """Grows while it is written."""
    read: int = 0
    """Tokens of the answer that are in `tokens`."""
    pairs: int = 0
    """Tokens whose pair with the one before is known to the index."""


@dataclass(slots=True, frozen=True)
class Spoken:
    source: Source
    tokens: list[int]
    writer: Sequence | None = None
    """Whose answer it is, if that is being written."""


class Drafts:
    """Guesses for all answers that are being written, by those texts and by what was answered earlier."""

    def __init__(self) -> None:
        self._of: dict[Sequence, Texts] = {}
        self._texts: dict[int, Texts] = {}
        """By prompt, while answers to it are written."""
        self._earlier: OrderedDict[int, list[array[int]]] = OrderedDict()
        """By prompt; the one that was asked for last is last. Should two prompts ever have the same number, each gets
        the other's guesses."""
        self._earlier_tokens = 0
        self.guessed: Counter[Source] = Counter()
        """How many guesses were checked, by where they came from."""
        self.right: Counter[Source] = Counter()
        """How many of these were right."""

    def begin(self, sequences: list[Sequence]) -> None:
        """All of one request."""
        request = sequences[0].request
        if request.sampling.max_new_tokens < _SHORT:
            return
        number = hash(tuple(request.prompt))
        if number not in self._texts:
            self._texts[number] = Texts(number, request.prompt, self._earlier.get(number, []))
        for sequence in sequences:
            self._of[sequence] = self._texts[number]
            self._texts[number].add(sequence)

    def guess(self, sequence: Sequence, most: int) -> list[Guess]:
        return self._of[sequence].guess(sequence, most) if sequence in self._of else []

    def number(self, sequence: Sequence) -> int:
        """The number of its prompt, among those that are being answered; one of its own where it is not guessed at."""
        return self._of[sequence].number if sequence in self._of else id(sequence)

    def spoken(self, sequence: Sequence, writers: set[Sequence], most: int) -> list[Spoken]:
        """What there is about its prompt, at most so many tokens; `writers` are those whose answers are written now."""
        if sequence in self._of:
            return self._of[sequence].spoken(writers, most)
        return [Spoken(Source.OWN, [*sequence.request.prompt, *sequence.tokens][-most:], sequence)]

    def end(self, sequence: Sequence) -> None:
        """It is over. With the last answer to a prompt, all of them have been given earlier."""
        if texts := self._of.pop(sequence, None):
            texts.writers -= 1
            if not texts.writers:
                del self._texts[texts.number]
                self._keep(texts.number, texts.answers())

    def forget(self) -> None:
        """All that was answered earlier, and how well that was guessed."""
        self._earlier.clear()
        self._earlier_tokens = 0
        self.guessed.clear()
        self.right.clear()

    def _keep(self, number: int, answers: list["array[int]"]) -> None:
        before = self._earlier.pop(number, [])
        self._earlier[number] = [*before, *answers][-_EARLIER_ANSWERS:]
        self._earlier_tokens += _tokens(self._earlier[number]) - _tokens(before)
        while self._earlier_tokens > _EARLIER_TOKENS:
            _, forgotten = self._earlier.popitem(last=False)
            self._earlier_tokens -= _tokens(forgotten)


def _tokens(answers: Iterable["array[int]"]) -> int:
    return sum(map(len, answers))


class Texts:
    """All there is about one prompt, found by pairs of tokens. What is written meanwhile is read when it is wanted."""

    def __init__(self, number: int, prompt: list[int], earlier: Iterable["array[int]"]) -> None:
        self.number = number
        self._beginning = prompt[-_LOOK_BACK:]
        self._behind: dict[tuple[int, int], list[tuple[_Text, int]]] = defaultdict(list)
        """Where a pair stands: the text, and the place behind it."""
        self._texts = [_Text(list(prompt), Source.OWN, [])]
        self._unread = earlier
        """Earlier answers that nobody has wanted yet: where many answers run, nobody does."""
        self._of: dict[Sequence, _Text] = {}
        self.writers = 0

    def add(self, sequence: Sequence) -> None:
        self._of[sequence] = self._text(sequence.tokens, Source.GROUP)
        self._texts.append(self._of[sequence])
        self.writers += 1

    def answers(self) -> list["array[int]"]:
        return [array("I", sequence.tokens) for sequence in self._of if sequence.tokens]

    def _text(self, answer: list[int], source: Source) -> _Text:
        return _Text(list(self._beginning), source, answer)

    def spoken(self, writers: set[Sequence], most: int) -> list[Spoken]:
        """The prompt, earlier answers, those of the group that are over, and those that are being written. Of more than
        `most` tokens, the beginnings of the latter are left out, and whole ones of the others."""
        self._read_earlier()
        written = [one for one in self._of if one in writers]
        each = most // max(len(written), 1)
        now = [Spoken(Source.GROUP, [*self._beginning, *one.tokens][-each:], one) for one in written]
        left = most - sum(len(text.tokens) for text in now)
        others = [Spoken(Source.OWN, self._texts[0].tokens)]
        theirs = [(text, next((one for one, own in self._of.items() if own is text), None)) for text in self._texts[1:]]
        others += [
            Spoken(text.source, [*self._beginning, *text.answer]) for text, writer in theirs if writer not in writers
        ]
        fitting = []
        for text in others:
            if (left := left - len(text.tokens)) >= 0:
                fitting.append(text)
        return fitting + now

    def guess(self, sequence: Sequence, most: int) -> list[Guess]:
        self._catch_up()
        own = self._of[sequence]
        places = self._places(own)
        guesses: list[Guess] = []
        while places and len(guesses) < most:
            votes: dict[int, float] = defaultdict(float)
            for weight, _, text, at in places:
                votes[text.tokens[at]] += weight
            token = max(votes, key=votes.__getitem__)
            places = [place for place in places if place[2].tokens[place[3]] == token]
            _, matched, text, at = max(places, key=lambda place: place[1])
            source = Source.OWN if text is own or at < len(self._beginning) else text.source
            guesses.append(Guess(token, matched + len(guesses), votes[token] / sum(votes.values()), source))
            places = [(weight, alike, text, at + 1) for weight, alike, text, at in places if at + 1 < len(text.tokens)]
        return guesses

    def _read_earlier(self) -> None:
        self._texts[1:1] = [self._text(list(answer), Source.EARLIER) for answer in self._unread]
        self._unread = ()

    def _catch_up(self) -> None:
        self._read_earlier()
        for text in self._texts:
            if text.read < len(text.answer):
                text.tokens += text.answer[text.read :]
                text.read = len(text.answer)
            tokens = text.tokens
            for at in range(max(text.pairs, 1), len(tokens)):
                self._behind[tokens[at - 1], tokens[at]].append((text, at + 1))
            text.pairs = len(tokens)

    def _places(self, own: _Text) -> list[tuple[float, int, _Text, int]]:
        """Weight, tokens alike, text and position of what followed where the same was said."""
        end = len(own.tokens)
        if end < 2:
            return []
        found = []
        for text, at in reversed(self._behind[own.tokens[-2], own.tokens[-1]][-_PLACES - 1 :]):
            if at < len(text.tokens):
                alike = _alike(text.tokens, at, own.tokens, end)
                found.append((_BASE**alike, alike, text, at))
        return found


def _alike(one: list[int], one_end: int, other: list[int], other_end: int) -> int:
    """How many tokens before these places are the same."""
    most = min(_LOOK_BACK, one_end, other_end)
    for back in range(1, most + 1):
        if one[one_end - back] != other[other_end - back]:
            return back - 1
    return most
