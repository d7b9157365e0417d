"""Rows through the `datasets` library: from the Hugging Face hub, or from a folder it saved. The only file that
imports it."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from freerun.core import DataError
from freerun.core.text import did_you_mean
from freerun.data.rows import Row, listed


def download(name: str, subset: str | None, split: str) -> Iterator[Row]:
    """The rows of one split of a dataset on the hub (or in its local cache)."""
    datasets = _library()
    try:
        dataset = datasets.load_dataset(name, subset, split=split)
    except ConnectionError:
        raise DataError(
            f"cannot reach the Hugging Face hub for {name}: check the network, or set source to a downloaded folder"
        ) from None
    except FileNotFoundError:  # DatasetNotFoundError is one
        raise DataError(
            f"the Hugging Face hub has no dataset {name} that you may read: check the name, or run `hf auth login`"
        ) from None
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise DataError(f"cannot load hub:{name} (subset {subset}, split {split}): {_one_line(error)}") from None
    return iter(dataset)


def load_saved(folder: Path, split: str) -> Iterator[Row]:
    """The rows of what `save_to_disk` wrote: a dataset, or a dictionary of them by split."""
    datasets = _library()
    try:
        saved: Any = datasets.load_from_disk(str(folder))
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise DataError(f"{folder} is not a readable saved dataset: {_one_line(error)}") from None
    if isinstance(saved, datasets.DatasetDict):
        if split not in saved:
            raise DataError(
                f"{folder} has no split {split!r}; its splits are {listed(saved)}{did_you_mean(split, list(saved))}"
            )
        saved = saved[split]
    rows: Iterable[Row] = saved
    return iter(rows)


def _library() -> Any:
    try:
        import datasets
    except ImportError:
        raise DataError("datasets is not installed: pip install 'freerun[datasets]'") from None
    return datasets


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
