"""Bad input: one clear line that names the fix, exit code 2, nothing started."""

import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from freerun.cli.ending import end_with
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
        ("runs={tmp}/run.yaml", "run.yaml/test' cannot be made (Not a directory): set runs to a folder of yours"),
        ('runs="a\\0b"', "cannot be made (embedded null byte)"),
        ('data.source="a\\0b"', "a character of code 0"),
        ('model.path="a\\0b"', "a character of code 0"),
        ("model.path=acme/none", "is not in the Hugging Face cache"),
        ("rollout.group_size=0", "rollout.group_size: Input should be greater than or equal to 1"),
        ("train.lr=.inf", "train.lr: Input should be a finite number"),
        ("train.lr=fast", "train.lr: Input should be a valid number"),
        ("rollout.temperature=.inf", "rollout.temperature: Input should be a finite number"),
        ("seed=99999999999999999999", "seed: Input should be less than"),
        ("train=5", "train"),
        ("train..lr=5", "unknown key train."),
        ("=5", "is not KEY=VALUE"),
        ("train.lr=[", "the value is not YAML"),
        ("name=..", "a run's name is one folder name"),
        ("reward.judge=[]", "reward.judge is an empty list"),
        ("reward.judge={name: exact, weight: .nan}", "weight must be a finite number"),
        ("observers=[none.py:X]", "there is no file none.py"),
        ("train.objective=gpro", "did you mean gspo?"),
    ],
)
def test_one_line_and_code_2(
    run_yaml: Path, override: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_yaml.parent / "empty.jsonl").write_text("")
    (run_yaml.parent / "rewards.py").write_text(REWARDS)
    override = override.replace("{tmp}", str(run_yaml.parent))
    code, errors = freerun("train", run_yaml, override, monkeypatch=monkeypatch, capsys=capsys)
    assert code == 2
    assert len(errors.strip().splitlines()) == 1
    assert errors.startswith("freerun: ")
    assert says in errors
    assert not (run_yaml.parent / "runs").exists(), "something was started"


