"""Which engines hang, are slow or off: by their figures alone, and what the fleet makes of it."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from freerun.control.engine_health import EngineHealth
from freerun.control.fleet import Fleet
from freerun.control.waiting import background
from freerun.core import Batch, FinishReason, Group, Sample, Task, Version
from freerun.core.reports import EngineStats, StepResult
from freerun.engines.scripted import Script, ScriptedEngine
from tests.control.test_fleet import Notes, handle
from tests.fakeclock import run_fast

LOOKS_S = 0.25
IDLE = EngineStats(0, 0, 0, 0, 0.0)


def looks(health: EngineHealth, speeds: dict[str, float], answers: dict[str, int], seconds: float) -> dict[str, str]:
    """So many tokens a second for each answer, and answers at a time; what is said of whom."""
    for step in range(int(seconds / LOOKS_S) + 1):
        now_s, found = step * LOOKS_S, {}
        for name, speed in speeds.items():
            tokens, idle_s = int(speed * answers[name] * now_s), 0.0 if answers[name] else now_s
            assert health.heard(name, replace(IDLE, running=answers[name], tokens=tokens, idle_s=idle_s), now_s) is None
        if found := health.slow(now_s):
            return found
    return {}


speeds = st.floats(10.0, 200.0)


@given(st.lists(speeds, min_size=1, max_size=6), st.lists(st.integers(0, 64), min_size=6, max_size=6), st.data())
def test_no_engine_is_slow_beside_peers_within_a_factor_of_four(
    paces: list[float], answers: list[int], data: st.DataObject
) -> None:
    """However unevenly the work is spread."""
    fastest = min(paces) * 3.9
    named = {f"engine {index}": min(pace, fastest) for index, pace in enumerate(paces)}
    assert looks(EngineHealth(), named, dict(zip(named, answers, strict=False)), 200.0) == {}


@given(st.lists(st.floats(100.0, 200.0), min_size=1, max_size=5), st.integers(1, 64), st.floats(1.0, 20.0))
def test_an_engine_far_slower_than_its_peers_is_named(paces: list[float], answers: int, slow: float) -> None:
    named = {f"engine {index}": pace for index, pace in enumerate(paces)} | {"sick": slow}
    found = looks(EngineHealth(), named, dict.fromkeys(named, answers), 200.0)
    assert list(found) == ["sick"]
    assert found["sick"].startswith("it is slow: ")


def test_one_with_many_answers_or_few_is_not_slow() -> None:
    """It has far fewer tokens than its peers for each of them, or in all."""
    assert looks(EngineHealth(), {"a": 16.0, "many": 1.0}, {"a": 4, "many": 64}, 200.0) == {}
    assert looks(EngineHealth(), {"a": 16.0, "few": 16.0}, {"a": 64, "few": 1}, 200.0) == {}


def test_one_that_was_hardly_busy_is_not_compared() -> None:
    assert looks(EngineHealth(), {"a": 100.0, "b": 1.0}, {"a": 8, "b": 0}, 200.0) == {}


def test_an_engine_that_gets_nowhere_hangs_unless_it_takes_weights_or_has_nothing_to_do() -> None:
    health, stuck = EngineHealth(), replace(IDLE, running=3, tokens=7)
    assert health.heard("a", stuck, 0.0) is None
    assert health.heard("a", stuck, health.STUCK_S - 1) is None
    assert health.heard("a", stuck, health.STUCK_S, updating=True) is None
    assert health.heard("a", stuck, 2 * health.STUCK_S - 1) is None
    assert health.heard("a", replace(stuck, prompt_tokens=1), 2 * health.STUCK_S) is None, "it reads a long prompt"
    assert health.heard("a", replace(stuck, prompt_tokens=1), 3 * health.STUCK_S) == (
        "it has had 3 answers running for 300 s, and sampled nothing"
    )
    assert health.heard("idle", IDLE, 0.0) is health.heard("idle", IDLE, 10 * health.STUCK_S) is None


def test_an_engine_that_answers_and_comes_to_no_end_of_a_step_hangs() -> None:
    health = EngineHealth()
    assert health.heard("a", IDLE, 0.0) is health.evades("a", 1.0) is health.evades("a", health.STUCK_S) is None
    assert health.heard("a", IDLE, health.STUCK_S + 1) is health.evades("a", health.STUCK_S + 2) is None
    assert health.evades("a", 2 * health.STUCK_S + 1, updating=True) is None, "its weights are large"
    assert health.evades("a", 3 * health.STUCK_S) is None
    said = health.evades("a", 3 * health.STUCK_S + 1)
    assert said == "it answers, and has come to no end of a step for 300 s"


@given(st.lists(st.booleans(), max_size=30))
def test_an_engine_is_silent_when_no_look_in_a_row_was_answered(answered: list[bool]) -> None:
    health, silent = EngineHealth(), 0
    for index, one in enumerate(answered):
        silent = 0 if one else silent + 1
        said = health.heard("a", IDLE, index) if one else health.unheard("a")
        assert (said is not None) == (silent >= health.UNHEARD)


def batch(version: Version, engines: Sequence[str], off: dict[str, float], tokens: int) -> tuple[Batch, StepResult]:
    """A group of each, whose tokens after the prompt are of that version, and as far from the trainer's as said."""
    groups, before = [], []
    for index, name in enumerate(engines):
        marks = np.arange(tokens + 2) >= 2
        sample = Sample([0] * len(marks), marks, -1.0 * marks, [-1, -1] + [version] * tokens, FinishReason.STOP)
        groups.append(Group(index, Task("t", "", []), [sample], 0, engine=name))
        before.append(np.full(tokens, -1.0 + off[name], np.float32))
    return Batch(version, groups), StepResult(version + 1, before_logprobs=before)


