"""The calculator's recipe in a shortened form: a real engine, a real trainer, real processes, real openai-agents."""

import re
from pathlib import Path

import pytest

from examples.calculator.demo import run_demo
from freerun.observe.records import read_steps

ROOT = Path(__file__).parents[2]


async def test_a_tiny_model_learns_to_call_a_calculator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    line = await run_demo(
        changes=["control.steps=10", "train.decay_steps=0", "evaluate.every=10", "held_out.limit=64"],
        warm_up=["control.steps=340", "train.decay_steps=340", "control.groups_per_step=64"],
        runs=tmp_path,
    )
    told = re.fullmatch(r"demo: reward (\S+) -> (\S+) in \d+ s, staleness max (\d) \(bound 4\)", line)
    assert told, line
    first, last, stalest = map(float, told.groups())
    assert first <= 0.4
    assert last >= first + 0.3
    assert stalest <= 4
    agents = read_steps(tmp_path / "calculator" / "metrics.jsonl")[-1].agents
    assert agents is not None
    assert set(agents.sessions) == {"ok"}
    assert not agents.forks, "openai-agents only adds to a conversation, so that each member is one sample"
    assert agents.turns_mean > 1.5, "it calls, and then it answers"
