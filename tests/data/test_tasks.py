import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from freerun.core import DataError, Task
from freerun.data.config import DataConfig
from freerun.data.tasks import load_tasks

Jsonl = Callable[..., str]


def message_of(config: DataConfig, tokenizer: Any, **how: Any) -> str:
    with pytest.raises(DataError) as caught:
        load_tasks(config, tokenizer, **how)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_plain_text_gets_the_special_tokens(jsonl: Jsonl, plain: Any) -> None:
    config = DataConfig(source=jsonl({"prompt": "what is 1 + 1", "answer": 2, "level": 3}))
    assert load_tasks(config, plain) == [Task("tasks:0", "what is 1 + 1", [1, 8, 9, 6, 7, 6], "2", {"level": 3})]


def test_the_chat_template_writes_its_own_special_tokens(jsonl: Jsonl, chatty: Any) -> None:
    [task] = load_tasks(DataConfig(source=jsonl({"prompt": "hello"})), chatty)
    assert task.prompt == "<s> user : hello <s> assistant :"
    assert task.prompt_tokens == [1, 2, 5, 10, 1, 3, 5]
    assert task.extra == {"prompt": "hello"}, "for judges"


def test_chat_never_is_plain_text(jsonl: Jsonl, chatty: Any) -> None:
    [task] = load_tasks(DataConfig(source=jsonl({"prompt": "hello"}), chat="never"), chatty)
    assert (task.prompt, task.prompt_tokens) == ("hello", [1, 10])


def test_system_message_yields_to_the_prompts_own(jsonl: Jsonl, chatty: Any) -> None:
    own = [{"role": "system", "content": "1"}, {"role": "user", "content": "hello"}]
    config = DataConfig(source=jsonl({"prompt": own}, {"prompt": "hello"}), system="what")
    first, second = load_tasks(config, chatty)
    assert first.prompt == "<s> system : 1 <s> user : hello <s> assistant :"
    assert second.prompt == "<s> system : what <s> user : hello <s> assistant :"


def test_messages_from_parquet(tmp_path: Path, chatty: Any) -> None:
    rows = [{"prompt": [{"role": "user", "content": "hello"}], "answer": None}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    [task] = load_tasks(DataConfig(source=str(tmp_path / "x.parquet")), chatty)
    assert (task.id, task.prompt, task.answer) == ("x:0", "<s> user : hello <s> assistant :", None)


def test_ids_are_the_rows_own_when_unique(jsonl: Jsonl, plain: Any) -> None:
    def ids(*rows: dict[str, Any]) -> list[str]:
        return [task.id for task in load_tasks(DataConfig(source=jsonl(*rows)), plain)]

    assert ids({"prompt": "1", "id": "a"}, {"prompt": "1", "id": 7}) == ["a", "7"]
    assert ids({"prompt": "1", "id": "a"}, {"prompt": "1", "id": "a"}) == ["tasks:0", "tasks:1"]
    assert ids({"prompt": "1", "id": "tasks:1"}, {"prompt": "1"}) == ["tasks:0", "tasks:1"]


def test_extra_survives_json(tmp_path: Path, plain: Any) -> None:
    rows = [{"question": "1", "answer": [1, 2], "when": datetime.date(2026, 1, 2), "cases": [{"in": 1}]}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    [task] = load_tasks(DataConfig(source=str(tmp_path / "x.parquet"), prompt_key="question"), plain)
    assert task.answer == "[1, 2]"
    assert task.extra == {"when": "2026-01-02", "cases": [{"in": 1}]}


def test_reasoning_gym_keeps_the_whole_entry(chatty: Any) -> None:
    tasks = load_tasks(DataConfig(source="reasoning-gym:chain_sum", limit=2), chatty)
    assert [task.id for task in tasks] == ["chain_sum:0", "chain_sum:1"]
    for task in tasks:
        assert task.extra["question"] in task.prompt
        assert task.extra["answer"] == task.answer
        assert task.extra["reasoning_gym"] == "chain_sum"
        assert json.loads(json.dumps(task.extra)) == task.extra


def test_a_missing_prompt_names_the_keys_and_the_nearest(jsonl: Jsonl, plain: Any) -> None:
    config = DataConfig(source=jsonl({"promt": "1", "answer": "2"}))
    assert message_of(config, plain) == (
        'task tasks:0 has no "prompt"; its keys are "promt", "answer": '
        "set prompt_key to one of them; did you mean promt?"
    )


def test_an_answer_is_optional_unless_asked_for(jsonl: Jsonl, plain: Any) -> None:
    source = jsonl({"prompt": "1", "solution": "2"})
    assert load_tasks(DataConfig(source=source), plain)[0].answer is None
    every_key_given = DataConfig.model_validate(DataConfig(source=source).model_dump())  # as in a run's own config.yaml
    assert load_tasks(every_key_given, plain)[0].answer is None
    assert "set answer_key to one of them" in message_of(DataConfig(source=source), plain, needs_answer=True)
    assert "did you mean solution?" in message_of(DataConfig(source=source, answer_key="solutions"), plain)
    assert load_tasks(DataConfig(source=source, answer_key="solution"), plain, needs_answer=True)[0].answer == "2"
    empty = DataConfig(source=jsonl({"prompt": "1", "answer": None}))
    assert "task tasks:0 has no answer to learn from" in message_of(empty, plain, needs_answer=True)


def test_a_long_prompt_names_the_knob(jsonl: Jsonl, plain: Any) -> None:
    config = DataConfig(source=jsonl({"prompt": "1"}, {"prompt": "1 " * 9}), max_prompt_tokens=9)
    assert message_of(config, plain) == (
        "task tasks:1 has a prompt of 10 tokens: raise max_prompt_tokens (now 9), or remove the row"
    )


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (5, "this one is of type int"),
        (None, "this one is empty"),
        ([], "this one is empty"),
        (["hello"], 'each message of a prompt needs the texts "role" and "content"'),
        ([{"role": "user"}], 'each message of a prompt needs the texts "role" and "content"'),
        ([{"role": "tool", "content": "1"}], "chat template refuses the prompt (no tools here)"),
    ],
)
def test_prompts_that_cannot_be_used(jsonl: Jsonl, chatty: Any, prompt: Any, message: str) -> None:
    assert message in message_of(DataConfig(source=jsonl({"prompt": prompt})), chatty)


def test_without_a_chat_template(jsonl: Jsonl, plain: Any) -> None:
    text, messages = jsonl({"prompt": "1"}), jsonl({"prompt": [{"role": "user", "content": "1"}]}, name="m.jsonl")
    number = jsonl({"prompt": 1}, name="n.jsonl")
    assert "has no chat template: set chat to never" in message_of(DataConfig(source=text, chat="always"), plain)
    assert "system needs a chat template" in message_of(DataConfig(source=text, system="x"), plain)
    assert "list of messages, but the tokenizer has no" in message_of(DataConfig(source=messages), plain)
    assert "list of messages, but chat is never" in message_of(DataConfig(source=messages, chat="never"), plain)
    assert "this one is of type int" in message_of(DataConfig(source=number), plain)


def test_an_empty_prompt_is_refused(jsonl: Jsonl, chatty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chatty, "chat_template", "{{ messages[0].content }}")
    assert "empty prompt" in message_of(DataConfig(source=jsonl({"prompt": ""})), chatty)


def test_every_knob_has_one_line_of_help() -> None:
    for name, field in DataConfig.model_fields.items():
        assert field.description, name
        assert "\n" not in field.description, name


def test_source_is_required() -> None:
    with pytest.raises(ValidationError):
        DataConfig.model_validate({})
