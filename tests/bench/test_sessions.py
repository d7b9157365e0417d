"""`freerun bench sessions`, small: hanging agents are killed, the others are not."""

import json

import pytest

from freerun.bench.sessions import Work, bench_sessions


async def test_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    measured = await bench_sessions(Work(sessions=60, at_once=20, agent_s=0.1, deadline_s=1.0, trivial=100), True)
    hanging = measured["5% hang"]
    assert (hanging["rewarded"], hanging["killed"], hanging["processes left"]) == (57, 3, 0)
    assert 0.0 <= hanging["s after the deadline, at most"] < 2.0
    assert hanging["ratio"] == pytest.approx(hanging["s with"] / hanging["s without"])
    assert measured["agents that do nothing"]["per_s"] > 10
    assert json.loads(capsys.readouterr().out)["5% hang"] == hanging
