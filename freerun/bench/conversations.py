"""Conversations of agents, made up: who says how much, where they fork, and what of it is the same.

A group's members have the system prompt and the task in common, and all groups the system prompt. A turn is what the
policy samples and what it is then told. A member with several branches has a sample for each of them, as in a run: a
sampled token is trained in the first that holds it, and given in the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from freerun.core import FinishReason, Group, Sample, Task
from freerun.core.nouns import NOT_SAMPLED
from freerun.train.packing import pack, shared_out
from freerun.train.prefixes import distinct_tokens

VOCABULARY = 32_000


@dataclass(frozen=True)
class Agents:
    name: str
    groups: int = 4
    members: int = 8
    turns: int = 10
    system: int = 600
    """Tokens of the system prompt, tools included."""
    task: int = 200
    said: int = 150
    """Tokens that a turn samples, about."""
    told: int = 250
    """Tokens that it is told thereafter, about."""
    forks: int = 0
    """Branches that leave the conversation at some turn, and go on for a few."""
    compactions: int = 0
    """How often the history is replaced by a summary of it."""

    def made(self, seed: int = 0) -> list[Group]:
        return _Made(self, np.random.default_rng(seed)).groups()


AGENTS = (
    Agents("one member", groups=8, members=1),
    Agents("8 members"),
    Agents("3 forks each", forks=3),
    Agents("2 compactions each", turns=12, compactions=2),
    Agents("forks, compactions", turns=15, forks=2, compactions=1),
    Agents("long prompts", turns=1, system=1_500, task=500, said=60),
)


class _Made:
    def __init__(self, agents: Agents, dice: np.random.Generator) -> None:
        self._agents, self._dice = agents, dice
        self._system = self._text(agents.system)

    def groups(self) -> list[Group]:
        return [self._group(number) for number in range(self._agents.groups)]

    def _group(self, number: int) -> Group:
        prompt = (*self._system, *self._text(self._agents.task))
        members = [self._member(prompt, member) for member in range(self._agents.members)]
        return Group(number, Task(str(number), "", []), [branch for member in members for branch in member], 0)

    def _member(self, prompt: tuple[int, ...], member: int) -> list[Sample]:
        """Lines of (tokens, whether they are trained here)."""
        agents, lines = self._agents, [[(prompt, False)]]
        parts = agents.compactions + 1
        for part in range(parts):
            if part:
                lines.append([(prompt, False), (self._about(agents.said), False)])
            for _ in range(agents.turns // parts):
                lines[-1] += [(self._about(agents.said), True), (self._about(agents.told), False)]
        for _ in range(agents.forks):
            trunk = lines[int(self._dice.integers(parts))]
            shared = [(tokens, False) for tokens, _ in trunk[: 1 + 2 * int(self._dice.integers(1, len(trunk) // 2))]]
            lines.append([*shared, (self._about(agents.told), False), (self._about(agents.said), True)])
        return [self._sample(line, member) for line in lines]

    def _sample(self, line: list[tuple[tuple[int, ...], bool]], member: int) -> Sample:
        tokens = [token for said, _ in line for token in said]
        marks = [trained for said, trained in line for _ in said]
        versions = [0 if trained else NOT_SAMPLED for trained in marks]
        return Sample(tokens, marks, [-1.0] * len(tokens), versions, FinishReason.STOP, reward=0.0, member=member)

    def _about(self, length: int) -> tuple[int, ...]:
        return self._text(int(length * self._dice.uniform(0.5, 1.5)) + 1)

    def _text(self, length: int) -> tuple[int, ...]:
        return tuple(self._dice.integers(2, VOCABULARY, length).tolist())


@dataclass(frozen=True)
class Counted:
    """Tokens of a pass over all of them."""

    name: str
    distinct: int
    computed: int
    by_sample: int
    """With each sample computed by itself."""
    by_turn: int
    """With a sample for each sampled turn, by itself: what came before it, and the turn."""

    @property
    def ratio(self) -> float:
        return self.computed / self.distinct

    @property
    def ratios(self) -> dict[str, float]:
        """To the different tokens."""
        return {
            "computed": self.ratio,
            "by_sample": self.by_sample / self.distinct,
            "by_turn": self.by_turn / self.distinct,
        }


def counted(agents: Agents, capacity: int, seed: int = 0) -> Counted:
    samples = [sample for group in agents.made(seed) for sample in group.samples]
    (micros,) = shared_out(samples, capacity)
    computed = sum(len(pack([samples[place] for place in places]).tokens_T) for places in micros)
    by_turn = sum(end for sample in samples for end in _turn_ends(sample))
    return Counted(agents.name, distinct_tokens(samples), computed, sum(len(s.tokens) for s in samples), by_turn)


def show_conversations(found: Sequence[Counted], capacity: int) -> None:
    table = Table(title=f"conversations: tokens of a pass, to the different ones; {capacity:,} a micro-batch")
    for column in ("", "different", "computed", "one sample a leaf", "one sample a turn"):
        table.add_column(column, justify="right" if column else "left")
    for one in found:
        table.add_row(one.name, f"{one.distinct:,}", *(f"{ratio:.2f}" for ratio in one.ratios.values()))
    Console().print(table)


def _turn_ends(sample: Sample) -> list[int]:
    """Where each of its trained turns ends."""
    after = np.append(sample.loss_mask[1:], np.False_)
    ends: list[int] = (np.flatnonzero(sample.loss_mask & ~after) + 1).tolist()
    return ends
