"""`freerun bench exact`: is every trained token the engine's own, whatever agents and their clients do?

Sessions of unmodified clients and frameworks, and of an agent that does at random all that forks a conversation, ask a
gateway with the embedded engine behind it, while its weights change every moment. What the sessions give to training is
compared with a record that was kept on the engine's side: the id, log-probability, version and whole context of each
token.
"""

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from freerun.bench.exact import clients, frameworks
from freerun.bench.exact.compare import Compared, compare
from freerun.bench.exact.policy import CONTEXT_TOKENS, Policy, RecordedEngine
from freerun.bench.exact.speakers import SPEAKERS
from freerun.bench.exact.walker import Walker
from freerun.control.bound import Mask
from freerun.core import Group, Task
from freerun.core.trajectory import Trajectory
from freerun.engines.base import Client, Sampling
from freerun.engines.dialects.answers import AnswerReading
from freerun.machine.scratch import scratch_folder
from freerun.rollouts.agents import http
from freerun.rollouts.agents.spec import Access
from freerun.rollouts.gateway.forks import ForkReason
from freerun.rollouts.gateway.prompts import SessionRules
from freerun.rollouts.gateway.server import Gateway
from freerun.rollouts.template import Template

Agent = Callable[[Access, random.Random], Awaitable[None]]
UPDATE_S, ETA = 0.25, 2
APPEND_ONLY: dict[str, Agent] = {
    "openai chat": clients.chat,
    "openai chat, streamed": clients.streamed_chat,
    "openai responses": clients.responses,
    "openai responses, streamed": clients.streamed_responses,
    "openai responses, chained": clients.chained_responses,
    "anthropic": clients.messages,
    "anthropic, streamed": clients.streamed_messages,
    "openai-agents chat": frameworks.openai_agents,
    "openai-agents responses": frameworks.openai_agents_responses,
    "openai-agents, streamed": frameworks.openai_agents_streamed,
    "langgraph": frameworks.langgraph,
    "pydantic-ai": frameworks.pydantic_ai,
    "kind: tools, a function": frameworks.function_tools,
}


@dataclass
class Kind:
    """What came of the sessions of one client."""

    sessions: int = 0
    requests: int = 0
    samples: int = 0
    again: int = 0
    """Prompts that it asked a second time: pydantic-ai does, when an answer is empty."""
    lost: int = 0
    """Answers that are neither trained on nor counted as used by nobody."""
    errors: Counter[str] = field(default_factory=Counter)
    """What ended sessions early, on the client's side."""


@dataclass
class Found:
    compared: Compared = field(default_factory=Compared)
    kinds: dict[str, Kind] = field(default_factory=dict)
    forks: Counter[str] = field(default_factory=Counter)
    apart: Counter[str] = field(default_factory=Counter)
    past_the_bound: int = 0
    masked: int = 0
    updates: int = 0
    spanning: int = 0
    """Samples whose tokens are of several versions."""

    @property
    def requests(self) -> int:
        return sum(kind.requests for kind in self.kinds.values())

    @property
    def samples_a_member(self) -> float:
        """Counts clients that only ever add to a conversation. What one asks a second time begins another. pydantic-ai
        rewrites answers that have thoughts in their middle, which a random model's have now and then."""
        appending = [kind for name, kind in self.kinds.items() if not name.startswith("walker")]
        conversations = sum(kind.sessions + kind.again for kind in appending)
        return sum(kind.samples for kind in appending) / max(conversations, 1)

    @property
    def lost(self) -> int:
        return sum(kind.lost for kind in self.kinds.values())

    @property
    def is_exact(self) -> bool:
        return not (self.compared.mismatches or self.compared.twice or self.lost or self.past_the_bound)


async def bench_exact(requests: int, at_once: int, seed: int, json_only: bool) -> Found:
    console = Console(stderr=json_only, highlight=False)
    with scratch_folder() as folder:
        bench = Bench(Policy.made(folder), folder, seed)
        with console.status("asking"):
            found = await bench.run(requests, at_once)
    show(found, console)
    return found


