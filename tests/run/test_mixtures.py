"""A whole run of a mixture of experts, with every real process: what the engine chose is what the trainer learns on."""

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
from tests.run.test_train import prepared
from tests.tiny import mixture, tiny_decoder

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


async def test_it_learns_on_the_engines_choice_goes_on_and_is_exported(tmp_path: Path) -> None:
    prepared(tmp_path)  # the data, and another model
    model = tmp_path / "model"
    shutil.rmtree(model)
    save_decoder(tiny_decoder(std=0.05, **(mixture("mixtral") | {"vocab_size": 9})), model)
    write_tokenizer(model, {token: index for index, token in enumerate([PAD, EOS, *"abcdef>"])})
    run = prepared(tmp_path, "control.steps=40", "control.max_staleness=2", "evaluate.every=40", "train.save_every=40")
    assert run.shape.backend == "own"
    assert run.shape.experts
    outcome = await training.train(run)
    first, last = outcome.evaluations[0], outcome.evaluations[-1]
    assert first.pass_at_1 < 0.4
    assert last.pass_at_1 > 0.7
    steps = read_steps(outcome.folder.metrics)
    for step in steps:
        assert step.trainer["router_replayed_share"] > 0, "of answers of two tokens, the last of which has no choice"
        assert 1 <= step.trainer["expert_load_max"] <= 4
        assert step.trainer.get("engine_mismatch_max", 0.0) < 1e-3

    await training.train(*resume(outcome.folder.path, ["control.steps=42", "train.replay_router=false"]))
    steps = read_steps(outcome.folder.metrics)
    assert [step.step for step in steps] == list(range(1, 43))
    assert steps[-1].trainer["router_replayed_share"] == 0
    export(outcome.folder.path, tmp_path / "out")
    tokens = torch.tensor([2, 8, 2])
    with torch.no_grad():
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out")(input_ids=tokens[None]).logits[0]
        decoder = load_decoder(tmp_path / "out")
        ours = decoder.logits(decoder(tokens, torch.arange(3), PackedAttention([3])))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
