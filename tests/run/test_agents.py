"""Whole runs of agents, with every real process: what fails costs its member alone, the bound holds for trajectories of
many versions, and whatever is killed, the run goes on or is gone."""

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from freerun.config.load import load_config
from freerun.control.config import ControlConfig
from freerun.core import FreerunError
from freerun.models.bpe import END, write_bpe_tokenizer
from freerun.models.checkpoint import save_decoder
from freerun.models.tokenizer import load_tokenizer
from freerun.observe.folder import RunFolder
from freerun.observe.records import read_steps
from freerun.observe.sample_reader import SampleReader
from freerun.observe.search import SampleFilter
from freerun.observe.status import read_status
from freerun.observe.timeline import read_spans
from freerun.run import training
from freerun.run.evaluating import evaluate
from freerun.run.prepare import Prepared, prepare, prepare_eval
from tests.cli.test_stopping import descendants
from tests.tiny import tiny_decoder
from tests.typed import freerun

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

AGENT = """
import asyncio, os
from pathlib import Path

METRICS = Path(__file__).parent / "runs" / "trouble" / "metrics.jsonl"

def steps():
    return METRICS.read_text().count("\\n") if METRICS.exists() else 0

async def run(task, session, fails=False):
    does = task.extra.get("does") if session.member == 0 else None
    if fails or does == "raises":
        raise KeyError("answer")
    if does == "hangs":
        await asyncio.sleep(1e6)
    if does == "crashes":
        os.kill(os.getpid(), 9)
    if does == "asks a stranger":
        await session.chat([{"role": "user", "content": "q"}], model="gpt-5")
    messages, length, before = [{"role": "user", "content": task.prompt}], 0, steps()
    for turn in range(0 if does == "never asks" else task.extra["turns"]):
        said = await session.chat(messages)
        messages += [said, {"role": "user", "content": f"more {turn}"}]
        while does == "waits" and not turn and steps() < before + 2:
            await asyncio.sleep(0.02)
        length += len(said["content"])
    if does == "returns text":
        return "good"
    if does == "returns NaN":
        return float("nan")
    return length / 100
"""
FAILURES = {
    "raises": "error", "hangs": "deadline", "crashes": "crash", "asks a stranger": "error", "never asks": "no_call",
    "returns text": "bad_result", "returns NaN": "bad_result",
}  # fmt: skip
FREERUN = (sys.executable, "-m", "freerun.cli.main")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, tasks and an agent."""
    folder = tmp_path_factory.mktemp("agents")
    tokenizer = load_tokenizer(write_bpe_tokenizer(folder / "tokenizer"))
    end = tokenizer.convert_tokens_to_ids(END)
    save_decoder(
        tiny_decoder(vocab_size=len(tokenizer), eos_token_id=end, max_position_embeddings=1024), folder / "model"
    )
    write_bpe_tokenizer(folder / "model")
    does = [*FAILURES, *[None] * 4, "waits"]  # until its first turn is too old
    rows = [
        {"prompt": f"say {number}", "answer": "x", "does": does[number % 12], "turns": 12 if number % 4 == 0 else 2}
        for number in range(48)
    ]
    for name, part in (("train", rows), ("fine", rows[7:11]), ("held_out", rows[8:9])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    (folder / "agent.py").write_text(AGENT)
    return folder


def prepared(folder: Path, *overrides: str, how: Any = prepare) -> Prepared:
    base = [
        f"runs={folder / 'runs'}", f"model.path={folder / 'model'}", f"data.source={folder / 'train.jsonl'}",
        f"held_out.source={folder / 'held_out.jsonl'}", f"rollout.agent={folder / 'agent.py'}:run",
        "rollout.max_new_tokens=6", "rollout.context_tokens=600", "engine.cache_tokens=16384", "reward.workers=1",
        "train.lr=5e-3", "train.warmup_steps=0", "train.minibatches=1", "data.shuffle=false", "evaluate.pass_reward=0",
    ]  # fmt: skip
    return how(*load_config(None, [*base, *overrides]))  # type: ignore[no-any-return]


def started(folder: Path, run: Prepared) -> subprocess.Popen[str]:
    file = folder / f"{run.config.name}.yaml"
    file.write_text(run.config.model_dump_json())
    return subprocess.Popen(
        [*FREERUN, "train", str(file)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def until(condition: Callable[[], bool], going: subprocess.Popen[str], patience_s: float = 90) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert going.poll() is None, going.communicate()[1]
        assert time.monotonic() < deadline
        select.select([], [], [], 0.02)


def sessions_of(folder: RunFolder) -> Counter[str]:
    counts = Counter[str]()
    for record in _metrics(folder):
        counts.update(record["agents"]["sessions"])
    return counts


def _saved(folder: RunFolder) -> list[int]:
    """The steps whose checkpoints are complete."""
    names = [path.name for path in folder.checkpoints.glob("step-*")]
    return [int(name.removeprefix("step-")) for name in names if name.removeprefix("step-").isdigit()]


def _masked(folder: RunFolder) -> float:
    return sum(float(record["trainer"]["masked_tokens"]) for record in _metrics(folder))


def _metrics(folder: RunFolder) -> list[dict[str, Any]]:
    lines = folder.metrics.read_text().splitlines(keepends=True) if folder.metrics.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def processes_of_agents(pid: int) -> tuple[int, set[int]]:
    """The forkserver, and its workers, which have its command line."""
    alike = {child for child in descendants(pid) if _is_of_agents(child)}
    workers = set[int]().union(*(descendants(child) for child in alike))
    (forkserver,) = alike - workers
    return forkserver, workers


def _is_of_agents(pid: int) -> bool:
    try:
        return b"freerun.rollouts.agents.forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:  # it is gone
        return False


def watched(pid: int) -> dict[int, int]:
    """The descendants that are alive, and what becomes readable when each is gone."""
    family = {}
    for child in descendants(pid):
        with suppress(ProcessLookupError):
            family[child] = os.pidfd_open(child)
    return family


SAID = (
    *("agent.py:13: KeyError: 'answer'", "not done after 4 s: killed", "ask for 'policy'", "never asked"),
    *("SIGKILL", "returned 'good'", "nan"),
)


def _noted(folder: RunFolder) -> bool:
    notes = folder.notes.read_text() if folder.notes.exists() else ""
    return all(said in notes for said in SAID)


def test_whatever_agents_do_the_run_goes_on_and_ends_at_once(place: Path) -> None:
    run = prepared(
        *(place, "name=trouble", "control.steps=100000", "control.max_staleness=1", "control.when_stale=mask"),
        *("rollout.group_size=3", "control.groups_per_step=2", "rollout.deadline_s=4", "evaluate.every=4"),
    )
    folder, going = RunFolder(place / "runs" / "trouble"), started(place, run)
    try:
        until(lambda: set(FAILURES.values()) | {"ok"} <= set(sessions_of(folder)), going)
        until(lambda: _masked(folder) > 0 and _noted(folder) and _without_one(folder), going)
        crashed, steps = sessions_of(folder)["crash"], len(_metrics(folder))
        until(lambda: bool(processes_of_agents(going.pid)[1]), going)
        forkserver, workers = processes_of_agents(going.pid)
        with suppress(ProcessLookupError):
            os.kill(min(workers), signal.SIGKILL)
        os.kill(forkserver, signal.SIGKILL)
        until(lambda: sessions_of(folder)["crash"] > crashed and len(_metrics(folder)) >= steps + 4, going)
        family = watched(going.pid)
        began = time.monotonic()
        going.send_signal(signal.SIGINT)
        errors = going.communicate(timeout=15)[1]
        assert all(select.select([end], [], [], 5)[0] for end in family.values())
        assert time.monotonic() - began < 10
        assert "Traceback" not in errors, errors
    finally:
        going.kill()
    _check_trouble(folder)


def _check_trouble(folder: RunFolder) -> None:
    steps = read_steps(folder.metrics)
    assert max(step.staleness_max for step in steps) == 1, "asynchronous, within its bound"
    assert _masked(folder) > 0, "of trajectories whose late turns were trained on"
    assert _without_one(folder)
    assert _noted(folder)
    assert folder.evals.read_text()
    spans = [span for span in read_spans(folder.timeline) if span.process == "agents"]
    assert sum(span.args["sessions"] for span in spans) >= sum(_metrics(folder)[-1]["agents"]["sessions"].values())
    status = read_status(folder.path)
    assert status
    assert status.state == "stopped"
    with closing(SampleReader(folder.samples)) as reader:
        row = reader.page(SampleFilter(fate="trained")).rows[0]
        assert any(turn.sampled for turn in reader.one(row.id).turns)


def _without_one(folder: RunFolder) -> bool:
    """Whether a step was trained on a group without its failed member."""
    return bool({4, 5} & {record["samples"] for record in _metrics(folder)})


EXACT = (
    "control.max_staleness=0", "control.groups_per_step=1", "rollout.group_size=2", "rollout.max_sessions=1",
)  # fmt: skip
"""One request at a time: the company that an answer has in a forward pass changes its rounding."""


def test_a_killed_run_runs_its_sessions_again_and_learns_the_same(place: Path) -> None:
    exact = (*EXACT, f"data.source={place / 'fine.jsonl'}")
    run = prepared(place, *exact, "name=killed", "control.steps=100000", "train.save_every=2")
    folder, going = RunFolder(place / "runs" / "killed"), started(place, run)
    try:
        until(lambda: bool(_saved(folder)), going)
        family = watched(going.pid)
        assert {processes_of_agents(going.pid)[0]} < set(family)
    finally:
        going.kill()
    going.communicate()
    assert all(select.select([end], [], [], 5)[0] for end in family.values()), "its children go with it"
    steps = max(_saved(folder)) + 3
    assert f"done: {steps} steps" in freerun("resume", folder.path, f"control.steps={steps}").stdout
    whole = asyncio.run(training.train(prepared(place, *exact, "name=unbroken", f"control.steps={steps}")))
    assert [step.reward_mean for step in whole.steps] == [step.reward_mean for step in read_steps(folder.metrics)]
    assert all(step.staleness_max == 0 for step in whole.steps)
    resumed, unbroken = (load_file(one.checkpoints / "last" / "model.safetensors") for one in (folder, whole.folder))
    assert all(torch.equal(resumed[key], unbroken[key]) for key in unbroken)
    assert sum(step.samples for step in read_steps(folder.metrics)) == steps * 2, "every task is trained on once"


async def test_agents_that_all_fail_end_the_run_with_one_line(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ControlConfig, "give_up_after", 2)
    agent = f"rollout.agent={{name: {place / 'agent.py'}:run, fails: true}}"
    run = prepared(place, agent, "name=failing", "rollout.group_size=2")
    with pytest.raises(FreerunError, match=r"groups were all dropped.*agent\.py:13: KeyError: 'answer'") as ended:
        await training.train(run)
    assert "\n" not in str(ended.value)


async def test_evaluation_with_agents(place: Path) -> None:
    found = await evaluate(prepared(place, "evaluate.samples=3", "name=looked", how=prepare_eval), lambda: None)
    assert (found.tasks, found.k) == (1, 3)
    assert found.pass_at_1 == 1.0
