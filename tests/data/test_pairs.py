"""Preference pairs from rows: texts and messages, and what is no pair."""

import json
from pathlib import Path
from typing import Any

import pytest

from freerun.core import DataError, Task
from freerun.data.config import DataConfig
from freerun.data.pairs import REJECTED, load_pairs


class Letters:
    """A token for each character."""

    def __init__(self, chat_template: str | None = None) -> None:
        self.chat_template = chat_template

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord(letter) for letter in text]

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        return "".join(f"<{one['role']}>{one['content']}" for one in conversation) + "<assistant>"


def loaded(folder: Path, *rows: dict[str, Any], chat: bool = False, **config: Any) -> list[Task]:
    file = folder / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_pairs(DataConfig(source=str(file), **config), Letters("a template" if chat else None))


def refusal(folder: Path, row: dict[str, Any], chat: bool = True) -> str:
    with pytest.raises(DataError) as refused:
        loaded(folder, row, chat=chat)
    assert "\n" not in str(refused.value)
    return str(refused.value)


USER = {"role": "user", "content": "hello"}
GOOD, BAD = {"role": "assistant", "content": "good"}, {"role": "assistant", "content": "bad"}


def test_texts_are_pairs(tmp_path: Path) -> None:
    (task,) = loaded(tmp_path, {"prompt": "a>", "chosen": "b", "rejected": "c", "source": "me"})
    assert (task.prompt, task.answer, task.extra[REJECTED], task.extra["source"]) == ("a>", "b", "c", "me")
    assert task.prompt_tokens == [ord("a"), ord(">")]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "hello", "chosen": "good", "rejected": "bad"},
        {"prompt": [USER], "chosen": "good", "rejected": "bad"},
        {"prompt": "hello", "chosen": [GOOD], "rejected": [BAD]},
        {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
        {"prompt": "hello", "chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"prompt": [USER], "chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
    ],
)
def test_messages_say_the_same_as_texts(tmp_path: Path, row: dict[str, Any]) -> None:
    (task,) = loaded(tmp_path, row, chat=True)
    assert (task.prompt, task.answer, task.extra[REJECTED]) == ("<user>hello<assistant>", "good", "bad")


def test_a_conversation_of_several_turns_is_the_prompt_of_its_last_answer(tmp_path: Path) -> None:
    talk = [USER, {"role": "assistant", "content": "yes?"}, {"role": "user", "content": "go on"}]
    (task,) = loaded(tmp_path, {"chosen": [*talk, GOOD], "rejected": [*talk, BAD]}, chat=True)
    assert task.prompt == "<user>hello<assistant>yes?<user>go on<assistant>"
    assert task.answer == "good"


def test_what_is_no_pair_is_said_in_a_line(tmp_path: Path) -> None:
    assert 'pairs:0 has no "rejected"; its keys are "prompt", "chosen"' in refusal(
        tmp_path, {"prompt": "a", "chosen": "b"}
    )
    assert 'has no "prompt"' in refusal(tmp_path, {"chosen": "b", "rejected": "c"})
    other = {"role": "user", "content": "other"}
    assert "differ before their last message" in refusal(tmp_path, {"chosen": [USER, GOOD], "rejected": [other, BAD]})
    assert "one message of the assistant" in refusal(tmp_path, {"prompt": "x", "chosen": [GOOD, USER], "rejected": "b"})
    assert "one message of the assistant" in refusal(tmp_path, {"prompt": "x", "chosen": [USER], "rejected": "b"})
    assert "is text or a list of messages, this one is int" in refusal(
        tmp_path, {"prompt": "x", "chosen": 3, "rejected": "b"}
    )
    assert "prompt is a list of messages, but the tokenizer has no chat template" in refusal(
        tmp_path, {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]}, chat=False
    )
