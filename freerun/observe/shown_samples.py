"""Which samples the report shows, and how much of each: the page must open however long conversations are.

The page says what was left out. run.db has all of it.
"""

import math
from itertools import groupby
from pathlib import Path
from typing import Any

from freerun.core import DataError
from freerun.observe.records import SampleRecord, TurnRecord
from freerun.observe.sample_reader import SampleReader

SAMPLES = 12
SAMPLE_TOKENS = 3000
FIRST_TURNS, LAST_TURNS = 20, 40
"""Shown of a conversation that has more."""
TURN_CHARACTERS = 1500


def pick_samples(path: Path) -> dict[str, Any]:
    """A few samples from both ends: of each group the best and the worst member, so that right and wrong stand
    together, each with its branches."""
    head, tail, seen = _ends(path, 20 * SAMPLES)
    groups = _by_group([*head, *tail])
    middle = math.ceil(len(groups) / 2)
    early, late = _best_and_worst(groups[:middle]), _best_and_worst(groups[middle:][::-1])
    return {"early": [_shown(r) for r in early], "late": [_shown(r) for r in late], "recorded": seen}


def _ends(path: Path, pool: int) -> tuple[list[SampleRecord], list[SampleRecord], int]:
    """The first and the last of them, and how many there are. A page without samples is better than none."""
    reader = SampleReader(path)
    try:
        return *reader.ends(pool), reader.count()
    except DataError:
        return [], [], 0
    finally:
        reader.close()


def _by_group(records: list[SampleRecord]) -> list[list[list[SampleRecord]]]:
    """The records of each group, by member. Older runs name none: each record is one."""
    groups = []
    for _, group in groupby(records, key=lambda r: (r.step, r.group)):
        members = groupby(enumerate(group), key=lambda at: at[0] if at[1].member is None else -1 - at[1].member)
        groups.append([[record for _, record in member] for _, member in members])
    return groups


def _best_and_worst(groups: list[list[list[SampleRecord]]]) -> list[SampleRecord]:
    chosen: list[SampleRecord] = []
    for members in groups:
        ranked = sorted(members, key=lambda member: math.inf if (reward := member[0].reward) is None else -reward)
        for member in [ranked[0], ranked[-1]] if len(ranked) > 1 else ranked:
            chosen.extend(member)
        if len(chosen) >= SAMPLES:
            break
    return chosen[:SAMPLES]


def _shown(r: SampleRecord) -> dict[str, Any]:
    names = ("step", "version", "group", "task", "prompt", "answer", "finish", "member", "branch", "branches", "reward")
    turns, places = _shown_turns(r.turns) if r.turns else ([], range(min(len(r.tokens), SAMPLE_TOKENS)))
    logprobs = [r.logprobs[place] for place in places]
    return {
        **{name: getattr(r, name) for name in names},
        "text": r.text if not r.tokens else "",
        "length": len(r.tokens),
        "tokens": [r.tokens[place] for place in places],
        "logprobs": [round(p, 4) if p is not None else None for p in logprobs],
        "versions": [r.versions[place] for place in places],
        "num_turns": len(r.turns),
        "turns": turns,
    }


def _shown_turns(turns: list[TurnRecord]) -> tuple[list[dict[str, Any]], list[int]]:
    """Those that are shown, and which of the sample's tokens are, which are one list on the page."""
    numbered = list(enumerate(turns, start=1))
    if len(turns) > FIRST_TURNS + LAST_TURNS:
        numbered = numbered[:FIRST_TURNS] + numbered[-LAST_TURNS:]
    most = fair_share([turn.end - turn.start for _, turn in numbered], SAMPLE_TOKENS)
    shown: list[dict[str, Any]] = []
    places: list[int] = []
    for number, turn in numbered:
        first = len(places)
        places.extend(range(turn.start, min(turn.end, turn.start + most)))
        shown.append(_shown_turn(number, turn, first, len(places)))
    return shown, places


def fair_share(sizes: list[int], total: int) -> int:
    """The most that each may have such that all have at most `total`: small ones have what they need."""
    left = total
    for done, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - done)
        if size > share:
            return share
        left -= size
    return total


def _shown_turn(number: int, turn: TurnRecord, first: int, last: int) -> dict[str, Any]:
    """Where the page has its tokens, from `first` to `last`, they say what was said."""
    return {
        "number": number,
        "role": turn.role,
        "text": _cut("" if first < last else turn.text),
        "reasoning": _cut("" if first < last else turn.reasoning),
        "calls": [{"name": call.name, "arguments": _cut(call.arguments), "id": call.id} for call in turn.calls],
        "result_of": turn.result_of,
        "sampled": turn.sampled,
        "reward": turn.reward,
        "tokens": [first, last],
        "num_tokens": turn.end - turn.start,
        "versions": turn.versions,
    }


def _cut(text: str) -> list[Any]:
    """What is shown of it, and how many characters are not."""
    return [text[:TURN_CHARACTERS], max(len(text) - TURN_CHARACTERS, 0)]