MODEL = "model/config.json"
BROKEN_TEMPLATE = '{"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": "{{ messages[0].content + 1 }}"}'


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        (MODEL, "{", "config.json is not JSON"),
        (MODEL, '{"model_type": "gpt9"}', "model_type 'gpt9' is not known, neither to Freerun nor to transformers"),
        ("model/generation_config.json", "{", "generation_config.json is not JSON"),
        (
            "model/tokenizer_config.json",
            BROKEN_TEMPLATE,
            "the tokenizer's chat template refuses the prompt (can only concatenate str",
        ),
        ("model/model.safetensors", "", "is no safetensors file"),
        ("model/model.safetensors.index.json", '{"weight_map": {"a": "b.safetensors"}}', "lacks b.safetensors"),
        ("model/tokenizer.json", "{", "cannot be read ("),
        ("model/tokenizer_config.json", "{", "cannot be read ("),
        ("train.jsonl", "", "holds no rows"),
        ("train.jsonl", "hello\n", "train.jsonl:1: not valid JSON"),
        ("train.jsonl", "[1]\n", "a line must be a JSON object"),
        ("train.jsonl", '{"question": "a>"}\n', 'has no "prompt"'),
        ("train.jsonl", '{"prompt": 5}\n', "this one is of type int"),
        ("train.jsonl", '{"prompt": "a>"}\n{"prompt": null}\n', "this one is empty"),
        ("train.jsonl", '{"prompt": "' + "a" * 100_000 + '"}\n', "has a prompt of 100000 tokens"),
        ("train.jsonl", '{"prompt": "\\ud800"}\n', "half a character"),
        ("train.jsonl", "\ufeff" + '{"prompt": "a>", "answer": "a"}\r\n', "has only 1 tasks"),
        ("run.yaml", "", "run.yaml is empty"),
        ("run.yaml", "- a\n", "should hold keys and values"),
        ("run.yaml", "model: {path: a\n", "is not YAML"),
        ("run.yaml", "\0", "is not YAML"),
    ],
)
def test_broken_files_are_one_line(
    run_yaml: Path,
    file: str,
    content: str,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (run_yaml.parent / file).write_bytes(content.encode())
    for command in ("train", "sft") if file.startswith("model/") else ("train",):
        code, errors = freerun(command, run_yaml, monkeypatch=monkeypatch, capsys=capsys)
        assert code == 2
        assert errors.count("\n") == 1, errors
        assert errors.startswith("freerun: ")
        assert says in errors
        assert not (run_yaml.parent / "runs").exists(), "something was started"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "{tmp}"], "is a folder: give a run's YAML file, such as {tmp}/run.yaml"),
        (["train", "{tmp}/none.yaml"], "there is no file {tmp}/none.yaml"),
        (["resume", "{tmp}/run.yaml"], "is not a run's folder"),
        (["serve", "{tmp}/none", "--port", "0"], "there is no folder {tmp}/none"),
        (["serve", "acme/none", "--port", "0"], "is not in the Hugging Face cache"),
        (["score", "{tmp}/run.yaml", "--out", "{tmp}"], "--out {tmp} cannot be written"),
        (["judge", "--reward", "exact", "{tmp}/none.jsonl"], "there is no {tmp}/none.jsonl"),
        (["plan", "{tmp}/run.yaml", "model.path=acme/none"], "is not in the Hugging Face cache"),
        (["config", "areal-2b"], "did you mean the preset areal-"),
        (["node", "--join", "nonsense"], "it is HOST:PORT"),
    ],
)
def test_other_commands_say_it_in_a_line(
    run_yaml: Path,
    words: list[str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [word.replace("{tmp}", str(run_yaml.parent)) for word in words]
    code, errors = freerun(*given, monkeypatch=monkeypatch, capsys=capsys)
    assert code == 2
    assert errors.count("\n") == 1, errors
    assert says.replace("{tmp}", str(run_yaml.parent)) in errors


def test_a_dry_run_says_all_that_would_fail_and_leaves_nothing(
    run_yaml: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_yaml.parent
    (folder / "rewards.py").write_text(REWARDS)
    weights = folder / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    before = sorted(folder.rglob("*"))
    wrong = [f"reward.judge={folder}/rewards.py:broken", f"held_out.source={folder}/none.jsonl", "observers=[no.py:X]"]
    wrong += [f"runs={run_yaml}/x", "rollout.max_new_tokens=9000", "control.groups_per_step=361"]
    code, said = freerun("train", run_yaml, "--dry-run", *wrong, monkeypatch=monkeypatch, capsys=capsys)
    assert code == 2
    for line in (
        "no file no.py",
        "is cut off",
        "none.jsonl",
        "ValueError: the reward has a bug",
        "cannot be written to",
    ):
        assert sum(line in one for one in said.splitlines()) == 1, line
    assert "9000" in said
    assert "has only 360 tasks" in said
    assert all(line.startswith("freerun: ") for line in said.splitlines())
    assert sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts) == before


def test_a_dry_run_asks_the_judge_and_tries_the_disk(
    run_yaml: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_yaml.parent / "slow.py").write_text("def judge(task, text):\n    while True: pass\n")
    code, said = freerun("train", run_yaml, "--dry-run", monkeypatch=monkeypatch, capsys=capsys)
    assert code == 0
    assert "judge      exact gives 1 for the reference answer of task train:0" in said
    assert "with every tensor of the model" in said
    assert "checkpoints need" in said
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    slow = [f"reward.judge={run_yaml.parent}/slow.py:judge", "reward.timeout_s=0.3"]
    code, said = freerun("train", run_yaml, "--dry-run", *slow, monkeypatch=monkeypatch, capsys=capsys)
    assert code == 2
    assert "no verdict after 0.3 s: killed" in said
    assert "has room for 1.0 kB, and 3 checkpoints need " in said


def test_what_nobody_foresaw_is_a_line_and_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fails() -> None:
        raise KeyError("oops")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert end_with(fails) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    (kept,) = tmp_path.iterdir()
    assert "KeyError: 'oops'" in said
    assert str(kept) in said
    assert "Traceback" in kept.read_text()


def test_a_reward_that_always_raises_stops_the_run_in_a_line(
    run_yaml: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_yaml.parent / "rewards.py").write_text(REWARDS)
    judge = f"reward.judge={run_yaml.parent / 'rewards.py'}:broken"
    code, errors = freerun("train", run_yaml, judge, monkeypatch=monkeypatch, capsys=capsys)
    assert code == 2
    assert "rewards.py:3: ValueError: the reward has a bug" in errors
    (line,) = errors.splitlines()
    assert line.startswith("freerun: ")
    assert "32 judgements in a row failed" in line
    assert list((run_yaml.parent / "runs").iterdir()) == [], "nothing was learned, and nothing is left"
    monkeypatch.setenv("FREERUN_TRACEBACK", "1")
    code, errors = freerun("train", run_yaml, judge, monkeypatch=monkeypatch, capsys=capsys)
    assert errors.count("Traceback") == 1


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
    assert f"kept in {run_yaml.parent}/runs/test-eval" in text
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
