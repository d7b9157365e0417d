"""A whole run of a model whose code is transformers', with every real process; its checkpoints, and its export."""

import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from freerun.commands.export import export
from freerun.models.attention import PackedAttention
from freerun.models.checkpoint import load_decoder, save_decoder
from freerun.models.tiny import EOS, PAD, write_tokenizer
from freerun.observe.records import read_steps
from freerun.run import training
from freerun.run.resume import resume
from tests.architectures import random_decoder
from tests.run.test_train import prepared

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


async def test_it_learns_goes_on_and_is_exported(tmp_path: Path) -> None:
    """Gemma 2: windows, caps on attention and logits, norms on both sides."""
    prepared(tmp_path)  # the data, and another model
    model = tmp_path / "model"
    shutil.rmtree(model)
    save_decoder(random_decoder("gemma2", vocab_size=9), model)
    write_tokenizer(model, {token: index for index, token in enumerate([PAD, EOS, *"abcdef>"])})
    run = prepared(tmp_path, "control.steps=40", "control.max_staleness=2", "evaluate.every=40", "train.save_every=40")
    assert run.shape.backend == "transformers"
    outcome = await training.train(run)
    first, last = outcome.evaluations[0], outcome.evaluations[-1]
    assert first.pass_at_1 < 0.4
    assert last.pass_at_1 > 0.7
    steps = read_steps(outcome.folder.metrics)
    assert max(step.staleness_max for step in steps) <= 2
    assert max(step.trainer["engine_mismatch_max"] for step in steps if "engine_mismatch_max" in step.trainer) < 1e-3

    await training.train(*resume(outcome.folder.path, ["control.steps=42"]))
    assert [step.step for step in read_steps(outcome.folder.metrics)] == list(range(1, 43))
    export(outcome.folder.path, tmp_path / "out")
    tokens = torch.tensor([2, 8, 2])
    with torch.no_grad():
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out")(input_ids=tokens[None]).logits[0]
        decoder = load_decoder(tmp_path / "out")
        ours = decoder.logits(decoder(tokens, torch.arange(3), PackedAttention([3])))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    assert (tmp_path / "out" / "tokenizer.json").is_file()
