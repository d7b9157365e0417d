"""When a device guesses by itself: as long as that pays."""

import random
from collections.abc import Callable

from freerun.engines.base import Sampling
from freerun.engines.embedded.drafts import Drafts, Source
from freerun.engines.embedded.guess_pace import GuessPace
from freerun.engines.embedded.sequence import Request, Sequence


def bursts(pace: GuessPace, rows: int, count: int, tokens_per_s: Callable[[bool], float]) -> list[bool]:
    """Whether each of so many bursts guessed."""
    made, before = [], None
    for _ in range(count):
        guessing = pace.wanted(rows)
        seconds = 0.004 if guessing == before else 5.0  # the first of a kind compiles
        pace.saw(rows, guessing, round(tokens_per_s(guessing) * 0.004), seconds)
        made.append(guessing)
        before = guessing
    return made


def test_it_guesses_where_that_gives_more_tokens_a_second() -> None:
    dice = random.Random(0)
    made = bursts(GuessPace(), 8, 3_000, lambda guessing: (20_000 if guessing else 12_000) * dice.uniform(0.8, 1.2))
    assert sum(made) > 0.95 * len(made)


def test_it_does_not_where_that_gives_less_but_tries_again() -> None:
    made = bursts(GuessPace(), 8, 8_000, lambda guessing: 9_000 if guessing else 12_000)
    assert 5 <= sum(made) < 0.02 * len(made)
    assert any(made[2_000:])


def test_it_changes_its_mind_when_answers_do() -> None:
    pace = GuessPace()
    bursts(pace, 8, 1_000, lambda guessing: 9_000 if guessing else 12_000)
    made = bursts(pace, 8, 3_000, lambda guessing: 20_000 if guessing else 12_000)
    assert all(made[-500:-100]) or sum(made[-500:]) > 450
    made = bursts(pace, 8, 6_000, lambda guessing: 9_000 if guessing else 12_000)
    assert sum(made[-500:]) < 50


def test_few_rows_and_more_are_told_apart() -> None:
    pace = GuessPace()
    assert sum(bursts(pace, 2, 500, lambda guessing: 900 if guessing else 300)) > 400
    assert sum(bursts(pace, 30, 500, lambda guessing: 300 if guessing else 900)) < 50
    assert sum(bursts(pace, 2, 100, lambda guessing: 900 if guessing else 300)) > 80


def members(prompt: list[int], count: int) -> list[Sequence]:
    request = Request("id", prompt, Sampling(max_new_tokens=100), count)
    return [Sequence(request, index) for index in range(count)]


def test_what_is_said_about_a_prompt() -> None:
    drafts = Drafts()
    prompt = list(range(100, 130))
    for one in (earlier := members(prompt, 2)):
        one.tokens = [one.index] * 5
    drafts.begin(earlier)
    for one in earlier:
        drafts.end(one)
    group = members(prompt, 3)
    drafts.begin(group)
    for one in group:
        one.tokens += [10 + one.index] * (4 + one.index)
    drafts.end(group[0])
    writing = {group[1], group[2]}
    said = drafts.spoken(group[1], writing, 1_000)
    assert [(text.source, text.writer) for text in said] == [
        (Source.OWN, None), (Source.EARLIER, None), (Source.EARLIER, None), (Source.GROUP, None),
        (Source.GROUP, group[1]), (Source.GROUP, group[2]),
    ]  # fmt: skip
    assert said[0].tokens == prompt
    assert [text.tokens[16:] for text in said[1:]] == [[0] * 5, [1] * 5, [10] * 4, [11] * 5, [12] * 6]
    assert all(text.tokens[:16] == prompt[-16:] for text in said[1:])
    assert drafts.number(group[1]) == drafts.number(group[2])
    short = drafts.spoken(group[1], writing, 30)
    assert [text.tokens for text in short] == [said[4].tokens[-15:], said[5].tokens[-15:]]
