import io
import math

import pytest
from rich.console import Console

from freerun.observe.live import Pace, PlainView, TerminalView, sparkline, view
from tests.observe.runs import a_step, evaluation


def plain(bound: int | None = 4, total_steps: int = 200) -> tuple[PlainView, io.StringIO]:
    out = io.StringIO()
    made = view("demo", total_steps, bound, Console(file=out, force_terminal=False, width=40))
    assert isinstance(made, PlainView)
    return made, out


def terminal(bound: int | None = 4) -> tuple[TerminalView, Console]:
    console = Console(
        file=io.StringIO(), force_terminal=True, width=80, height=40, record=True, _environ={"TERM": "xterm"}
    )
    made = view("demo", 200, bound, console)
    assert isinstance(made, TerminalView)
    return made, console


def test_a_log_gets_one_plain_line_a_step() -> None:
    shown, out = plain()
    before = len(out.getvalue().splitlines())
    shown.step(a_step(12, dropped={"no_signal": 3}))
    (line,) = out.getvalue().splitlines()[before:]
    assert line == (
        "step  12/200  reward 0.500 (all 0.250)  stale 0.8 max 1/4    500 tok/s  cut 12%"
        "  idle 5%/25%  left 6m16s  dropped 3"
    )
    shown.close()


def test_the_first_lines_explain_the_rest() -> None:
    _, out = plain()
    assert "run demo, 200 steps, no token trained on more than 4 versions after it was sampled" in out.getvalue()
    assert all(f"{word}:" in out.getvalue() for word in ["reward", "stale", "cut", "idle"])


def test_lines_of_extreme_runs_stay_within_120_columns_and_lack_control_codes() -> None:
    shown, out = plain(bound=1000, total_steps=1_000_000)
    shown.doing("engine 0", "loading\x1b[31m\n the model")
    shown.step(
        a_step(
            999_999,
            reward_mean=-123456.7,
            reward_mean_all=math.nan,
            staleness_max=1000,
            dropped={"x": 10**9},
            step_s=9e5,
        )
    )
    shown.evaluated(100, evaluation())
    shown.note("a long note " * 30)
    shown.close()
    assert "\x1b" not in out.getvalue()
    assert max(map(len, out.getvalue().splitlines())) <= 120


def test_before_the_first_step_each_thing_a_process_does_is_said_once() -> None:
    shown, out = plain()
    for running in range(5):
        shown.doing("engine 0", f"generating {running} samples")
    shown.doing("trainer", "loading")
    shown.step(a_step(1))
    shown.doing("trainer", "something new")
    lines = out.getvalue().splitlines()
    assert lines[3:5] == ["engine 0: generating 0 samples", "trainer: loading"]
    assert len(lines) == 6


def test_an_evaluation_is_a_line() -> None:
    shown, out = plain()
    shown.evaluated(40, evaluation(0.6))
    assert out.getvalue().endswith("\neval at step 40: pass@1 0.600 [0.550, 0.650], pass@4 0.800, 100 tasks\n")


def test_a_terminal_without_a_step_says_what_is_being_waited_for() -> None:
    shown, console = terminal()
    shown.doing("engine 0", "loading [bold]the model[/bold]")
    shown.close()
    text = console.export_text()
    assert "No step yet" in text
    assert "engine 0" in text
    assert "loading [bold]the model[/bold]" in text  # not taken for markup


def test_a_terminal_shows_the_latest_state_and_leaves_it_there() -> None:
    shown, console = terminal()
    for step in range(1, 51):
        counts = {"ok": 9, "unparseable": 7, "timeout": 1}
        shown.step(a_step(step, reward_mean_all=step / 100, dropped={"too_stale": 2}, judgements=counts, solved=70))
    shown.evaluated(0, evaluation(0.3))
    shown.evaluated(40, evaluation(0.6))
    shown.doing("trainer", "step 51")
    shown.note("engine 0 was restarted")
    shown.close()
    shown.close()
    text = console.export_text()
    last = text[text.rindex("freerun demo") :]
    for fact in [
        "50/200 steps",
        "0.500 all judged",
        "max 1 of 4 allowed",
        "500 tokens/s trained",
        "engines 5% · trainer 25%",
        "pass@1 0.300 → 0.600 [0.550, 0.650]",
        "2 too stale (groups)",
        "70 tasks, which are asked less often",
        "1 timeout (samples)",
        "7 samples in which the judge could read nothing",
        "step 51",
    ]:
        assert fact in last
    assert "engine 0 was restarted" in text


def test_a_broken_bound_is_red() -> None:
    shown, console = terminal(bound=1)
    shown.step(a_step(1, staleness_max=3))
    console.print(shown.render())
    assert "\x1b[1;31mmax 3 of 1 allowed" in console.export_text(styles=True)


def test_without_drops_there_is_no_line_about_them() -> None:
    shown, console = terminal()
    shown.step(a_step(1, dropped={"no_signal": 0}))
    console.print(shown.render())
    assert "dropped" not in console.export_text()


def test_a_hundred_engines_do_not_flood_the_terminal() -> None:
    shown, console = terminal()
    for number in range(100):
        shown.doing(f"engine {number}", "generating")
    shown.close()  # it redraws in a thread until then, which other tests would notice
    console.export_text()
    console.print(shown.render())
    text = console.export_text()
    assert text.count("generating") == 16
    assert "and 84 more" in text


def test_the_time_left_comes_from_recent_steps() -> None:
    pace = Pace(total_steps=100)
    assert math.isnan(pace.left_s(0))
    pace.step(a_step(1, step_s=500.0))
    for step in range(2, 40):
        pace.step(a_step(step, step_s=2.0))
    assert pace.left_s(40) == pytest.approx(120.0)
    assert pace.left_s(200) == 0.0


@pytest.mark.parametrize(
    ("values", "drawn"),
    [([], ""), ([1.0], "▁"), ([0.0, 1.0], "▁█"), ([0.0, math.nan, 1.0], "▁ █"), ([math.nan], " ")],
)
def test_sparkline(values: list[float], drawn: str) -> None:
    assert sparkline(values) == drawn


def test_a_long_history_fits_the_sparkline() -> None:
    assert len(sparkline([float(i) for i in range(10_000)], columns=24)) <= 24
