"""The staleness sweep: data is exactly as old as it says, the objectives are one where nothing is old, and a sweep that
was stopped goes on."""

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
import torch

from freerun.bench.staleness import Asked, Sweep, SweepFolder, bench_staleness, parse_etas, parse_objectives, sweep_of
from freerun.bench.staleness_page import page, reward_at
from freerun.bench.staleness_picture import Curve, Line, curves, picture
from freerun.bench.staleness_run import (
    AtAge,
    Check,
    Clock,
    Outcome,
    Run,
    WarmUp,
    Weights,
    checked_steps,
    prepare_run,
    train,
    warm_up,
)
from freerun.bench.staleness_tasks import LESSONS, WarmUpPlan, worked
from freerun.core import Batch, ConfigError, ProcessDied
from freerun.core.nouns import NOT_SAMPLED
from freerun.models.tiny import make_model

PLAN = WarmUpPlan(lr=1e-3, groups=16, steps=5, until=0.0)
SMALL = ("control.groups_per_step=2", "rollout.group_size=4")


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep's folder after the warm-up, which has learned next to nothing."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "tasks-0").mkdir()
    LESSONS["reverse"].write(folder / "tasks-0", None, 0)
    warm_up(WarmUp("reverse", str(folder / "tasks-0"), str(folder / "warm-0"), 0, PLAN))
    return folder


def job_of(warm: Path, eta: int, objective: str, steps: int = 4) -> Run:
    return Run("reverse", str(warm / "tasks-0"), str(warm / "warm-0"), 0, eta, objective, steps, 1e-3, SMALL)


def at_age(warm: Path, eta: int, objective: str, *overrides: str) -> AtAge:
    return AtAge(prepare_run(job_of(warm, eta, objective), *overrides))


def learn(run: AtAge, batch: Batch) -> Weights:
    """With rewards of our own: the model is too young to earn any."""
    for index, sample in enumerate(batch.samples):
        sample.reward = float(index % 2)
    run.learn(batch)
    return run.keep()


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


def test_versions_are_put_aside_and_judged_when_the_run_is_over(warm: Path) -> None:
    """What the rewards belong to is the version that the step made, however old the engine's weights were."""
    stepped = list[None]()
    outcome = train(job_of(warm, 2, "ppo"), lambda: stepped.append(None))
    assert len(stepped) == 4
    assert [check.step for check in outcome.checks] == [0, 1, 2, 3, 4]
    assert outcome.reward == outcome.checks[-1].reward
    assert all(before.in_turns_s < after.in_turns_s for before, after in zip(outcome.checks, outcome.checks[1:]))  # noqa: B905
    assert all(check.at_once_s < check.in_turns_s for check in outcome.checks[1:])


def test_weights_of_any_version_are_judged_by_what_they_are(warm: Path) -> None:
    run = at_age(warm, 0, "ppo", "train.warmup_steps=0", "train.lr=1e-2")
    held_out = prepare_run(job_of(warm, 0, "ppo")).held_out
    kept = [learn(run, run.batch()) for _ in range(3)]
    found = run.rewards([kept[0], kept[2]], held_out, answers=1)
    again = run.rewards([kept[0], kept[2]], held_out, answers=1)
    assert found == again
    for name, parameter in run.sampler.engine.decoder.named_parameters():
        torch.testing.assert_close(parameter, kept[2][name], rtol=0, atol=0)


def test_the_clock_counts_turns_and_what_could_go_on_at_once() -> None:
    clock, synchronous = Clock(eta=4), Clock(eta=0)
    for one in (clock, synchronous):
        one._generate_s, one._train_s = [9.0, 1.0, 2.0], [9.0, 3.0, 1.0]
    assert clock.until(1) == (4.0, 3.0), "the first step's seconds are the second's: kernels were compiled"
    assert clock.until(3) == (4.0 + 4.0 + 3.0, 3.0 + 3.0 + 2.0)
    assert synchronous.until(3) == (11.0, 11.0)


def test_a_tenth_of_the_versions_is_judged_and_the_last_of_all() -> None:
    assert checked_steps(150) == list(range(15, 151, 15))
    assert checked_steps(3) == [1, 2, 3]


