"""Bad input: one clear line that names the fix, exit code 2, nothing started."""

import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from freerun.cli.main import main
from tests.run.test_train import prepared


@pytest.fixture
def run_yaml(tmp_path: Path) -> Path:
    file = tmp_path / "run.yaml"
    file.write_text(prepared(tmp_path, "control.steps=2").config.model_dump_json())
    return file


def freerun(*arguments: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["freerun", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.err if ended.value.code else captured.out


REWARDS = """
def broken(task, text):
    raise ValueError("the reward has a bug")
"""


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("train.lrr=1", "unknown key train.lrr; did you mean train.lr?"),
        ("model.path=nowhere", "there is no folder nowhere"),
        ("data.source={tmp}/empty.jsonl", "empty.jsonl"),
        ("data.source={tmp}/none.jsonl", "none.jsonl"),
        ("data.max_prompt_tokens=1", "max_prompt_tokens"),
        ("rollout.group_size=1", "raise rollout.group_size"),
        ("control.groups_per_step=361", "has only 360 tasks"),
        ("rollout.max_new_tokens=9000", "exceeds the model's 8192 positions"),
        ("engine.cache_tokens=16", "engine.cache_tokens is 16, too few"),
        ("reward.judge={tmp}/none.py:f", "none.py"),
        ("reward.judge={tmp}/rewards.py:brokn", "broken"),
        ("reward.judge=exakt", "exact"),
        ("nonsense", "KEY=VALUE"),
        ("runs={tmp}/run.yaml", "run.yaml/test cannot be made (Not a directory): set runs to a folder of yours"),
    ],
)
def test_one_line_and_code_2(
    run_yaml: Path, override: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_yaml.parent / "empty.jsonl").write_text("")
    (run_yaml.parent / "rewards.py").write_text(REWARDS)
    override = override.format(tmp=run_yaml.parent)
    code, errors = freerun("train", run_yaml, override, monkeypatch=monkeypatch, capsys=capsys)
    assert code == 2
    assert len(errors.strip().splitlines()) == 1
    assert errors.startswith("freerun: ")
    assert says in errors
    assert not (run_yaml.parent / "runs").exists(), "something was started"


def test_a_reward_that_always_raises_stops_the_run_with_its_first_traceback(
    run_yaml: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_yaml.parent / "rewards.py").write_text(REWARDS)
    judge = f"reward.judge={run_yaml.parent / 'rewards.py'}:broken"
    code, errors = freerun("train", run_yaml, judge, monkeypatch=monkeypatch, capsys=capsys)
    assert code == 2
    assert "ValueError: the reward has a bug" in errors
    assert errors.count("Traceback") == 1
    last = errors.strip().splitlines()[-1]
    assert last.startswith("freerun: ")
    assert "32 judgements in a row failed" in last