class Bench:
    def __init__(self, policy: Policy, folder: Path, seed: int) -> None:
        self.policy, self.found = policy, Found()
        self._mcp: Agent = frameworks.mcp_tools(folder)
        self._dice = random.Random(seed)
        end = policy.tokenizer.eos_token_id
        self._rules = SessionRules(
            *(Template(policy.tokenizer), AnswerReading(policy.tokenizer), frozenset([end])),
            *(Sampling(max_new_tokens=160), CONTEXT_TOKENS),
        )

    async def run(self, requests: int, at_once: int) -> Found:
        """Until there were that many requests."""
        async with Gateway.opened() as gateway:
            updating = asyncio.create_task(self.policy.updates_for_ever(UPDATE_S))
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(at_once):
                        group.create_task(self._members(gateway, requests))
            finally:
                updating.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await updating
                await http.close()
        self.found.updates = self.policy.updates
        return self.found

    async def _members(self, gateway: Gateway, requests: int) -> None:
        walkers = [f"walker, {dialect}" for dialect in SPEAKERS]
        kinds = [*APPEND_ONLY, *walkers, *walkers, "walker with history: template, chat"]
        while self.found.requests < requests:
            kind = self._dice.choice(kinds)
            if kind == "kind: tools, a function" and self._dice.random() < 0.15:
                kind = "kind: tools, mcp"
            await self._member(gateway, kind, random.Random(self._dice.random()))

    async def _member(self, gateway: Gateway, kind: str, dice: random.Random) -> None:
        engine, counted, walker = RecordedEngine(self.policy), self.found.kinds.setdefault(kind, Kind()), None
        rules = replace(self._rules, keeps_sampled="template" not in kind)
        with gateway.session(rules, Client(engine, str(dice.random())), "0/0") as session:
            access = gateway.access(session)
            try:
                if kind.startswith("walker"):
                    walker = Walker(access, dice, kind.rpartition(" ")[2])
                    await walker.walk(dice.randint(4, 12))
                elif kind == "kind: tools, mcp":
                    await self._mcp(access, dice)
                else:
                    await APPEND_ONLY[kind](access, dice)
            except Exception as error:  # of a client's own making: what was said until then is compared
                counted.errors[f"{type(error).__name__}: {error}"[:90]] += 1
        counted.sessions += 1
        counted.requests += session.report.requests + (walker.fixed if walker else 0)
        if session.has_turns:
            self._compare(counted, session.trajectory(dice.random()), engine, walker)

    def _compare(self, counted: Kind, trajectory: Trajectory, engine: RecordedEngine, walker: Walker | None) -> None:
        found, report = self.found, trajectory.session
        assert report is not None
        compared = compare(trajectory.samples, engine.record)
        found.compared.add(compared)
        counted.samples += len(trajectory.samples)
        counted.again += report.forks.get(ForkReason.AGAIN, 0)
        found.forks.update(report.forks)
        found.apart.update(report.apart)
        found.spanning += sum(len(sample.trained) > 1 for sample in trajectory.samples)
        unused = sum(report.apart.values()) + (walker.fixed if walker else 0)
        counted.lost += max(compared.answers - compared.trained_answers - unused, 0)
        self._train(trajectory)

    def _train(self, trajectory: Trajectory) -> None:
        """As the loop does at `when_stale: mask`, at the version that the engine has by now."""
        version = self.policy.engine.version
        group = Group(0, Task("0", "", [], ""), trajectory.samples, 0)
        chosen = Mask(ETA).select([group], [], version, 1)
        self.found.masked += chosen.masked_tokens
        for sample in (sample for taken in chosen.take for sample in taken.samples):
            old = (sample.versions.by_token() < version - ETA) & sample.loss_mask
            self.found.past_the_bound += int(old.sum())


def show(found: Found, console: Console) -> None:
    table = Table("client", "sessions", "requests", "samples a session", "ended early", box=None, header_style="dim")
    for name, kind in sorted(found.kinds.items()):
        ended = ", ".join(f"{times} × {error}" for error, times in kind.errors.most_common(3))
        table.add_row(name, f"{kind.sessions:,}", f"{kind.requests:,}", f"{kind.samples / kind.sessions:.2f}", ended)
    console.print(table)
    compared = found.compared
    figures = {
        "requests": found.requests,
        "weight updates": found.updates,
        "samples of several versions": found.spanning,
        "tokens compared": compared.tokens,
        "mismatches": compared.mismatches,
        "tokens trained twice": compared.twice,
        "answers lost": found.lost,
        "samples a member, append-only": found.samples_a_member,
        "tokens masked at the bound": found.masked,
        "trained tokens past the bound": found.past_the_bound,
        "tokens computed / different": compared.computed / max(compared.different, 1),
        "one sample a request / different": compared.by_request / max(compared.different, 1),
    }
    for name, value in figures.items():
        console.print(f"{name:<34} {value:,.3f}" if isinstance(value, float) else f"{name:<34} {value:,}")
    for name, counts in (("forks", found.forks), ("used by nobody", found.apart)):
        console.print(f"{name}: {', '.join(f'{reason} {times:,}' for reason, times in counts.most_common())}")
    for line in compared.wrong:
        console.print(f"[red]{line}[/red]")
    by_client = {name: kind.requests for name, kind in found.kinds.items()}
    print(json.dumps({"bench": "exact", **figures, "forks": found.forks, "apart": found.apart, "by_client": by_client}))
