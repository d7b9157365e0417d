"""Entries of a reasoning-gym dataset as rows. The only file of this room that imports reasoning-gym.

A row is the whole entry (question, answer, metadata) and, under `reasoning_gym*` keys, what it takes to make the same
entry again: the judge does so, because some scorers compare tuples or integer keys, which JSON does not keep, and
others depend on the dataset's options.
"""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from freerun.core import DataError
from freerun.core.text import did_you_mean
from freerun.data.config import DataConfig
from freerun.data.rows import Row


def make_entries(name: str, config: DataConfig) -> Iterator[Row]:
    options = {"seed": 0, **config.options}
    if config.limit is not None:
        options["size"] = config.limit
    dataset = _create(name, config.options, options)
    for index in range(len(dataset)):
        yield {
            **dataset[index],
            "reasoning_gym": name,
            "reasoning_gym_options": options,
            "reasoning_gym_index": index,
        }


def _create(name: str, given: dict[str, Any], options: dict[str, Any]) -> Any:
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError:
        raise DataError("reasoning-gym is not installed: pip install 'freerun[reasoning-gym]'") from None
    if name not in DATASETS:
        raise DataError(f'reasoning-gym has no dataset "{name}"{did_you_mean(name, DATASETS)}')
    known = [field.name for field in fields(DATASETS[name][1])]
    for option in given:
        if option == "size":
            raise DataError("set limit instead of options.size")
        if option not in known:
            raise DataError(f'reasoning-gym:{name} has no option "{option}"{did_you_mean(option, known)}')
    try:
        if name == "composite":
            options = {**options, "datasets": _parts(options.get("datasets", []))}
        return reasoning_gym.create_dataset(name, **options)
    except (AssertionError, AttributeError, TypeError, ValueError) as error:  # what its validators raise
        raise DataError(f"reasoning-gym:{name} refuses its options: {error}") from None


def _parts(datasets: list[dict[str, Any]]) -> list[Any]:
    """The parts of a composite, as YAML can write them: [{name: chain_sum, weight: 2, config: {min_terms: 3}}]."""
    from reasoning_gym.composite import DatasetSpec

    return [DatasetSpec(**{"weight": 1.0, "config": {}, **part}) for part in datasets]
