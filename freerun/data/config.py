"""The `data` section: where tasks come from and how a row becomes a prompt."""

from typing import Any, Literal

from freerun.core.section import Section, knob


class DataConfig(Section):
    source: str = knob(
        ...,
        "A .jsonl or .parquet file, a dataset's folder, hub:ORG/NAME, reasoning-gym:NAME, verifiers:TASKSET, "
        "seeds:COUNT for environments that need no more, or a function of your own that makes rows: "
        "path/to/file.py:function or package.module:function.",
        min_length=1,
    )
    split: str = knob("train", "Which split of a folder or hub dataset to read.")
    subset: str | None = knob(None, "Which configuration of a hub dataset, or sub-folder of a folder, to read.")
    prompt_key: str = knob("prompt", "The column of the prompt: text, or a list of chat messages.")
    answer_key: str = knob("answer", "The column of the reference answer.")
    chat: Literal["auto", "always", "never"] = knob(
        "auto", "Whether prompts go through the tokenizer's chat template; auto: when it has one."
    )
    system: str | None = knob(None, "A system message for every prompt that does not bring its own.")
    options: dict[str, Any] = knob(
        {}, "Options of the reasoning-gym dataset (its seed is one), verifiers taskset or function, by its own names."
    )
    limit: int | None = knob(None, "Take the first so many tasks (reasoning-gym: make so many).", ge=1)
    shuffle: bool = knob(True, "Take the tasks of each epoch in a new order.")
    max_prompt_tokens: int = knob(1024, "The longest prompt accepted, in tokens.", ge=1)
