"""Tasks of environments: seeds, and rows without a prompt."""

from collections.abc import Callable
from typing import Any

import pytest

from freerun.core import DataError, Task
from freerun.data.config import DataConfig
from freerun.data.stream import TaskStream
from freerun.data.tasks import load_tasks

Jsonl = Callable[..., str]


def agents_tasks(config: DataConfig, tokenizer: Any) -> list[Task]:
    return load_tasks(config, tokenizer, needs_prompt=False)


def test_seeds_are_rows_without_a_prompt(plain: Any) -> None:
    tasks = agents_tasks(DataConfig(source="seeds:3"), plain)
    assert tasks[2] == Task("seeds:2", "", [], None, {"id": "seeds:2", "seed": 2})
    assert [task.extra["seed"] for task in tasks] == [0, 1, 2]


def test_a_range_of_seeds_is_apart_from_the_first(plain: Any) -> None:
    tasks = agents_tasks(DataConfig(source="seeds:4096-4099", limit=2), plain)
    assert [(task.id, task.extra["seed"]) for task in tasks] == [("seeds:4096", 4096), ("seeds:4097", 4097)]


@pytest.mark.parametrize("given", ["0", "many", "9-9", "-4", ""])
def test_no_seeds_are_refused(given: str, plain: Any) -> None:
    with pytest.raises(DataError, match="write how many, seeds:4096"):
        agents_tasks(DataConfig(source=f"seeds:{given}"), plain)


def test_without_an_agent_seeds_are_no_prompts(plain: Any) -> None:
    with pytest.raises(DataError, match='task seeds:0 has no "prompt"'):
        load_tasks(DataConfig(source="seeds:3"), plain)


def test_a_prompt_for_an_agent_is_kept_as_it_is(jsonl: Jsonl, chatty: Any) -> None:
    """Neither rendered nor bounded: the agent puts it into its own request."""
    config = DataConfig(source=jsonl({"prompt": "hello " * 5000, "answer": 2, "level": 3}), max_prompt_tokens=8)
    assert agents_tasks(config, chatty) == [Task("tasks:0", "hello " * 5000, [], "2", {"level": 3})]


def test_messages_that_the_template_refuses_reach_an_agent(jsonl: Jsonl, chatty: Any) -> None:
    said = [{"role": "user", "content": "hello"}, {"role": "tool", "content": "1"}]
    [task] = agents_tasks(DataConfig(source=jsonl({"prompt": said}), system="what"), chatty)
    assert task.messages == [{"role": "system", "content": "what"}, *said]
    assert (task.prompt, task.prompt_tokens) == ("hello\n\n1", [])


def test_an_environments_system_message_reaches_it(plain: Any) -> None:
    [task] = agents_tasks(DataConfig(source="seeds:1", system="what"), plain)
    assert (task.prompt, task.messages) == ("", [{"role": "system", "content": "what"}])


def test_a_column_that_was_named_must_be_there(jsonl: Jsonl, plain: Any) -> None:
    with pytest.raises(DataError, match='no "questoin"'):
        agents_tasks(DataConfig(source=jsonl({"question": "hello"}), prompt_key="questoin"), plain)


def test_other_columns_tell_streams_apart(jsonl: Jsonl, plain: Any) -> None:
    def fingerprint(level: int) -> str:
        tasks = agents_tasks(DataConfig(source=jsonl({"level": level})), plain)
        return TaskStream(tasks, seed=0, shuffle=False, epochs=1).fingerprint

    assert fingerprint(1) == fingerprint(1) != fingerprint(2)
