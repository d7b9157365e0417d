import datetime
import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from freerun.core import DataError
from freerun.data.config import DataConfig
from freerun.data.sources import read_source

ROWS = [{"prompt": "what is 1 + 1", "answer": "2"}, {"prompt": "hello", "answer": "hi"}]

Jsonl = Callable[..., str]


def rows_of(source: object, **knobs: Any) -> list[dict[str, Any]]:
    return read_source(DataConfig(source=str(source), **knobs)).rows


def message_of(source: object, **knobs: Any) -> str:
    with pytest.raises(DataError) as caught:
        rows_of(source, **knobs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_json_lines_skip_blank_lines(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text("\n".join(json.dumps(row) + "\n" for row in ROWS))
    assert rows_of(tmp_path / "tasks.jsonl") == ROWS


def test_compressed_json_lines(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "tasks.jsonl.gz", "wt") as file:
        file.write("".join(json.dumps(row) + "\n" for row in ROWS))
    source = read_source(DataConfig(source=str(tmp_path / "tasks.jsonl.gz")))
    assert (source.stem, source.rows) == ("tasks", ROWS)


def test_parquet(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hello"}]
    rows = [{"prompt": messages, "answer": "hi", "day": datetime.date(2026, 1, 2)}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    assert rows_of(tmp_path / "x.parquet") == rows


def test_limit_takes_the_first(jsonl: Jsonl) -> None:
    assert rows_of(jsonl(*ROWS), limit=1) == ROWS[:1]


def test_folder_saved_by_datasets(tmp_path: Path) -> None:
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "one")
    assert rows_of(tmp_path / "one") == ROWS


def test_folder_of_splits_saved_by_datasets(tmp_path: Path) -> None:
    test = datasets.Dataset.from_list(ROWS[1:])
    datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS), "test": test}).save_to_disk(tmp_path / "both")
    assert rows_of(tmp_path / "both", split="test") == ROWS[1:]
    assert 'its splits are "train", "test"; did you mean test?' in message_of(tmp_path / "both", split="tests")


def test_folder_of_files_is_split_by_their_names(tmp_path: Path, jsonl: Jsonl) -> None:
    jsonl(ROWS[0], name="set/data/train-0.jsonl")
    jsonl(ROWS[1], name="set/data/train-1.jsonl")
    jsonl(ROWS[1], name="set/data/test.jsonl")
    assert rows_of(tmp_path / "set") == ROWS
    assert rows_of(tmp_path / "set", split="test") == ROWS[1:]
    assert 'its splits are "train", "test"' in message_of(tmp_path / "set", split="validation")


def test_files_that_name_no_split_are_train(tmp_path: Path, jsonl: Jsonl) -> None:
    jsonl(ROWS[0], name="set/a.jsonl")
    jsonl(ROWS[1], name="set/training.jsonl")
    assert rows_of(tmp_path / "set") == ROWS
    assert "they are the split train" in message_of(tmp_path / "set", split="test")


def test_subset_is_a_folder(tmp_path: Path, jsonl: Jsonl) -> None:
    jsonl(ROWS[0], name="set/easy/train.jsonl")
    jsonl(ROWS[1], name="set/hard/train.jsonl")
    assert rows_of(tmp_path / "set", subset="hard") == ROWS[1:]
    assert "did you mean hard?" in message_of(tmp_path / "set", subset="hart")
    assert "no meaning for the single file" in message_of(tmp_path / "set/easy/train.jsonl", subset="easy")


def test_several_datasets_in_a_folder_are_not_mixed(tmp_path: Path) -> None:
    for name in ("main/train.jsonl", "socratic/train.jsonl", "main/test.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"prompt": "1"}\n')
    with pytest.raises(DataError, match='holds several datasets, "main", "socratic": set subset to one of them'):
        read_source(DataConfig(source=str(tmp_path)))
    assert len(read_source(DataConfig(source=str(tmp_path), subset="main")).rows) == 1
    assert len(read_source(DataConfig(source=str(tmp_path), split="test")).rows) == 1
    (tmp_path / "main" / "train.parquet").write_text("")
    with pytest.raises(DataError, match=r"train\.parquet and train\.jsonl, the same twice"):
        read_source(DataConfig(source=str(tmp_path / "main")))


def test_a_missing_file_names_its_neighbour(jsonl: Jsonl) -> None:
    assert "did you mean tasks.jsonl?" in message_of(jsonl(*ROWS).replace("tasks", "task"))


def test_bad_json_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": \n')
    assert message_of(path).startswith(f"{path}:2: not valid JSON")
    path.write_text('{"prompt": "a"}\n[1]\n')
    assert message_of(path) == f"{path}:2: a line must be a JSON object, this one is a list"


def test_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "a.jsonl.gz").write_bytes(b"not gzip")
    (tmp_path / "a.parquet").write_bytes(b"not parquet")
    (tmp_path / "a.csv").write_text("prompt,answer")
    assert "a.jsonl:1: cannot be read" in message_of(tmp_path / "a.jsonl")
    assert "a.jsonl.gz:1: cannot be read" in message_of(tmp_path / "a.jsonl.gz")
    assert "not a readable parquet file" in message_of(tmp_path / "a.parquet")
    assert "is not one of .jsonl, .jsonl.gz, .parquet" in message_of(tmp_path / "a.csv")


