"""Every dataset of the installed reasoning-gym can be made by name, and judged by its own scorer."""

import json
from typing import Any

import pytest
from reasoning_gym.factory import DATASETS

from freerun.core import Task
from freerun.data.config import DataConfig
from freerun.data.gym import make_entries
from freerun.rewards.gym import reasoning_gym

NO_GOLD = {
    "boxnet": None,
    "rush_hour": None,
    "graph_color": "possible_answer",
    "propositional_logic": "example_answer",
    "rubiks_cube": "example_correct_answer",
}
"""Datasets whose entries have no answer, and where in the metadata there is one that their scorers accept, if
anywhere."""
OPTIONS: dict[str, Any] = {"composite": {"datasets": [{"name": "chain_sum"}, {"name": "leg_counting", "weight": 2}]}}
"""Datasets that cannot be made without options."""

LENIENT = {"game_of_life_halting"}
"""Its scorer takes whatever is not True for False."""


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_it_scores_its_own_answer(name: str) -> None:
    source = DataConfig(source=f"reasoning-gym:{name}", limit=2, options={**OPTIONS.get(name, {}), "seed": 3})
    for row in make_entries(name, source):
        extra = json.loads(json.dumps(row, default=str))  # as data/ leaves it
        task = Task("t", row["question"], [], None, extra)
        gold = row["answer"]
        if name in NO_GOLD:
            assert gold is None
            gold = row["metadata"].get(NO_GOLD[name])
            gold = json.dumps(gold) if isinstance(gold, dict) else gold
        if gold is not None:
            assert reasoning_gym(task, gold) == 1
            assert reasoning_gym(task, f"<think>hm</think> So <answer>{gold}</answer>") == 1
        if name not in LENIENT:
            assert 0 <= reasoning_gym(task, "I give up") < 0.2