async def test_a_sweep_leaves_a_page_and_goes_on_where_it_was_stopped(
    warm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for made in ("tasks-0", "warm-0"):
        (tmp_path / made).symlink_to(warm / made)
    sweep = replace(sweep_of("reverse", None, None, 2, 1e-4, SMALL), device="here")
    asked = Asked([0], ["ppo", "paper"], [0], workers=2)
    await bench_staleness(sweep, replace(asked, within_s=0.0), tmp_path, json_only=True)
    assert not list((tmp_path / "runs").iterdir()), "there was no time to begin one"
    await bench_staleness(sweep, replace(asked, objectives=["ppo"]), tmp_path, json_only=True)
    first = tmp_path / "runs" / "ppo-0-seed0.json"
    written = first.stat().st_mtime_ns
    capsys.readouterr()
    await bench_staleness(sweep, asked, tmp_path, json_only=True)
    assert first.stat().st_mtime_ns == written, "it was there already"
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [run["objective"] for run in record["runs"]] == ["ppo", "paper"]
    assert all(run["effective_samples"] > 0.999 for run in record["runs"]), "nothing is old at η = 0"
    assert "plain PPO" in (tmp_path / "index.html").read_text()
    with pytest.raises(ConfigError, match=r"runs with lr 0\.0001, not 0\.0002"):
        SweepFolder(tmp_path, replace(sweep, lr=2e-4))
    SweepFolder(tmp_path / "new", sweep)
    SweepFolder(tmp_path / "new", replace(sweep, lr=2e-4))
    assert json.loads((tmp_path / "new" / "sweep.json").read_bytes())["lr"] == 2e-4, "there was nothing yet"


async def test_a_run_that_fails_is_told_of_when_the_others_are_over(warm: Path, tmp_path: Path) -> None:
    for made in ("tasks-0", "warm-0"):
        (tmp_path / made).symlink_to(warm / made)
    sweep = replace(sweep_of("reverse", None, None, 2, 1e-4, [*SMALL, "reward.judge=code"]), device="here")
    with pytest.raises(ProcessDied, match="assert nothing"):
        await bench_staleness(sweep, Asked([0], ["ppo"], [0], workers=1), tmp_path, json_only=True)


def test_any_model_learns_any_of_the_tasks(tmp_path: Path) -> None:
    """A checkpoint of characters has sums worked out for it, and goes on by rewards."""
    make_model(tmp_path / "model", map(chr, range(32, 127)), seed=0)
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    LESSONS["chain_sum-hard"].write(tasks, None, 0)
    model, settings = str(tmp_path / "model"), (*SMALL, "rollout.max_new_tokens=8", "engine.max_running=64")
    plan = WarmUpPlan(lr=1e-3, groups=4, steps=2)
    start = warm_up(WarmUp("chain_sum-hard", str(tasks), str(tmp_path / "warm"), 0, plan, model, settings))
    outcome = train(
        Run(
            "chain_sum-hard",
            str(tasks),
            str(tmp_path / "warm"),
            0,
            1,
            "freerun",
            2,
            1e-4,
            (*settings, "held_out.limit=8"),
        )
    )
    assert 0.0 <= start <= 1.0
    assert outcome.answer_tokens > 1


def test_sums_are_worked_out_term_by_term() -> None:
    assert list(worked("12 + 34 - 5")) == ["12 + 34 = 46", "46 - 5 = 41"]
    assert list(worked("10 - 25 + 3")) == ["10 - 25 = -15", "-15 + 3 = -12"]


def test_gsm8k_comes_from_a_folder(tmp_path: Path) -> None:
    for split in ("train", "test"):
        row = {"question": f"How many {split}s?", "answer": "It is 1 + 1.\n#### 2"}
        (tmp_path / f"{split}.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "tasks").mkdir()
    LESSONS["gsm8k"].write(tmp_path / "tasks", str(tmp_path), 0)
    asked = {name: (tmp_path / "tasks" / f"{name}.jsonl").read_text() for name in ("train", "held_out", "sft")}
    assert "trains" in asked["train"] == asked["sft"]
    assert "tests" in asked["held_out"]


def outcome_of(eta: int, objective: str, seed: int, rewards: list[float], pace_s: float = 1.0) -> Outcome:
    checks = [Check(step, reward, 2 * step * pace_s, step * pace_s) for step, reward in enumerate(rewards)]
    return Outcome(
        *(seed, eta, objective, rewards[-1], checks, rewards),
        drift=0.1, ratio=1.0, outside_share=0.0, effective_samples=1.0, clip_share=0.0, kept_share=1.0,
        entropy=0.1, answer_tokens=6.0, generate_s=pace_s, train_s=pace_s,
    )  # fmt: skip


def test_rewards_at_equal_time_lie_between_the_versions_before_and_after() -> None:
    outcome = outcome_of(4, "ppo", 0, [0.0, 0.4, 0.8])
    assert reward_at(outcome, lambda check: check.at_once_s, 0.5) == pytest.approx(0.2)
    assert reward_at(outcome, lambda check: check.at_once_s, 2.0) == 0.8
    assert reward_at(outcome, lambda check: check.at_once_s, 9.0) == 0.8
    assert reward_at(outcome, lambda check: check.in_turns_s, 3.0) == pytest.approx(0.6)


def test_the_page_has_a_picture_of_steps_and_of_both_times_and_one_an_age() -> None:
    outcomes = [
        outcome_of(eta, objective, seed, [0.1, fmean([0.4, seed / 10])], pace_s=1 + seed)
        for eta in (0, 4)
        for objective in ("ppo", "paper")
        for seed in (0, 1, 2)
    ]
    sweep = Sweep("gsm8k", "models/<mine>", None, 2, 1e-5, [], "a GPU")
    html = page(sweep, outcomes)
    assert html.count("<svg") == 5
    for title in ("After 2 steps", "After 2 s in turns", "After 1 s at once", "η = 4", "models/&lt;mine&gt;"):
        assert title in html
    assert page(sweep, outcomes[:1]).count("<svg") == 4, "a sweep of one run has its page"


def test_the_picture_has_a_line_an_objective_a_dot_a_run_and_bars() -> None:
    lines = [Line("plain", [[0.9, 0.8], [0.3, 0.4]]), Line("decoupled", [[0.9, 0.9], []])]
    svg = picture([0, 16], lines, "η < 17")
    elements = list(ElementTree.fromstring(svg).iter())
    tags = [element.tag.rpartition("}")[2] for element in elements]
    assert (tags.count("polyline"), tags.count("circle")) == (2, 6)
    assert sum(element.get("class", "").startswith("spread") for element in elements) == 3
    assert "prefers-color-scheme: dark" in svg


def test_curves_have_a_line_and_a_band_each() -> None:
    svg = curves([Curve("plain", [0.0, 10.0], [[0.1, 0.2], [0.05, 0.07]])], "η = 4", "steps")
    tags = [element.tag.rpartition("}")[2] for element in ElementTree.fromstring(svg).iter()]
    assert (tags.count("polyline"), tags.count("polygon")) == (1, 1)


def test_what_makes_no_sense_is_refused() -> None:
    assert parse_etas("4,0,4") == parse_etas("0 4") == [0, 4]
    with pytest.raises(ConfigError, match="whole numbers"):
        parse_etas("0;1")
    with pytest.raises(ConfigError, match="leave -1 out"):
        parse_etas("-1,2")
    with pytest.raises(ConfigError, match="did you mean paper"):
        parse_objectives("ppo,papers")
    with pytest.raises(ConfigError, match="needs a model"):
        sweep_of("gsm8k", None, None, None, None, [])
    with pytest.raises(ConfigError, match="leave --model m out"):
        sweep_of("reverse", "m", None, None, None, [])
    with pytest.raises(ConfigError, match="did you mean gsm8k"):
        sweep_of("gsm8", "m", None, None, None, [])


async def test_a_model_that_is_not_there_is_said_before_anything_is_made(tmp_path: Path) -> None:
    sweep = sweep_of("chain_sum", str(tmp_path / "none"), None, None, None, [])
    with pytest.raises(ConfigError, match="none"):
        await bench_staleness(sweep, Asked([0], ["ppo"], [0], 1), tmp_path / "out", json_only=True)
    assert not (tmp_path / "out").exists()


async def test_too_few_steps_for_an_eta_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="make it more than 32"):
        await bench_staleness(
            sweep_of(None, None, None, 20, None, []), Asked([16], ["ppo"], [0], 1), tmp_path, json_only=True
        )
