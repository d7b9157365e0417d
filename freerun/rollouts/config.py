"""How answers are sampled, and who talks to the policy: nobody (one answer), a program of ours, an agent."""

from typing import Any, Literal

from pydantic import field_validator, model_validator

from freerun.core.resolve import Kind
from freerun.core.section import Section, knob
from freerun.engines.base import Sampling

SINGLE_TURN, TOOLS = "single_turn", "tools"
ROLLOUTS = Kind("rollout", "Class", "freerun.rollouts", {SINGLE_TURN: "freerun.rollouts.single_turn:SingleTurn"})
OF_SAMPLING = ("max_new_tokens", "temperature", "top_p", "top_k", "stop")
Named = str | dict[str, Any]
"""A name, or {name: …} with its options beside it."""


class RolloutConfig(Section):
    kind: Named = knob(
        SINGLE_TURN,
        "single_turn; tools, which answers, runs the tools it called, and answers again; or your own: "
        "path/to/file.py:Class or package.module:Class, or {name: …, its options}; see docs/api.md.",
    )
    agent: Named | None = knob(
        None,
        "Your agent, `async def run(task, session)`: path/to/file.py:run or package.module:run, or {name: …, its "
        "options}; see docs/agents.md.",
    )
    command: tuple[str, ...] = knob(
        (), "An agent that is a program, in any language: it and its arguments, such as [node, agent.js]."
    )
    env: Named | None = knob(
        None,
        "An environment to act in: textarena:NAME, gymnasium:ID, verifiers:TASKSET, reasoning-gym:NAME in several "
        "attempts; or {name: …, its options}.",
    )
    tools: tuple[dict[str, Any], ...] = knob(
        (), "What kind: tools may call: {mcp: [program, its arguments]}, or {function: FILE.py:NAME}."
    )
    max_turns: int = knob(8, "Most answers of the policy in a conversation with tools or an environment.", ge=1)
    deadline_s: float = knob(600.0, "Seconds that an agent may take for one try; then its process is killed.", gt=0)
    max_sessions: int = knob(64, "Agents that run at a time, each in a process.", ge=1)
    context_tokens: int | None = knob(
        None,
        "Most tokens of an agent's conversation, all turns together; empty: what model and cache hold, at most 16,384.",
        ge=2,
    )
    history: Literal["sampled", "template"] = knob(
        "sampled",
        "What an agent's policy sees of its earlier turns: all that it sampled, its thoughts included; or what the "
        "chat template makes of them, which makes a branch of every turn where that differs.",
    )
    group_size: int = knob(8, "Answers sampled for each task; their rewards are compared with each other.", ge=1)
    max_new_tokens: int = knob(
        256, "Longest answer, or turn of an agent, in tokens; longer ones are cut and count as truncated.", ge=1
    )
    temperature: float = knob(1.0, "Sampling temperature; the trainer uses it too.", ge=1e-3, allow_inf_nan=False)
    top_p: float = knob(1.0, "Sample from the smallest set of tokens with this probability. Below 1 biases training.",
                        gt=0, le=1)  # fmt: skip
    top_k: int = knob(0, "Sample from the k likeliest tokens; 0 keeps all. Other values bias training.", ge=0)
    stop: tuple[str, ...] = knob((), "Strings that end an answer (kept in it), besides the model's own end token.")

    @property
    def name(self) -> str:
        return name_of(self.kind)

    @property
    def options(self) -> dict[str, Any]:
        """Those of the user's own rollout: the fields of its class."""
        return options_of(self.kind)

    @property
    def is_agent(self) -> bool:
        """Whether somebody else's requests, and not the run's own, are what the policy answers."""
        return self.name == TOOLS or self.agent is not None or bool(self.command) or self.env is not None

    @field_validator("kind", "agent", "env")
    @classmethod
    def _has_a_name(cls, kind: Named | None) -> Named | None:
        if isinstance(kind, dict) and not isinstance(kind.get("name"), str):
            raise ValueError("it must be a name, or {name: NAME, its options}")
        return kind

    @model_validator(mode="after")
    def _no_contradictions(self) -> "RolloutConfig":
        if "" in self.stop:
            raise ValueError("rollout.stop holds an empty string, which would end every answer at once: remove it")
        given = [
            key
            for key, is_set in (
                ("kind", self.name != SINGLE_TURN),
                ("agent", self.agent is not None),
                ("command", bool(self.command)),
                ("env", self.env is not None),
            )
            if is_set
        ]
        if len(given) > 1:
            raise ValueError(f"rollout.{given[0]} and rollout.{given[1]} both say who talks to the policy: keep one")
        if self.tools and self.name != TOOLS:
            raise ValueError("rollout.tools is for rollout.kind: tools: set that, or give your agent its tools itself")
        if self.name == TOOLS and not self.tools:
            raise ValueError("rollout.kind is tools, but there are none: add rollout.tools, such as [{mcp: [PROGRAM]}]")
        return self

    def sampling(self, **changes: object) -> Sampling:
        return Sampling(**({name: getattr(self, name) for name in OF_SAMPLING} | changes))


def name_of(named: Named) -> str:
    return named if isinstance(named, str) else str(named["name"])


def options_of(named: Named) -> dict[str, Any]:
    return {} if isinstance(named, str) else {key: named[key] for key in named if key != "name"}