def test_empty_data(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "folder").mkdir()
    assert "holds no rows" in message_of(tmp_path / "empty.jsonl")
    assert "no saved dataset" in message_of(tmp_path / "folder")


def test_reasoning_gym_entries_are_whole_and_repeatable() -> None:
    knobs: dict[str, Any] = {"limit": 3, "options": {"min_terms": 2, "max_terms": 2, "seed": 7}}
    source = read_source(DataConfig(source="reasoning-gym:chain_sum", **knobs))
    assert (source.stem, source.prompt_key, len(source.rows)) == ("chain_sum", "question", 3)
    assert source.rows == rows_of("reasoning-gym:chain_sum", **knobs)
    assert source.rows != rows_of("reasoning-gym:chain_sum", **{**knobs, "options": {**knobs["options"], "seed": 8}})
    assert source.rows[2]["reasoning_gym"] == "chain_sum"
    assert source.rows[2]["reasoning_gym_index"] == 2
    assert source.rows[2]["reasoning_gym_options"] == {"min_terms": 2, "max_terms": 2, "seed": 7, "size": 3}
    assert source.rows[2]["metadata"]["num_terms"] == 2


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("chain_sums", {}, 'no dataset "chain_sums"; did you mean chain_sum?'),
        ("chain_sum", {"min_term": 2}, 'no option "min_term"; did you mean min_terms?'),
        ("chain_sum", {"size": 2}, "set limit instead of options.size"),
        ("chain_sum", {"min_terms": 9, "max_terms": 2}, "refuses its options"),
        ("chain_sum", {"min_terms": "two"}, "refuses its options"),
    ],
)
def test_reasoning_gym_mistakes(name: str, options: dict[str, Any], message: str) -> None:
    assert message in message_of(f"reasoning-gym:{name}", options=options)


def test_options_elsewhere_are_refused(jsonl: Jsonl) -> None:
    assert "options are for reasoning-gym, verifiers and your own sources only" in message_of(
        jsonl(*ROWS), options={"min_terms": 2}
    )


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        (ConnectionError("Couldn't reach 'a/b' on the Hub"), "cannot reach the Hugging Face hub for a/b"),
        (datasets.exceptions.DatasetNotFoundError("gated"), "has no dataset a/b that you may read"),
        (ValueError('Unknown split "x".\nShould be one of ["train"].'), 'Unknown split "x". Should be one of'),
        (datasets.exceptions.DatasetGenerationError(), "DatasetGenerationError"),
    ],
)
def test_hub_failures(monkeypatch: pytest.MonkeyPatch, raised: Exception, message: str) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    assert message in message_of("hub:a/b")


def test_hub_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, subset: str | None, *, split: str) -> Any:
        assert (name, subset, split) == ("org/name", "main", "test")
        return datasets.Dataset.from_list(ROWS)

    monkeypatch.setattr(datasets, "load_dataset", load)
    source = read_source(DataConfig(source="hub:org/name", subset="main", split="test", limit=1))
    assert (source.stem, source.rows) == ("name", ROWS[:1])


def test_a_library_that_is_missing_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "x.parquet")
    for name in ("datasets", "pyarrow", "pyarrow.parquet", "reasoning_gym", "verifiers.v1"):
        monkeypatch.setitem(sys.modules, name, None)
    for source, library, extra in (
        ("hub:openai/gsm8k", "datasets", "datasets"),
        (tmp_path / "saved", "datasets", "datasets"),
        (tmp_path / "x.parquet", "pyarrow", "datasets"),
        ("reasoning-gym:chain_sum", "reasoning-gym", "reasoning-gym"),
        ("verifiers:gsm8k", "verifiers", "verifiers"),
    ):
        message = message_of(source)
        assert library in message
        assert message.endswith(f"is not installed: pip install 'freerun[{extra}]'")
