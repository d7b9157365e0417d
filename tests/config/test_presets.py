"""Published sets of settings: each loads, and says what was published."""

from pathlib import Path

import pytest

from freerun.config.load import config_of, load_config, load_dumped, load_section
from freerun.config.preset import preset_names, preset_notes
from freerun.config.text import dump
from freerun.core import ConfigError
from freerun.rewards.config import RewardConfig
from freerun.train.corrections import TokenWeight

PUBLISHED = [name for name in preset_names() if not name.endswith("-small")]
AREAL = [name for name in PUBLISHED if not name.startswith("sea")]


def test_every_published_run_has_a_preset_and_a_small_sibling() -> None:
    names = "areal-1.5b-math areal-7b-math areal-14b-code areal-32b-code boba-2-8b boba-2-14b boba-2-32b"
    assert sorted(PUBLISHED) == sorted(f"{names} sea-235b-a22b sea-30b-a3b sea-8b sea-1.7b".split())
    assert sorted(preset_names()) == sorted([*PUBLISHED, *(f"{name}-small" for name in PUBLISHED)])


@pytest.mark.parametrize("name", AREAL)
def test_the_papers_hyper_parameters(name: str) -> None:
    config, _ = load_config(Path(name))
    control, rollout, train = config.control, config.rollout, config.train
    assert (control.groups_per_step, rollout.group_size, train.minibatches) == (512, 16, 4)
    assert control.max_staleness == (8 if "math" in name else 4)
    assert (train.clip.low, train.clip.high, train.clip.dual, train.kl.coef) == (0.2, 0.2, None, 0.0)
    assert (train.objective, train.advantages, train.proximal) == ("decoupled_ppo", "batch", "recompute")
    assert train.corrections == (TokenWeight(),)
    assert (train.lr, train.betas, train.eps, train.weight_decay) == (2e-5, (0.9, 0.95), 1e-5, 0.05)
    assert (train.clip_grad, train.decay_steps, train.micro_batch_tokens) == (1.0, 0, 32_768)
    assert (rollout.temperature, rollout.top_p, rollout.top_k) == (1.0, 1.0, 0)
    assert (config.data.max_prompt_tokens, rollout.max_new_tokens) == (1_024, 27_648)
    judge, constant = config.reward.parts
    assert judge.name == ("math" if "math" in name else "code")
    assert (judge.weight + constant.weight, constant.weight) == (5, -5)
    assert config.resources.gpus == 8 * config.resources.machines


@pytest.mark.parametrize(
    ("name", "nodes", "steps"),
    [("areal-1.5b-math", 16, 250), ("areal-7b-math", 24, 250), ("areal-14b-code", 32, 80), ("areal-32b-code", 48, 60)],
)
def test_the_papers_machines_and_steps(name: str, nodes: int, steps: int) -> None:
    config, _ = load_config(Path(name))
    assert (config.resources.machines, config.control.steps) == (nodes, steps)


@pytest.mark.parametrize(
    ("name", "nodes", "engines", "parallel", "ranks"),
    [("sea-235b-a22b", 10, 4, 8, 48), ("sea-30b-a3b", 8, 8, 4, 32), ("sea-8b", 3, 16, 1, 8), ("sea-1.7b", 1, 6, 1, 2)],
)
def test_seas_hyper_parameters(name: str, nodes: int, engines: int, parallel: int, ranks: int) -> None:
    config, _ = load_config(Path(name))
    control, rollout, train = config.control, config.rollout, config.train
    assert (config.resources.machines, config.resources.engines, train.ranks) == (nodes, engines, ranks)
    assert (config.engine.kind, config.engine.tensor_parallel) == ("sglang", parallel)
    assert (control.groups_per_step, rollout.group_size, control.max_staleness) == (16, 16, 2)
    assert (rollout.max_new_tokens, rollout.context_tokens) == (8_192, 30_000)
    assert (rollout.max_turns, rollout.max_sessions) == (50, 128)
    assert (train.lr, train.betas, train.eps, train.weight_decay) == (5e-6, (0.9, 0.999), 1e-8, 0.005)
    assert (train.clip.low, train.clip.high, train.minibatches, train.micro_batch_tokens) == (0.4, 0.4, 1, 32_768)
    assert (train.objective, train.advantages, train.corrections) == ("grpo", "batch", (TokenWeight(cap=5.0),))
    assert any("drops groups of equal rewards" in note for note in preset_notes(name))
    assert any("pipeline parallel" in note for note in preset_notes(name)) == (name == "sea-235b-a22b")


def test_a_preset_lies_below_the_file_and_the_overrides(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("preset: areal-7b-math\nmodel: {path: m}\ntrain: {lr: 1e-6}\n")
    config, origins = load_config(file, ["control.max_staleness=2"])
    assert (config.model.path, config.train.lr, config.control.max_staleness) == ("m", 1e-6, 2)
    assert (config.train.minibatches, config.resources.machines) == (4, 24)
    assert origins["train.lr"] == "mine.yaml"
    assert origins["train.minibatches"] == "preset areal-1.5b-math", "which the other begins with"
    assert origins["resources.machines"] == "preset areal-7b-math"
    text = dump(config, origins)
    assert "minibatches: 4  # preset areal-1.5b-math" in text
    assert "preset: areal-7b-math  # mine.yaml" in text
    (tmp_path / "config.yaml").write_text(text)
    again, told = load_dumped(tmp_path / "config.yaml", ["train.lr=2e-6"])
    assert (again.train.lr, again.train.minibatches) == (2e-6, 4)
    assert told["train.minibatches"] == "preset areal-1.5b-math"
    with pytest.raises(ConfigError, match="a run keeps the settings"):
        load_dumped(tmp_path / "config.yaml", ["preset=sea-8b"])
    assert load_section("reward", RewardConfig, file).parts[0].weight == 10


def test_a_preset_by_name(tmp_path: Path) -> None:
    assert load_config(Path("sea-8b"))[0] == load_config(None, ["preset=sea-8b"])[0]
    assert config_of({"preset": "sea-8b"}, train__lr=1e-3)[0].train.lr == 1e-3
    for wrong, says in (("sea-8", "there is no file sea-8; did you mean the preset sea-8b?"), ("x.yaml", "x.yaml$")):
        with pytest.raises(ConfigError, match=says):
            load_config(Path(wrong))
