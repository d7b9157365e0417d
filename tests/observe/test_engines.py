"""The figures of engines that come and go."""

import io

import pytest
from rich.console import Console

from freerun.core.observer import Observer, Observers
from freerun.core.records import StepRecord
from freerun.core.reports import EngineStats, UpdateReport
from freerun.observe.engines import EngineFigures
from freerun.observe.live import TerminalView
from freerun.observe.meter import StepMeter


def stats(idle_s: float = 0.0, prompt_tokens: int = 0, reused_tokens: int = 0, running: int = 0) -> EngineStats:
    return EngineStats(0, running, 0, 0, idle_s, prompt_tokens=prompt_tokens, reused_tokens=reused_tokens)


def update(engine: str, idle_s: float) -> UpdateReport:
    return UpdateReport(1, 0.0, 0, idle_s, engine=engine)


def test_idle_time_is_of_the_engines_that_are_there() -> None:
    figures = EngineFigures()
    figures.begin({"a": 100.0, "b": 50.0})
    assert figures.idle_s([update("a", 101.0), update("b", 53.0)]) == 2.0
    figures.out("b")
    assert figures.idle_s([update("a", 105.0)]) == 4.0, "one that is gone makes nobody busy or idle"
    assert figures.idle_s([]) == 0.0, "nobody is there"
    figures.heard("b", stats(idle_s=7.0))
    assert figures.idle_s([update("a", 106.0), update("b", 10.0)]) == 2.0, "its start-up does not count"
    assert figures.idle_s([update("a", 106.0), update("late", 99.0)]) == 0.0, "it was not there at the last step"


def test_what_was_in_the_caches_counts_once_though_engines_come_back() -> None:
    figures = EngineFigures()
    figures.heard("a", stats(prompt_tokens=100, reused_tokens=50))
    assert figures.cache_hit_share() == 0.5
    figures.out("a")
    assert figures.cache_hit_share() == 0.5, "what was known holds"
    figures.heard("a", stats(prompt_tokens=110, reused_tokens=60))
    assert figures.cache_hit_share() == 1.0, "it was out, and is the same"
    figures.out("a")
    figures.heard("a", stats(prompt_tokens=8, reused_tokens=2))
    assert figures.cache_hit_share() == 0.25, "it was started again"


def test_rows_of_the_terminal_come_and_change_with_engines() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    view = TerminalView("run", 3, 1, console)
    everybody = Observers()
    meter = StepMeter(everybody, 0.0)
    everybody.add(meter)
    everybody.add(view)
    everybody.engine("engine 0", stats(running=3))
    everybody.engine("engine 1", stats(running=2))
    everybody.engine_out("engine 0", "lost: its cable was cut")
    everybody.engine("engine 2", stats(running=1))
    with console.capture() as shown:
        console.print(view.render())
    view.close()
    rows = [line for line in shown.get().splitlines() if "engine " in line]
    assert ["lost: its cable was cut" in row for row in rows] == [True, False, False]
    assert len(rows) == 3


@pytest.mark.parametrize("updates", [[], [update("a", 3.0)]])
def test_a_step_is_complete_whoever_has_taken_its_version(updates: list[UpdateReport]) -> None:
    from tests.observe.test_meter_and_files import batch, result

    class Told(Observer):
        def step(self, record: StepRecord) -> None:
            idle_s.append(record.engine_idle_s)

    idle_s: list[float] = []
    meter = StepMeter(Told(), 0.0)
    meter.begin({"a": 1.0})
    meter.learning(batch(0), 0)
    meter.stepped(result(1))
    meter.updated(updates)
    assert idle_s == [2.0 if updates else 0.0]
