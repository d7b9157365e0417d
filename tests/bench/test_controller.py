"""`freerun bench controller` on work of a second: everything it measures has arrived, and what has not is noticed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from freerun.bench.controller import Site
from freerun.bench.namespaces import unavailable
from freerun.bench.scripted_child import PROMPT, SCRIPTS, CheckingTrainer, scripted
from freerun.core import Batch, FinishReason, Group, Sample, Task, TrainerError
from freerun.core.nouns import NOT_SAMPLED, VersionRuns
from tests.typed import freerun


def test_every_token_arrives_and_every_figure_is_printed() -> None:
    options = ["--answers", "96", "--tokens", "300", "--steps", "3", "--engines", "2"]
    with mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": ""}):
        done = freerun("bench", "controller", *options)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout.splitlines()[-1])
    frames, plain = record["runs"]
    assert (frames["form"], frames["tokens"]) == ("frames", 96 * 300 * 3)
    assert (plain["form"], plain["tokens"]) == ("json", 16 * 300 * 3)
    for run in (frames, plain):
        assert run["tokens_per_core_s"] > run["tokens_per_s"] / (os.cpu_count() or 1) > 0
        assert run["longest_block_s"] >= run["longest_busy_s"] >= 0
        assert run["others_core_s"] > 0
        assert run["to_trainer_s"] > 0
        assert "bytes_per_token" in run
    assert record["ratio"] == pytest.approx(frames["tokens_per_core_s"] / plain["tokens_per_core_s"])
    for figure in ("tokens/s on a core", "memory a token", "longest block", "until the trainer has it"):
        assert figure in done.stdout


@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
def test_engines_and_trainer_on_other_machines_are_compared_with_loopback() -> None:
    command = [sys.executable, "-m", "freerun.cli.main", "bench", "controller", "--namespaces", "--machines", "2"]
    options = ["--answers", "96", "--tokens", "300", "--steps", "2", "--engines", "3"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout.splitlines()[-1])
    local, apart = record["runs"]
    assert (local["form"], apart["form"], record["machines"]) == ("loopback", "namespaces", 2)
    assert local["tokens"] == apart["tokens"] == 96 * 300 * 2
    assert record["ratio"] == pytest.approx(apart["tokens_per_s"] / local["tokens_per_s"])
    assert all(run["start_s"] > 0 and run["others_bytes"] > 0 for run in (local, apart))


def test_engines_are_spread_over_machines() -> None:
    site = Site([("10.77.0.4", 1), ("10.77.0.5", 2), ("10.77.0.6", 3)], ("10.77.0.3", 4))
    assert site.shares(8) == [3, 3, 2]
    assert site.endpoint(Path("/run")) == "tcp://10.77.0.3:7420"
    assert Site().endpoint(Path("/run")) == "ipc:///run/trainer", "on one machine as a run has it there"


def test_an_odd_number_of_answers_is_refused() -> None:
    done = freerun("bench", "controller", "--answers", "100")
    assert done.returncode == 1
    assert "--answers is 100: take a multiple of 16" in done.stderr


def a_batch(tokens: int) -> Batch:
    samples = []
    for script in range(SCRIPTS):
        answer, logprobs = scripted(script, tokens)
        samples.append(
            Sample(
                np.concatenate([np.zeros(PROMPT, np.int32), answer]),
                np.arange(PROMPT + tokens) >= PROMPT,
                np.concatenate([np.zeros(PROMPT, np.float32), logprobs]),
                VersionRuns(((NOT_SAMPLED, PROMPT), (0, tokens))),
                FinishReason.LENGTH,
                reward=1.0,
            )
        )
    return Batch(0, [Group(0, Task("a", "", []), samples, 0)])


def test_the_trainer_notices_a_single_wrong_token_or_logprob() -> None:
    trainer = CheckingTrainer(50)
    result = trainer.do(("step", a_batch(50)))
    assert (result.version, result.metrics["tokens"], result.metrics["scripts"]) == (1, SCRIPTS * 50, SCRIPTS)
    for spoil in (_one_token, _one_logprob, _one_mark, _one_version):
        batch = a_batch(50)
        spoil(batch.samples[5])
        with pytest.raises(TrainerError, match="an answer of script 5 is not what the engine said"):
            trainer.do(("step", batch))


def _one_token(sample: Sample) -> None:
    sample.tokens[PROMPT + 30] += 1


def _one_logprob(sample: Sample) -> None:
    sample.behavior_logprobs[PROMPT + 30] *= 1.0001


def _one_mark(sample: Sample) -> None:
    marks = sample.loss_mask.copy()
    marks[PROMPT + 30] = False
    sample.loss_mask = marks


def _one_version(sample: Sample) -> None:
    sample.versions = VersionRuns(((NOT_SAMPLED, PROMPT + 1), (0, 49)))
