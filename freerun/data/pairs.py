"""Preference pairs: rows of a prompt, a chosen and a rejected answer, as `freerun dpo` learns from them.

An answer is text, or a list of chat messages: the assistant's one message, with or without the prompt's before it.
Where both answers are whole conversations the row needs no prompt: it is all that comes before the last message.

A pair becomes a task whose answer is the chosen one; the rejected one is under `REJECTED` in its `extra`.
"""

from dataclasses import replace
from typing import Any

from freerun.core import DataError, Task
from freerun.data.config import DataConfig
from freerun.data.rows import Row, listed
from freerun.data.sources import Source, read_source
from freerun.data.tasks import InParts, Tokenizer, at_once, column, ids, tasks_of

CHOSEN, REJECTED = "chosen", "rejected"
"""The columns of the answers."""


def load_pairs(config: DataConfig, tokenizer: Tokenizer, in_parts: InParts = at_once) -> list[Task]:
    """The pairs of `config.source`, in the source's order."""
    source = read_source(config)
    named = list(zip(ids(source), source.rows, strict=True))
    pairs = replace(source, rows=[_pair(source, id, row) for id, row in named])
    return tasks_of(pairs, config, tokenizer, needs_answer=True, in_parts=in_parts)


def _pair(source: Source, id: str, row: Row) -> Row:
    """A row of prompt and answer, as other tasks are made of."""
    chosen, rejected = (_given(id, row, key) for key in (CHOSEN, REJECTED))
    if (prompt := row.get(source.prompt_key)) is None:
        if not (isinstance(chosen, list) and isinstance(rejected, list)):
            column(source, id, row, source.prompt_key, "prompt_key")
            raise DataError(f'task {id} has nothing under "{source.prompt_key}": give the prompt there')
        if chosen[:-1] != rejected[:-1]:
            raise DataError(f"task {id}: its two conversations differ before their last message: give the prompt apart")
        prompt = chosen[:-1]
    better, worse = _answer(id, CHOSEN, chosen, prompt), _answer(id, REJECTED, rejected, prompt)
    kept = {key: value for key, value in row.items() if key != CHOSEN}
    return kept | {"id": id, source.prompt_key: prompt, source.answer_key: better, REJECTED: worse}


def _given(id: str, row: Row, key: str) -> Any:
    if row.get(key) is None:
        raise DataError(f'task {id} has no "{key}"; its keys are {listed(row)}: a pair has "chosen" and "rejected"')
    return row[key]


def _answer(id: str, key: str, given: Any, prompt: Any) -> str:
    """What the policy is to say, or not to say."""
    if isinstance(given, str):
        return given
    if not isinstance(given, list) or not all(isinstance(message, dict) for message in given):
        raise DataError(f'task {id}: "{key}" is text or a list of messages, this one is {type(given).__name__}')
    asked = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
    said = given[len(asked) :] if given[: len(asked)] == asked else given
    if len(said) != 1 or said[0].get("role") != "assistant" or not isinstance(said[0].get("content"), str):
        raise DataError(
            f'task {id}: "{key}" must be one message of the assistant behind the prompt, with text as its content; it '
            f"has {len(said)}: put the other messages into the prompt"
        )
    return str(said[0]["content"])
