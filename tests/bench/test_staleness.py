"""The staleness sweep: data is exactly as old as it says, and the objectives are one where nothing is old."""

import asyncio
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch

from freerun.bench.staleness import (
    AtAge,
    Run,
    WarmUp,
    bench_staleness,
    parse_etas,
    prepare_run,
    show,
    sweep,
    warm_up,
)
from freerun.bench.staleness_picture import Line, picture
from freerun.core import Batch, ConfigError
from freerun.core.nouns import NOT_SAMPLED


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seed-0")
    warm_up(WarmUp(str(folder), seed=0, until=0.0))
    return folder


def at_age(warm: Path, eta: int, objective: str, *overrides: str) -> AtAge:
    job = Run(str(warm), seed=0, eta=eta, objective=objective, steps=4, lr=1e-3)
    return AtAge(prepare_run(job, "control.groups_per_step=2", "rollout.group_size=4", *overrides))


def learn(run: AtAge, batch: Batch) -> None:
    """With rewards of our own: the model is too young to earn any."""
    for index, sample in enumerate(batch.samples):
        sample.reward = float(index % 2)
    run.learn(batch)


def test_every_token_is_eta_versions_old_once_there_are_so_many(warm: Path) -> None:
    run = at_age(warm, 2, "freerun")
    for version, age in enumerate([0, 1, 2, 2, 2]):
        batch = run.batch()
        stamps = {stamp for sample in batch.samples for stamp in sample.versions} - {NOT_SAMPLED}
        assert stamps == {version - age}
        learn(run, batch)


def test_the_engine_has_the_weights_of_the_version_it_stamps(warm: Path) -> None:
    """With data of age 1 the learner's weights before its last step are those that sample next."""
    run = at_age(warm, 1, "ppo", "train.warmup_steps=0")
    learn(run, run.batch())
    before = {name: tensor.clone() for name, tensor in run.learner.policy.tensors().items()}
    old = run.batch()
    assert run.ratios(old).sub(1).abs().max() > 1e-2, "version 0 sampled this, and the learner has gone on"
    learn(run, old)
    run.batch()
    assert run.sampler.engine.version == 1
    for name, parameter in run.sampler.engine.decoder.named_parameters():
        torch.testing.assert_close(parameter, before[name], rtol=0, atol=0)


def test_at_eta_0_with_one_minibatch_the_objectives_are_the_same(warm: Path) -> None:
    ended = []
    for objective in ("ppo", "paper", "freerun"):
        run = at_age(warm, 0, objective, "train.minibatches=1", "train.warmup_steps=0")
        for _ in range(2):
            learn(run, run.batch())
        ended.append(run.learner.policy.tensors())
    start = at_age(warm, 0, "ppo").learner.policy.tensors()
    for name, plain in ended[0].items():
        torch.testing.assert_close(plain, ended[1][name], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(plain, ended[2][name], rtol=1e-4, atol=1e-5)
    assert any((plain - start[name]).abs().max() > 1e-3 for name, plain in ended[0].items()), "nothing was learned"


async def test_a_sweep_leaves_table_json_and_picture(
    warm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, steps = tmp_path / "pictures" / "staleness.svg", list[None]()
    outcomes = await sweep({0: warm}, [0], 2, 1e-4, asyncio.Semaphore(2), lambda: steps.append(None))
    assert len(steps) == 6
    show(outcomes, [0.0], 2, 1e-4, out, json_only=False)
    assert [outcome.objective for outcome in outcomes] == ["ppo", "paper", "freerun"]
    assert all(0.0 <= outcome.reward <= 1.0 for outcome in outcomes)
    assert all(outcome.effective_samples > 0.999 for outcome in outcomes), "nothing is old at η = 0"
    printed = capsys.readouterr().out
    assert "plain PPO" in printed
    assert "decoupled PPO" in printed
    assert "with distance" in printed
    record = json.loads(printed.splitlines()[-1])
    assert record["bench"] == "staleness"
    assert len(record["runs"]) == 3
    ElementTree.parse(out)


def test_the_picture_has_a_line_an_objective_and_a_dot_a_run() -> None:
    lines = [Line("plain", [[0.9, 0.8], [0.3, 0.4]]), Line("decoupled", [[0.9, 0.9], [0.9, 1.0]])]
    svg = picture([0, 16], lines, "η < 17")
    tags = [element.tag.rpartition("}")[2] for element in ElementTree.fromstring(svg).iter()]
    assert (tags.count("polyline"), tags.count("circle")) == (2, 8)
    assert "prefers-color-scheme: dark" in svg


def test_what_makes_no_sense_is_refused() -> None:
    assert parse_etas("4,0,4") == [0, 4]
    with pytest.raises(ConfigError, match="whole numbers"):
        parse_etas("0;1")
    with pytest.raises(ConfigError, match="leave -1 out"):
        parse_etas("-1,2")


async def test_too_few_steps_for_an_eta_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="make it more than 32"):
        await bench_staleness([16], [0], steps=20, lr=1e-4, out=tmp_path / "p.svg", json_only=True)
