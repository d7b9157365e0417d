"""`freerun score` and `freerun bench trainer`, as commands."""

import json
import subprocess
import sys
from math import exp
from pathlib import Path

import pytest
import torch

from freerun.bench.trainer import FIXED, FixedLearner, PaddedLearner, batch_of, lengths_of
from freerun.models.attention import PackedAttention
from freerun.models.checkpoint import load_decoder
from freerun.models.tiny import make_model
from freerun.train.config import TrainConfig
from freerun.train.learner import Learner
from tests.tiny import tiny_decoder


def freerun(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "freerun.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_score_says_how_likely_the_answers_are(tmp_path: Path) -> None:
    make_model(tmp_path / "model", "abc>", seed=3, hidden=32)
    rows = [{"id": "one", "prompt": "ab>", "answer": "ba"}, {"id": "two", "prompt": "c>", "answer": "c"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "run.yaml").write_text(
        f"model: {{path: {tmp_path / 'model'}}}\ndata: {{source: {tmp_path / 'rows.jsonl'}}}\n"
        "rollout: {temperature: 0.5}\n"  # of no concern here
    )
    done = freerun("score", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "scores.jsonl"))
    assert done.returncode == 0, done.stderr
    scores = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert [score["id"] for score in scores] == ["one", "two"]
    decoder = load_decoder(tmp_path / "model")
    ids = {token: index for index, token in enumerate(["<pad>", "<eos>", *"abc>"])}
    given, answer = [ids[c] for c in "ab>"], [ids["b"], ids["a"], ids["<eos>"]]
    with torch.no_grad():
        hidden = decoder(torch.tensor(given + answer), torch.arange(6), PackedAttention([6]))
        logp = decoder.logits(hidden).log_softmax(-1)
    expected = [logp[len(given) - 1 + i, token].item() for i, token in enumerate(answer)]
    assert scores[0]["logprobs"] == pytest.approx(expected, abs=1e-5)
    total = sum(score["logprob"] for score in scores)
    assert f"perplexity {exp(-total / 5):.3f}" in done.stdout


def test_the_rivals_learn_the_same_from_other_micro_batches() -> None:
    """So what is compared is the cutting alone."""
    lengths = lengths_of("lognormal", 6_000, 600)
    assert max(lengths) <= 600
    results = []
    for kind in (Learner, FixedLearner, PaddedLearner):
        learner = kind(tiny_decoder(dtype=torch.float64), TrainConfig(micro_batch_tokens=2_000))
        batch = batch_of(learner._shape, lengths, 0)
        cuts = len(learner._plan(batch)[0])
        assert (cuts <= FIXED) if kind is not Learner else cuts == -(-sum(lengths) // 2_000)
        learner.step(batch)
        results.append(learner.policy.tensors())
    for other in results[1:]:
        for name, tensor in results[0].items():
            torch.testing.assert_close(other[name], tensor, atol=1e-9, rtol=1e-6)


def test_bench_trainer_prints_what_it_measured() -> None:
    done = freerun("bench", "trainer", "--tokens", "512", "--seq", "64", "--steps", "1", "--compare", "plain")
    assert done.returncode == 0, done.stderr
    assert "times recomputed, not compiled" in done.stdout
    record = json.loads(done.stdout.splitlines()[-1])
    assert (record["tokens"], record["sequences"]) == (512, 8)
    assert all(run["tokens_per_s"] > 0 and run["logprob_tokens_per_s"] > 0 for run in record["runs"])
    refused = freerun("bench", "trainer", "--compare", "nothing", "--tokens", "64", "--seq", "32")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
