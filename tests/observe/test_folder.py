import json
import math
import resource
from pathlib import Path

import pytest

from freerun.core import ConfigError, DataError, FreerunError
from freerun.observe.folder import JsonLines, RunFolder, read_lines
from freerun.observe.records import read_steps
from tests.observe.runs import a_step


def test_a_new_run_never_uses_an_old_runs_folder(tmp_path: Path) -> None:
    names = [RunFolder.create(tmp_path / "runs", "demo").path.name for _ in range(3)]
    assert names == ["demo", "demo-2", "demo-3"]


def test_an_empty_folder_of_that_name_is_used(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    assert RunFolder.create(tmp_path, "demo").path == tmp_path / "demo"


def test_a_file_of_that_name_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "demo").write_text("mine")
    assert RunFolder.create(tmp_path, "demo").path == tmp_path / "demo-2"
    assert (tmp_path / "demo").read_text() == "mine"


@pytest.mark.parametrize("name", ["", "..", "a/b", "/tmp/x"])
def test_a_name_that_leaves_the_root_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError):
        RunFolder.create(tmp_path, name)


def test_paths(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "demo")
    files = [folder.config, folder.metrics, folder.evals, folder.samples, folder.timeline, folder.report]
    assert [f.name for f in files] == [
        "config.yaml",
        "metrics.jsonl",
        "evals.jsonl",
        "run.db",
        "timeline.json",
        "report.html",
    ]
    assert {f.parent for f in [*files, folder.checkpoints, folder.logs]} == {tmp_path / "demo"}
    assert folder.name == "demo"


def test_every_line_is_readable_while_the_writer_is_open(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with JsonLines(path) as lines:
        for number in range(3):
            lines.append({"n": number})
            assert read_lines(path)[-1] == {"n": number}


def test_a_missing_file_has_no_lines(tmp_path: Path) -> None:
    assert read_lines(tmp_path / "none.jsonl") == []


def test_a_torn_last_line_is_skipped_and_gone_after_the_next_append(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"n": 1}\n{"n": 2}\n{"n": 3, "rew')
    assert [line["n"] for line in read_lines(path)] == [1, 2]
    with JsonLines(path) as lines:
        lines.append({"n": 4})
    assert [line["n"] for line in read_lines(path)] == [1, 2, 4]


def test_a_last_line_that_lacks_only_its_newline_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"n": 1}\n{"n": 2}')
    with JsonLines(path) as lines:
        lines.append({"n": 3})
    assert [line["n"] for line in read_lines(path)] == [1, 2, 3]


@pytest.mark.parametrize("torn", ["", '{"n"', '{"long": "' + "x" * 200_000], ids=["empty", "short", "long"])
def test_a_file_of_one_torn_line_starts_over(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(torn)
    with JsonLines(path) as lines:
        lines.append({"n": 1})
    assert read_lines(path) == [{"n": 1}]


def test_damage_in_the_middle_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"n": 1}\ngarbage\n{"n": 3}\n')
    with pytest.raises(DataError, match="line 2"):
        read_lines(path)


def test_missing_numbers_are_null_in_the_file_and_nan_when_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with JsonLines(path) as lines:
        lines.append(a_step(reward_mean_all=math.nan, trainer={"loss": math.inf, "kl": 0.5}))
    raw = json.loads(path.read_text(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert raw["reward_mean_all"] is None
    (step,) = read_steps(path)
    assert math.isnan(step.reward_mean_all)
    assert math.isnan(step.trainer["loss"])
    assert step.trainer["kl"] == 0.5


def test_text_with_half_a_character_is_written_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    with JsonLines(path) as lines:
        lines.append({"text": "a\ud83db", "tokens": ["\ud83d", "ok"]})
    assert read_lines(path) == [{"text": "a\ufffdb", "tokens": ["\ufffd", "ok"]}]


def test_a_step_repeated_after_a_resume_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with JsonLines(path) as lines:
        for record in [a_step(1), a_step(2, reward_mean=0.1), a_step(2, reward_mean=0.9), a_step(3)]:
            lines.append(record)
    assert [(s.step, s.reward_mean) for s in read_steps(path)] == [(1, 0.5), (2, 0.9), (3, 0.5)]


def test_a_line_that_is_no_step_is_an_error_that_says_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n')
    with pytest.raises(DataError, match="StepRecord"):
        read_steps(path)


def test_a_disk_without_room_is_one_line_and_loses_no_other(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    with JsonLines(path) as lines:
        lines.append({"step": 1})
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, limit[1]))
        try:
            with pytest.raises(FreerunError, match=r"metrics\.jsonl cannot be written \(File too large\): make room"):
                lines.append({"step": 2, "text": "x" * 50})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    with JsonLines(path) as lines:
        lines.append({"step": 2})
    assert read_lines(path) == [{"step": 1}, {"step": 2}]
