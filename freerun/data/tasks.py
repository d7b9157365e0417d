"""Rows become tasks: the prompt rendered and tokenised once, the reference answer, and everything else for judges.

Promises that ids are unique and the same on every load, that every prompt fits `max_prompt_tokens`, and that `extra`
survives JSON. Knows nothing of order: that is `stream.py`.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from freerun.core import DataError, Task
from freerun.core.text import did_you_mean
from freerun.data.config import DataConfig
from freerun.data.rows import Row, listed
from freerun.data.sources import Source, read_source

Message = dict[str, str]
Named = tuple[str, Row]
"""A row and its task's id."""
InParts = Callable[[Callable[[Sequence[Named]], list[Task]], Sequence[Named]], Iterable[list[Task]]]
"""Calls the function with some rows after others, in whatever processes, and has what it returns in their order."""


class Tokenizer(Protocol):
    """The methods of a tokenizer that are used; those of transformers' fast tokenizers."""

    @property
    def chat_template(self) -> Any: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def apply_chat_template(
        self, conversation: list[Message], *, tokenize: bool, add_generation_prompt: bool
    ) -> Any: ...


def at_once(make: Callable[[Sequence[Named]], list[Task]], rows: Sequence[Named]) -> Iterable[list[Task]]:
    return [make(rows)]


def load_tasks(
    config: DataConfig,
    tokenizer: Tokenizer,
    *,
    needs_answer: bool = False,
    needs_prompt: bool = True,
    in_parts: InParts = at_once,
) -> list[Task]:
    """The tasks of `config.source` in the source's order.

    With `needs_answer` (supervised training, where the answer is the text to learn) a task without one is an error; so
    is a row without the column that `answer_key` names, unless it is the usual one, which not all data has.

    Without `needs_prompt` (agents, who say themselves what the policy sees) a row may have no prompt, and one that has
    is not rendered: `prompt` is the row's own text, `messages` its messages, and there are no tokens.
    """
    source = read_source(config, for_agents=not needs_prompt)
    return tasks_of(source, config, tokenizer, needs_answer=needs_answer, needs_prompt=needs_prompt, in_parts=in_parts)


def tasks_of(
    source: Source,
    config: DataConfig,
    tokenizer: Tokenizer,
    *,
    needs_answer: bool = False,
    needs_prompt: bool = True,
    in_parts: InParts = at_once,
) -> list[Task]:
    """The same of rows that have been read."""

    def made(rows: Sequence[Named]) -> list[Task]:
        return _made(rows, source, config, tokenizer, needs_answer, needs_prompt)

    named = list(zip(ids(source), source.rows, strict=True))
    return [task for part in in_parts(made, named) for task in part]


def _made(
    rows: Sequence[Named],
    source: Source,
    config: DataConfig,
    tokenizer: Tokenizer,
    needs_answer: bool,
    needs_prompt: bool,
) -> list[Task]:
    answer_expected = needs_answer or config.answer_key != DataConfig.model_fields["answer_key"].default
    tasks = []
    for id, row in rows:
        if needs_prompt:
            given = column(source, id, row, source.prompt_key, "prompt_key")
            messages = _messages(id, given, config.system) if _uses_chat(config, tokenizer) else []
            prompt, tokens = _render(id, given, messages, config, tokenizer)
        else:
            given = _prompt_of_agent(source, id, row)
            messages = _messages(id, given, config.system) if given else _system(config.system)
            prompt, tokens = as_text(given), []
        if answer_expected and source.answer_key not in row:
            column(source, id, row, source.answer_key, "answer_key")
        answer = _answer(row.get(source.answer_key))
        if needs_answer and answer is None:
            raise DataError(f'task {id} has no answer to learn from: give it one under "{source.answer_key}"')
        extra = _extra(source, row)
        if prompt != as_text(given):
            extra.setdefault("prompt", as_text(given))  # judges want it without the template around it
        several = messages if len(messages) > 1 or not (given or tokens) else []
        tasks.append(Task(id, prompt, tokens, answer, extra, several))
    return tasks


def tasks_to_judge(source: Source) -> list[Task]:
    """Tasks without tokens: to judge answers, prompts need not be rendered, nor fit anything, nor exist."""
    tasks = []
    for id, row in zip(ids(source), source.rows, strict=True):
        prompt, answer = row.get(source.prompt_key, ""), _answer(row.get(source.answer_key))
        tasks.append(Task(id, as_text(prompt), [], answer, _extra(source, row)))
    return tasks


