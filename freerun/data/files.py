"""Rows from local files and folders: JSON lines, parquet, and what `datasets` saved to disk.

A folder holds either a saved `datasets` dataset or files whose names tell their split, as repositories on the hub do:
`train.jsonl`, `data/test-00000-of-00002.parquet`. Files that name no split at all are the split `train`.
"""

import gzip
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from freerun.core import DataError
from freerun.core.text import did_you_mean
from freerun.data.config import DataConfig
from freerun.data.rows import Row, listed

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")
SPLIT_WORDS = ("train", "validation", "valid", "val", "dev", "test", "eval")


def read_path(path: Path, config: DataConfig) -> Iterator[Row]:
    if not path.exists():
        here = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(f"there is no {path} (from {Path.cwd()}){did_you_mean(path.name, here)}")
    if path.is_dir():
        return read_folder(path, config)
    if config.subset is not None:
        raise DataError(f"subset {config.subset!r} has no meaning for the single file {path}: remove it")
    return read_file(path)


def read_folder(folder: Path, config: DataConfig) -> Iterator[Row]:
    if config.subset is not None:
        subsets = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
        if config.subset not in subsets:
            raise DataError(
                f"{folder} has no subset {config.subset!r}; its folders are {listed(subsets)}"
                f"{did_you_mean(config.subset, subsets)}"
            )
        folder = folder / config.subset
    if (folder / "state.json").exists() or (folder / "dataset_dict.json").exists():
        from freerun.data.hub import load_saved

        return load_saved(folder, config.split)
    files = _files_of_split(folder, config.split)
    _refuse_several(folder, files)
    return (row for file in files for row in read_file(file))


def read_file(path: Path) -> Iterator[Row]:
    if path.name.endswith(".parquet"):
        return _read_parquet(path)
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        return _read_jsonl(path)
    raise DataError(f"{path} is not one of {', '.join(SUFFIXES)}: convert it, or point source at a folder")


def _files_of_split(folder: Path, split: str) -> list[Path]:
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.name.endswith(SUFFIXES))
    if not files:
        raise DataError(f"{folder} holds no {', '.join(SUFFIXES)} file and no saved dataset")
    names = {file: file.relative_to(folder).as_posix().lower() for file in files}
    matching = [file for file in files if _mentions(names[file], split.lower())]
    if matching:
        return matching
    splits = [word for word in SPLIT_WORDS if any(_mentions(name, word) for name in names.values())]
    if split == "train" and not splits:
        return files
    found = f"its splits are {listed(splits)}" if splits else "its files name no split, so they are the split train"
    raise DataError(f"{folder} has no split {split!r}; {found}")


def _refuse_several(folder: Path, files: list[Path]) -> None:
    """More than one dataset, or one in two formats: every task would be there twice."""
    tops = {file.relative_to(folder).parts[0] for file in files if file.parent != folder}
    subsets = sorted(top for top in tops if top != "data" and not any(_mentions(top.lower(), w) for w in SPLIT_WORDS))
    if len(subsets) > 1:
        raise DataError(f"{folder} holds several datasets, {listed(subsets)}: set subset to one of them")
    seen: dict[str, Path] = {}
    for file in files:
        whole = str(file).removesuffix(".gz").rpartition(".")[0]
        if other := seen.get(whole):
            raise DataError(
                f"{folder} holds {file.name} and {other.name}, the same twice: make source one of the files"
            )
        seen[whole] = file


def _mentions(name: str, word: str) -> bool:
    """Whether `data/train-00000.parquet` names the split `train` (and `training.jsonl` does not)."""
    return re.search(rf"(?<![a-z0-9]){re.escape(word)}(?![a-z0-9])", name) is not None


def _read_jsonl(path: Path) -> Iterator[Row]:
    number = 0
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _parse_line(line, path, number)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"{path}:{number + 1}: cannot be read: {error}") from None


def _parse_line(line: str, path: Path, number: int) -> Row:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{number}: not valid JSON: {error.msg} at column {error.colno}") from None
    except ValueError:
        most = sys.get_int_max_str_digits()
        raise DataError(f"{path}:{number}: a number of more than {most} digits: write it as text") from None
    except RecursionError:
        raise DataError(f"{path}:{number}: lists or objects nested too deeply: write them as text") from None
    if not isinstance(row, dict):
        raise DataError(f"{path}:{number}: a line must be a JSON object, this one is a {type(row).__name__}")
    return row


def _read_parquet(path: Path) -> Iterator[Row]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise DataError(
            f"{path}: pyarrow, which reads parquet, is not installed: pip install 'freerun[datasets]'"
        ) from None
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=4096):
                yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a readable parquet file: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