@given(st.floats(-0.04, 0.04), st.floats(0.3, 3.0), st.integers(2, 5), st.sampled_from([-1, 1]))
def test_an_engine_whose_log_probabilities_are_off_is_named(usual: float, far: float, peers: int, sign: int) -> None:
    names = [f"engine {index}" for index in range(peers)]
    off = dict.fromkeys(names, usual)
    health = EngineHealth()
    for name in (*names, "sick"):
        health.began(name, 0)
    assert health.compared(*batch(1, names, off, 3000)) == {}
    off["sick"] = sign * far
    found = health.compared(*batch(2, [*names, "sick"], off, 3000))
    assert list(found) == ["sick"]
    assert found["sick"].startswith("its log-probabilities are off: ")


@given(st.floats(0.0, 3.0), st.integers(1, 4))
def test_engines_that_are_off_alike_are_not_told_apart(off: float, count: int) -> None:
    """Nor is one alone: then the trainer says so."""
    health, names = EngineHealth(), [f"engine {index}" for index in range(count)]
    for name in names:
        health.began(name, 0)
    assert health.compared(*batch(1, names, dict.fromkeys(names, off), 3000)) == {}


def test_only_fresh_tokens_of_the_process_that_is_there_count() -> None:
    health, off = EngineHealth(), {"well": 0.01, "sick": 1.0}
    for name in off:
        health.began(name, 4)
    assert health.compared(*batch(4, list(off), off, 3000)) == {}, "an earlier one may have sampled them"
    stale, result = batch(5, list(off), off, 3000)
    assert health.compared(replace(stale, version=6), result) == {}, "sampled by older weights"
    unknown = replace(result, before_logprobs=[np.full(3000, np.nan, np.float32)] * 2)
    assert health.compared(stale, unknown) == {}
    assert health.compared(stale, replace(result, before_logprobs=None)) == {}
    assert list(health.compared(stale, result)) == ["sick"]


def fleet(told: Notes, speeds: dict[str, float], ended: list[tuple[str, bool]], ours: bool = True) -> Fleet:
    def restart(name: str, why: str, again: bool) -> bool:
        ended.append((name, again))
        return ours

    engines = {name: Telling(speed) for name, speed in speeds.items()}
    return Fleet(engines, told, 60.0, others_may_join=True, restart=restart)


class Telling(ScriptedEngine):
    """Says that it samples so many tokens a second, or nothing at all for ever."""

    def __init__(self, speed: float) -> None:
        super().__init__(lambda prompt, seed, index: Script(4, 0.5))
        self.speed = speed

    async def stats(self) -> EngineStats:
        if not self.speed:
            await asyncio.Event().wait()
        now_s = asyncio.get_running_loop().time()
        return EngineStats(0, 8, 0, int(self.speed * now_s), 0.0)

    async def health(self) -> Version:
        if not self.speed:
            await asyncio.Event().wait()
        return 0


async def poll(fleet: Fleet, seconds: float) -> None:
    end_s = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < end_s:
        await fleet.poll()
        await asyncio.sleep(1.0)


def test_a_sick_engine_is_started_again_once_and_then_stays_out() -> None:
    async def go() -> None:
        told, ended = Notes(), list[tuple[str, bool]]()
        engines = fleet(told, {"a": 1000.0, "b": 900.0, "sick": 50.0}, ended)
        async with background(engines.watch()):
            await engines.deliver(handle(0))
            await poll(engines, 200.0)
            assert (ended, len(engines)) == ([("sick", True)], 2)
            await engines.join("sick", Telling(50.0))
            await poll(engines, 400.0)
            assert ended == [("sick", True), ("sick", False)]
        first, _, second = told.notes
        assert first.startswith("sick is ended, and the 0 groups it had begin afresh: it is slow: 50 tokens/s while")
        assert first.endswith("; it is started again")
        assert second.endswith("; it was so before, and stays out")
        assert told.out == ["sick", "sick"]

    run_fast(go())


def test_one_given_by_url_is_looked_at_again_and_the_last_one_is_never_taken_out() -> None:
    async def go() -> None:
        told, ended = Notes(), list[tuple[str, bool]]()
        engines = fleet(told, {"a": 1000.0, "sick": 50.0}, ended, ours=False)
        async with background(engines.watch()):
            await engines.deliver(handle(0))
            await poll(engines, 190.0)
            assert told.notes[0].startswith("sick is out, and is looked at again: it is slow: ")
            assert told.notes[1] == "sick is back, with version 0"
            engines.remove("a", "cut")
            await poll(engines, 400.0)
            assert ended == [("sick", True)]
            assert len(engines) == 1

    run_fast(go())


def test_an_engine_that_answers_nothing_is_ended_in_fifteen_seconds() -> None:
    async def go() -> None:
        told, ended = Notes(), list[tuple[str, bool]]()
        engines = fleet(told, {"a": 1000.0, "hung": 0.0}, ended)
        while not ended:
            await engines.poll()
        assert asyncio.get_running_loop().time() == 15.0
        assert ended == [("hung", True)]
        assert told.notes[0].startswith("hung is ended, and the 0 groups it had begin afresh: it has not answered 2")

    run_fast(go())