def as_text(value: Any) -> str:
    """A text, or the contents of a list of messages."""
    if isinstance(value, list) and all(isinstance(message, dict) for message in value):
        return "\n\n".join(str(message.get("content", "")) for message in value)
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def ids(source: Source) -> list[str]:
    """The rows' own ids when every row has one and no two are alike, else the place in the source."""
    own = [str(row["id"]) for row in source.rows if row.get("id") is not None]
    if len(set(own)) == len(source.rows):
        return own
    return [f"{source.stem}:{index}" for index in range(len(source.rows))]


def column(source: Source, id: str, row: Row, key: str, knob: str) -> Any:
    """What the row has there. `knob` is the setting that names the column."""
    if key not in row:
        raise DataError(
            f'task {id} has no "{key}"; its keys are {listed(row)}: set {knob} to one of them{did_you_mean(key, row)}'
        )
    return row[key]


def _prompt_of_agent(source: Source, id: str, row: Row) -> Any:
    """A name that was set for the prompt's column must be there; the usual one need not."""
    if source.prompt_key == DataConfig.model_fields["prompt_key"].default:
        return row.get(source.prompt_key) or ""
    return column(source, id, row, source.prompt_key, "prompt_key") or ""


def _answer(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, default=str, ensure_ascii=False)


def _extra(source: Source, row: Row) -> dict[str, Any]:
    """All other columns as JSON holds them (every column of a reasoning-gym entry); what JSON lacks becomes text."""
    whole = "reasoning_gym" in row
    kept = {key: row[key] for key in row if whole or key not in (source.prompt_key, source.answer_key)}
    extra: dict[str, Any] = json.loads(json.dumps(kept, default=str))
    return extra


def _render(
    id: str, prompt: Any, messages: list[Message], config: DataConfig, tokenizer: Tokenizer
) -> tuple[str, list[int]]:
    """The text and the tokens that the policy sees. Without messages, there is no chat template to apply."""
    text = _apply_template(id, messages, tokenizer) if messages else _plain(id, prompt, config)
    try:
        tokens = tokenizer.encode(text, add_special_tokens=not messages)  # a template writes its own
    except (UnicodeError, TypeError):
        raise DataError(f"task {id} has half a character (a lone surrogate) in its prompt: repair the text") from None
    if not tokens:
        raise DataError(f"task {id} has an empty prompt: give it some text, or remove the row")
    if len(tokens) > config.max_prompt_tokens:
        raise DataError(
            f"task {id} has a prompt of {len(tokens)} tokens: "
            f"raise max_prompt_tokens (now {config.max_prompt_tokens}), or remove the row"
        )
    return text, tokens


def _uses_chat(config: DataConfig, tokenizer: Tokenizer) -> bool:
    if config.chat == "always" and not tokenizer.chat_template:
        raise DataError(
            "chat is always, but the tokenizer has no chat template: set chat to never, or use a chat model"
        )
    return config.chat != "never" and bool(tokenizer.chat_template)


def _messages(id: str, prompt: Any, system: str | None) -> list[Message]:
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    if not isinstance(prompt, list) or not prompt:
        raise DataError(f"task {id}: a prompt is text or a list of messages, this one is {_kind(prompt)}")
    for message in prompt:
        if not (isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))):
            raise DataError(f'task {id}: each message of a prompt needs the texts "role" and "content"')
    return prompt if prompt[0]["role"] == "system" else [*_system(system), *prompt]


def _system(system: str | None) -> list[Message]:
    return [] if system is None else [{"role": "system", "content": system}]


def _apply_template(id: str, messages: list[Message], tokenizer: Tokenizer) -> str:
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # jinja's own, or what a broken template leads Python to
        said = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(
            f"task {id}: the tokenizer's chat template refuses the prompt ({said}): correct one of them, or set chat "
            "to never and give prompts as text"
        ) from None


def _plain(id: str, prompt: Any, config: DataConfig) -> str:
    reason = "chat is never" if config.chat == "never" else "the tokenizer has no chat template"
    if isinstance(prompt, list):
        raise DataError(
            f"task {id}: its prompt is a list of messages, but {reason}: give it as text, or use a chat model"
        )
    if not isinstance(prompt, str):
        raise DataError(f"task {id}: a prompt is text or a list of messages, this one is {_kind(prompt)}")
    if config.system is not None:
        raise DataError(f"system needs a chat template, but {reason}: remove it, or put it into the prompts")
    return prompt


def _kind(value: Any) -> str:
    return "empty" if value is None or value == [] else f"of type {type(value).__name__}"