def test_a_dry_run_prints_the_plan_and_starts_nothing(
    run_yaml: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, plan = freerun("train", run_yaml, "--dry-run", "train.ranks=2", monkeypatch=monkeypatch, capsys=capsys)
    assert code == 0
    assert "trainer: 2 ranks of 1 thread(s), " in plan
    assert "8 groups × 8 samples = 64 samples a step" in plan
    assert "(η + 1) · B = 320 samples" in plan
    assert not (run_yaml.parent / "runs").exists()


def test_a_dry_run_finds_what_is_wrong_with_an_agent(
    run_yaml: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tokenizer,) = run_yaml.parent.rglob("tokenizer_config.json")
    template = "{% for message in messages %}{{ message['content'] }}>{% endfor %}"
    tokenizer.write_text(json.dumps(json.loads(tokenizer.read_text()) | {"chat_template": template}))
    for source, told in (
        ("async def run(task, session): pass", None),
        ("import nothing_here\nasync def run(task, session): pass", "install nothing_here"),
        ("def run(task, session): pass", "run is not async"),
    ):
        (run_yaml.parent / "mine.py").write_text(source)
        agent = f"rollout.agent={run_yaml.parent}/mine.py:run"
        code, said = freerun("train", run_yaml, "--dry-run", agent, monkeypatch=monkeypatch, capsys=capsys)
        assert code == (2 if told else 0), said
        assert (told or "samples a step") in said
        assert told is None or said.count("\n") == 1
        if told:
            code, said = freerun("train", run_yaml, agent, monkeypatch=monkeypatch, capsys=capsys)
            assert (code, said.count("\n")) == (2, 1), said
            assert not list(run_yaml.parent.rglob("config.yaml")), "no run was begun"


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["rollout.env=textarena:NoSuchGame-v0"], 'textarena has no game "NoSuchGame-v0"'),
        (["rollout.env=textarna:GuessTheNumber-v0"], "did you mean textarena?"),
        (["rollout.command=[nothing-here]"], "there is no program nothing-here: install it"),
        (["rollout.kind=tools", "rollout.tools=[{mcp: [nothing-here]}]"], "the MCP server nothing-here does not start"),
        (["rollout.kind=tools"], "add rollout.tools"),
        (["rollout.tools=[{mcp: [program]}]"], "rollout.tools is for rollout.kind: tools"),
        (["rollout.agent=a.py:run", "rollout.env=textarena:X"], "both say who talks to the policy: keep one"),
        (["rollout.command=[echo]", "rollout.context_tokens=9000"], "rollout.context_tokens is 9000"),
        (["rollout.command=[echo]", "model.path={tmp}/mute"], "the model has no chat template"),
    ],
)
def test_agents_that_cannot_run_are_told_before_anything_starts(
    run_yaml: Path,
    overrides: list[str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tokenizer,) = run_yaml.parent.rglob("tokenizer_config.json")
    shutil.copytree(tokenizer.parent, run_yaml.parent / "mute")
    template = "{% for message in messages %}{{ message['content'] }}>{% endfor %}"
    tokenizer.write_text(json.dumps(json.loads(tokenizer.read_text()) | {"chat_template": template}))
    given = [override.format(tmp=run_yaml.parent) if "{tmp}" in override else override for override in overrides]
    code, errors = freerun("train", run_yaml, *given, monkeypatch=monkeypatch, capsys=capsys)
    assert code == 2
    assert len(errors.strip().splitlines()) == 1
    assert says in errors
    assert len(errors) < 300, "a line, not a whole section"
    assert not (run_yaml.parent / "runs").exists(), "something was started"


def test_tasks_that_are_trained_and_evaluated_on_are_told(
    run_yaml: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for held_out, told in (("train.jsonl", True), ("other.jsonl", False)):
        (run_yaml.parent / "other.jsonl").write_text('{"prompt": "ddd>", "answer": "x"}\n')
        overrides = [f"held_out.source={run_yaml.parent / held_out}", "held_out.max_prompt_tokens=8"]
        code, plan = freerun("train", run_yaml, "--dry-run", *overrides, monkeypatch=monkeypatch, capsys=capsys)
        assert code == 0
        assert ("held_out tasks are in data too" in plan) is told


def test_config_and_doctor_explain(
    run_yaml: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = freerun("config", monkeypatch=monkeypatch, capsys=capsys)
    assert code == 0
    assert "control.max_staleness" in text
    assert "0 is synchronous training" in text
    code, text = freerun("config", run_yaml, "train.lr=0.5", monkeypatch=monkeypatch, capsys=capsys)
    assert "lr: 0.5  # command line" in text
    code, text = freerun("doctor", monkeypatch=monkeypatch, capsys=capsys)
    assert code == 0
    assert "weights through" in text


def test_eval_and_sft_commands(
    run_yaml: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = freerun("eval", run_yaml, "evaluate.samples=2", monkeypatch=monkeypatch, capsys=capsys)
    assert code == 0
    assert "95% interval" in text
    assert "pass@2" in text
    code, text = freerun("sft", run_yaml, "control.steps=3", "name=s", monkeypatch=monkeypatch, capsys=capsys)
    assert code == 0
    assert "the model is in" in text
    lines = (run_yaml.parent / "runs" / "s" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]


def test_more_tasks_are_evaluated_than_files_may_be_open(run_yaml: Path) -> None:
    """Each holds a connection, here and in the engine, and the usual limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    command = [sys.executable, "-m", "freerun.cli.main", "eval", str(run_yaml)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        done = subprocess.run(
            [*command, f"held_out.source={run_yaml.parent / 'train.jsonl'}"],
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert done.returncode == 0, done.stderr
    assert "360 tasks" in done.stdout


def test_resume_and_export_of_what_is_not_there(
    run_yaml: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = run_yaml.parent / "nothing"
    for command in (["resume", nothing], ["export", nothing, run_yaml.parent / "out"]):
        code, errors = freerun(*command, monkeypatch=monkeypatch, capsys=capsys)
        assert code == 2
        assert errors == f"freerun: {nothing} is not a run's folder: it has no config.yaml\n"
    nothing.mkdir()
    (nothing / "config.yaml").write_text(run_yaml.read_text())
    code, errors = freerun("resume", nothing, monkeypatch=monkeypatch, capsys=capsys)
    assert code == 2
    assert errors.startswith(f"freerun: {nothing / 'checkpoints'} holds no checkpoint: set train.save_every")
