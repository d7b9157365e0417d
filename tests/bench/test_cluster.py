"""Parts of `freerun bench cluster`; `tests/run/test_cluster.py` has a run on machines whose cable is cut."""

import pytest

from freerun.bench import cluster
from freerun.bench.cluster import Pace, bench_cluster


def test_runs_at_the_same_time_are_compared_while_both_are_at_it() -> None:
    first = Pace([(0.0, 100), (1.0, 10), (2.0, 30), (9.0, 1_000)])
    second = Pace([(0.5, 100), (1.5, 8), (2.5, 8), (4.5, 8)])
    assert first.tokens_per_s == 1_040 / 9
    assert first.beside(second) == Pace([(1.0, 10), (2.0, 30)])
    assert first.beside(second).tokens_per_s == 30
    assert second.beside(first) == second
    assert second.tokens_per_s == 6


async def test_where_machines_cannot_be_made_a_line_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cluster, "unavailable", lambda: "needs root for network namespaces")
    await bench_cluster(None, seed=0, together=False, json_only=False)
    assert capsys.readouterr().out == "cluster: skipped, this needs root for network namespaces\n"
