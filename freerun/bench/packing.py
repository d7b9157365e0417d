"""`freerun bench packing`: micro-batches of as many tokens as fit, against a fixed number of them; and how often the
tokens of agents' conversations are computed, against one sample a turn."""

from dataclasses import dataclass

from freerun.bench.conversations import AGENTS, counted, show_conversations
from freerun.bench.trainer import bench_trainer, lengths_of, show
from freerun.machine.gpus import visible_gpus

CAPACITY = 32_768
"""Tokens of a micro-batch of conversations. They are counted, not computed."""


@dataclass(frozen=True)
class Work:
    model: str
    tokens: int
    """How many a step has."""
    longest: int
    """Tokens of the longest sequence."""
    mu: float
    """Lengths of sequences: lognormal(mu, 1)."""


SMALL = Work("4m", tokens=6_000, longest=1_024, mu=4.0)
"""The default on a CPU."""
LARGE = Work("0.6b", tokens=200_000, longest=8_192, mu=6.2)
"""The default on a GPU."""


def bench_packing(model: str | None, tokens: int | None, longest: int | None, steps: int, json_only: bool) -> None:
    """`bench trainer` with what is right for this comparison on this machine, where nothing else is said."""
    work = LARGE if visible_gpus() else SMALL
    lengths = lengths_of("lognormal", tokens or work.tokens, longest or work.longest, work.mu)
    model = model or work.model
    measured = bench_trainer(model, lengths, None, recompute=False, compare="fixed", steps=steps)
    conversations = [counted(agents, CAPACITY) for agents in AGENTS]
    if not json_only:
        show_conversations(conversations, CAPACITY)
    show("packing", model, lengths, measured, json_only, conversations={c.name: c.ratios for c in conversations})
