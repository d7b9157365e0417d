"""Published runs made small: one of them really runs."""

from pathlib import Path

import pytest

from freerun.commands.dry_run import describe
from freerun.commands.small import TASKS, run_small, write_rows
from freerun.config.load import load_config
from freerun.config.preset import SMALL, preset_names
from freerun.core import ConfigError
from freerun.observe.folder import RunFolder, read_lines
from freerun.run.prepare import prepare

PUBLISHED = [name for name in preset_names() if not name.endswith(SMALL)]


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_algorithm_is_the_published_one(name: str) -> None:
    config, _ = load_config(Path(name))
    small, _ = load_config(Path(name + SMALL))
    sizes = {"lr", "micro_batch_tokens", "recompute", "ranks", "context_parallel"}
    assert small.train.model_dump(exclude=sizes) == config.train.model_dump(exclude=sizes)
    kept, published = ((one.rollout.group_size, one.control.max_staleness) for one in (small, config))
    assert kept == published
    kept_reward, reward = ([(part.name, part.weight) for part in one.reward.parts] for one in (small, config))
    assert kept_reward == reward
    assert small.rollout.is_agent == config.rollout.is_agent
    assert small.name == name + SMALL
    assert (small.launcher, small.engine.kind) == ("local", "embedded")


@pytest.mark.parametrize(
    ("name", "engines", "ranks"),
    [("areal-7b-math", 3, 1), ("sea-235b-a22b", 2, 3), ("sea-30b-a3b", 2, 2), ("sea-8b", 2, 1), ("sea-1.7b", 3, 1)],
)
def test_engines_and_ranks_are_as_many_to_each_other_as_published(name: str, engines: int, ranks: int) -> None:
    small, _ = load_config(Path(name + SMALL))
    assert (small.resources.engines, small.train.ranks) == (engines, ranks)


@pytest.mark.parametrize("kind", TASKS)
def test_the_rows_of_a_small_task(kind: str, tmp_path: Path) -> None:
    write_rows(TASKS[kind], tmp_path, seed=0)
    held_out, train, lessons = (read_lines(tmp_path / f"{name}.jsonl") for name in ("held_out", "train", "lessons"))
    assert len(held_out) == 32
    assert len(train) > 64
    assert len(lessons) > 10 * len(train)
    assert {"prompt", "answer"} <= set(lessons[0])


async def test_a_small_preset_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    changes = ["control.steps=3", "evaluate.every=3", "resources.engines=1"]
    warm_up = ["control.steps=3", "control.groups_per_step=16"]
    line = await run_small("areal-1.5b-math-small", changes, warm_up=warm_up)
    assert line.startswith("areal-1.5b-math-small: reward -")
    assert "(bound 8)" in line
    folder = RunFolder(Path("runs/areal-1.5b-math-small"))
    steps = read_lines(folder.metrics)
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert all(-5 <= step["reward_mean"] <= 5 for step in steps)
    assert "  minibatches: 4  # preset areal-1.5b-math\n" in folder.config.read_text()
    assert "1 engine(s)" in describe(prepare(*load_config(Path("areal-7b-math-small"), ["resources.engines=1"])))
    with pytest.raises(ConfigError, match="is not for a laptop: choose areal-7b-math-small"):
        await run_small("areal-7b-math")
