import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freerun.core.metrics import figures
from freerun.observe.columns import StepColumns, reduced
from freerun.observe.folder import JsonLines, encode
from freerun.observe.tail import LinesTail
from tests.observe.runs import a_step


def columns_of(*steps: object) -> StepColumns:
    columns = StepColumns()
    for step in steps:
        columns.add(encode(step))
    return columns


def test_columns_have_the_names_that_loggers_use() -> None:
    record = a_step(1, dropped={"no_signal": 2}, judgements={"ok": 8})
    columns = columns_of(record)
    for name, value in figures(record).items():
        assert columns.column(name)[0] == pytest.approx(value), name


def test_a_figure_that_appears_late_or_is_left_out_is_not_known_elsewhere() -> None:
    columns = columns_of(a_step(1, trainer={}), a_step(2, trainer={"kl": 0.5}), a_step(3, trainer={}))
    assert np.isnan(columns.column("trainer/kl")).tolist() == [True, False, True]
    assert columns.column("trainer/no_such_figure").shape == (3,)


def test_of_a_step_recorded_twice_the_later_record_counts() -> None:
    columns = columns_of(*(a_step(i, reward_mean=0.0) for i in range(1, 6)), a_step(3, reward_mean=1.0))
    assert list(columns.steps) == [1, 2, 3]
    assert columns.column("reward_mean").tolist() == [0.0, 0.0, 1.0]


@given(st.lists(st.floats(allow_infinity=False), min_size=1, max_size=40), st.integers(1, 9))
def test_reducing_keeps_the_mean_the_maximum_and_the_last(values: list[float], each: int) -> None:
    column = np.array(values) / 1e10  # sums stay finite
    parts = [column[at : at + each] for at in range(0, len(column), each)]
    for got, part in zip(reduced("loss", column, each), parts, strict=True):
        known = part[~np.isnan(part)]
        assert (math.isnan(got) and not len(known)) or got == pytest.approx(known.mean(), rel=1e-6, abs=1e-300)
    for got, part in zip(reduced("staleness_max", column, each), parts, strict=True):
        known = part[~np.isnan(part)]
        assert (math.isnan(got) and not len(known)) or got == known.max()
    assert np.array_equal(reduced("step", column, each), [part[-1] for part in parts], equal_nan=True)


def test_a_stretch_has_its_own_points() -> None:
    columns = columns_of(*(a_step(i, reward_mean=i) for i in range(1, 101)))
    whole = columns.curves(["reward_mean"], 0, 100, 10)
    part = columns.curves(["reward_mean"], columns.index_of(11), columns.index_of(21), 10)
    assert (whole["each"], whole["columns"]["step"][-1]) == (10, 100)
    assert (part["each"], part["columns"]["reward_mean"]) == (1, [float(i) for i in range(11, 21)])
    assert part["columns"]["tokens"][0] == 11_000.0, "tokens count from the run's start"
    assert set(part["columns"]) == {"step", "time_s", "tokens", "reward_mean"}


def test_lines_are_read_on_and_a_line_being_written_is_left_for_later(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    tail = LinesTail(path)
    assert tail.read().lines == []
    path.write_bytes(b'{"a":1}\n{"b"')
    first = tail.read()
    assert (first.lines, first.offsets, first.anew) == ([b'{"a":1}'], [0], True)
    with path.open("ab") as file:
        file.write(b":2}\n\n{}\n")
    second = tail.read()
    assert (second.lines, second.offsets, second.anew) == ([b'{"b":2}', b"{}"], [8, 17], False)
    assert tail.read().lines == []


def test_a_replaced_or_shortened_file_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    tail = LinesTail(path)
    with JsonLines(path) as lines:
        for number in range(3):
            lines.append({"n": number})
    assert len(tail.read().lines) == 3
    fresh = tmp_path / "fresh"
    fresh.write_bytes(b'{"n":7}\n')
    fresh.replace(path)
    again = tail.read()
    assert (again.lines, again.anew) == ([b'{"n":7}'], True)
    path.unlink()
    assert tail.read().anew
    assert not tail.read().anew
