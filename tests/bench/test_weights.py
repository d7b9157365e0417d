"""`freerun bench weights` on little memory, on loopback: nothing but whether its figures are of what they say."""

import pytest

from freerun.bench import weights


def test_its_figures(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(weights, "unavailable", lambda: "has no root")
    monkeypatch.setattr(weights, "_ENGINES", 2)
    measured = weights.bench_weights(mib=16, rounds=1, json_only=False)
    together, delta = measured["2 engines of a machine"], measured["bf16, a step of Adam at 1e-6"]
    assert together["transfers"] == pytest.approx(1, abs=0.01)
    assert together["received MiB"] == pytest.approx(16, rel=0.01)
    assert 0.005 < delta["share"] < 0.1
    printed = capsys.readouterr().out
    assert "on loopback, since this has no root" in printed
    assert "of what a pair of plain streams gives" in printed
