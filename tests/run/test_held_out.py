"""Held-out tasks that are trained on, too: told apart by their prompts, or by what an environment is given."""

from typing import Any

import pytest

from freerun.core import Task
from freerun.run.prepare import Prepared


def warning(tasks: list[Task], held_out: list[Task]) -> str | None:
    unused: Any = None
    return Prepared(unused, unused, unused, unused, tasks, held_out).held_out_warning


def seeds(*given: int) -> list[Task]:
    return [Task(f"seeds:{place}", "", [], None, {"id": f"{place}", "seed": seed}) for place, seed in enumerate(given)]


@pytest.mark.parametrize(
    ("tasks", "held_out", "again"),
    [
        (seeds(1, 2), seeds(3, 4), 0),
        (seeds(1, 2), seeds(4, 3, 2), 1),
        ([Task("a", "What?", [])], [Task("b", "What?", []), Task("c", "Who?", [])], 1),
        ([Task("a", "x", [1, 2])], [Task("b", "x", [1, 2]), Task("c", "x", [1])], 1),
    ],
)
def test_a_task_is_what_is_asked(tasks: list[Task], held_out: list[Task], again: int) -> None:
    said = warning(tasks, held_out)
    assert said is None if again == 0 else said is not None and said.startswith(f"{again} of the {len(held_out)} held")
