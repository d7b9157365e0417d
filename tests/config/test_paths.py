"""Paths of a run: found beside its file, or where one stands; whole in its config.yaml."""

from pathlib import Path

import pytest

from freerun.config.load import config_of, load_config, load_section
from freerun.config.paths import with_whole_paths
from freerun.rewards.config import RewardConfig

FILE = """
model: {path: model}
data: {source: train.jsonl}
held_out: {source: rows.py:rows}
reward: {judge: [exact, {name: mine.py:judge, weight: 0.5}]}
rollout: {kind: tools, tools: [{function: mine.py:add}, {mcp: [./server.sh, serve.js, data]}]}
observers: [mine.py:Seen]
runs: out
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder, here = tmp_path / "project", tmp_path / "here"
    (folder / "model").mkdir(parents=True)
    here.mkdir()
    for name in ("train.jsonl", "rows.py", "mine.py", "server.sh", "serve.js", "data"):
        (folder / name).write_text("")
    (folder / "run.yaml").write_text(FILE)
    monkeypatch.chdir(here)
    return folder


def test_what_a_file_names_lies_beside_it(project: Path) -> None:
    for config in (load_config(project / "run.yaml")[0], config_of(project / "run.yaml")[0]):
        assert config.model.path == f"{project}/model"
        assert config.data.source == f"{project}/train.jsonl"
        assert config.held_out is not None
        assert config.held_out.source == f"{project}/rows.py:rows"
        assert config.reward.judge == ["exact", {"name": f"{project}/mine.py:judge", "weight": 0.5}]
        function, server = config.rollout.tools
        assert function == {"function": f"{project}/mine.py:add"}
        assert server == {"mcp": [f"{project}/server.sh", f"{project}/serve.js", "data"]}, "an argument is no path"
        assert config.observers == (f"{project}/mine.py:Seen",)
        assert config.runs == "out", "what is written goes where one stands"
    assert load_section("reward", RewardConfig, project / "run.yaml").files == [project / "mine.py"]


def test_else_it_is_where_one_stands_and_so_is_what_the_command_line_names(project: Path) -> None:
    here = Path.cwd()
    (project / "train.jsonl").unlink()
    for name in ("train.jsonl", "mine.py", "plain.py"):
        (here / name).write_text("")
    config, origins = load_config(
        project / "run.yaml", ["reward.judge=mine.py:judge", "rollout.kind=plain:Rollout", "rollout.tools=[]"]
    )
    assert config.data.source == "train.jsonl"
    assert config.reward.judge == "mine.py:judge"
    whole = with_whole_paths(config)
    assert whole.data.source == f"{here}/train.jsonl"
    assert whole.reward.judge == f"{here}/mine.py:judge"
    assert whole.rollout.kind == f"{here}/plain.py:Rollout"
    assert whole.runs == f"{here}/out"
    assert whole.model.path == f"{project}/model"
    assert origins["model.path"] == "run.yaml"


@pytest.mark.parametrize("source", ["hub:openai/gsm8k", "reasoning-gym:chain_sum", "seeds:12", "json:loads"])
def test_what_names_no_file_stays(source: str, project: Path) -> None:
    config, _ = load_config(None, ["model.path=Qwen/Qwen3-8B", f"data.source={source}"])
    whole = with_whole_paths(config)
    assert (whole.model.path, whole.data.source, whole.reward.judge) == ("Qwen/Qwen3-8B", source, "exact")
    assert whole.train.objective == config.train.objective
