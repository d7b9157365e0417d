"""Rows from whatever the user calls a dataset.

Promises plain dicts in the source's own order, at least one of them. Knows nothing of tokenizers or tasks: which
columns mean what is decided in `tasks.py`. Each kind of source has its file, so only what is used is imported.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from freerun.core import DataError, FreerunError
from freerun.core.options import with_options
from freerun.core.resolve import Found, Kind
from freerun.core.traces import describe
from freerun.data.config import DataConfig
from freerun.data.files import read_path
from freerun.data.rows import Row
from freerun.data.seeds import count_seeds

HUB = "hub:"
REASONING_GYM = "reasoning-gym:"
VERIFIERS = "verifiers:"
SEEDS = "seeds:"
SOURCES = Kind("data source", "FUNCTION", "freerun.sources")
STEM = re.compile(r"(\.jsonl|\.jsonl\.gz|\.parquet)$")


@dataclass(frozen=True, slots=True)
class Source:
    """The rows, what to call them, and the columns that matter."""

    stem: str
    """A short name: `tasks` of `data/tasks.jsonl`, `gsm8k` of `hub:openai/gsm8k`."""
    rows: list[Row]
    prompt_key: str
    answer_key: str


def read_source(config: DataConfig, *, for_agents: bool = False) -> Source:
    """Read the rows that `config.source` names, the first `config.limit` of them. Tasks for agents may want more than
    one prompt and one answer."""
    if "\0" in config.source:
        raise DataError("data.source holds a character of code 0, which no path may: remove it")
    if config.source.startswith(REASONING_GYM):
        from freerun.data.gym import make_entries

        name = config.source.removeprefix(REASONING_GYM)
        return _source(config, name, make_entries(name, config), prompt_key="question", answer_key="answer")
    if config.source.startswith(VERIFIERS):
        from freerun.data.tasksets import load_taskset

        name = config.source.removeprefix(VERIFIERS)
        return _source(
            config, re.sub(r".*/|@.*", "", name), load_taskset(name, config, for_agents), prompt_key="prompt"
        )
    if config.source.startswith(SEEDS):
        return _source(config, "seeds", count_seeds(config.source.removeprefix(SEEDS)))
    if found := _users_own(config.source):
        return _source(config, found.name, _rows(found, config))
    if config.options:
        raise DataError(
            "options are for reasoning-gym, verifiers and your own sources only: remove them, or change source "
            f"{config.source}"
        )
    if config.source.startswith(HUB):
        from freerun.data.hub import download

        name = config.source.removeprefix(HUB)
        return _source(config, name.rpartition("/")[2], download(name, config.subset, config.split))

    path = Path(config.source).expanduser()
    return _source(config, STEM.sub("", path.resolve().name), read_path(path, config))


def _users_own(source: str) -> Found | None:
    """A function that makes rows, named as the resolver has it, or by an entry point; None where a file is meant."""
    if source.startswith(HUB) or Path(source).expanduser().exists():
        return None
    return SOURCES.find(source) if ":" in source or SOURCES.knows(source) else None


def _rows(found: Found, config: DataConfig) -> Iterator[Row]:
    """What the user's function makes. It raising ends the run before it begins, in one line."""
    found.definition()
    function = with_options(found.load(), config.options, f"the data source {config.source}")
    try:
        for row in function():
            if not isinstance(row, dict):
                raise DataError(f"{config.source} made {row!r:.80}, and a row must be a dict")
            yield row
    except FreerunError:
        raise
    except Exception as error:
        raise DataError(f"the data source {config.source} failed: {describe(error)}") from error


def _source(
    config: DataConfig, stem: str, rows: Iterable[Row], *, prompt_key: str | None = None, answer_key: str | None = None
) -> Source:
    taken = list(islice(rows, config.limit))
    if not taken:
        raise DataError(f"{config.source} holds no rows: point source at data with at least one")
    return Source(stem, taken, prompt_key or config.prompt_key, answer_key or config.answer_key)
