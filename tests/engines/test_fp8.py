"""The engine with weights of 8 bits: what it stamps is what it sampled from, whichever version that was."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from freerun.core import ConfigError
from freerun.engines.config import EngineConfig
from freerun.engines.embedded.load import load_for_engine
from freerun.engines.embedded.sequence import EndedAnswer
from freerun.models.checkpoint import save_decoder
from freerun.models.fp8 import is_fp8, round_layers
from freerun.models.own import OwnDecoder
from freerun.models.shape import AdapterShape
from tests.engines.test_embedded import SAMPLING, engine, recomputed, run
from tests.tiny import tiny_decoder

FP8 = EngineConfig(weights="fp8")


def in_fp8(seed: int, dtype: torch.dtype = torch.float32) -> OwnDecoder:
    decoder = tiny_decoder(seed, dtype=dtype)
    round_layers(decoder)
    return decoder


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_swapped_mid_answer_many_times(dtype: torch.dtype) -> None:
    """Versions come wide. Each token's log-probability is that of its version, rounded, and not of the wide one."""
    versions = [tiny_decoder(seed, dtype=dtype) for seed in range(6)]
    e = engine(in_fp8(0, dtype), step_tokens=32, max_running=7)
    places = {name: parameter.data_ptr() for name, parameter in e._decoder.named_parameters()}
    dice = random.Random(0)
    prompts = {f"r{i}": [dice.randrange(2, 48) for _ in range(dice.randrange(1, 40))] for i in range(4)}
    for id, prompt in prompts.items():
        e.submit(id, prompt, replace(SAMPLING, max_new_tokens=60), 3)
    done: dict[tuple[str, int], EndedAnswer] = {}
    steps = 0
    while e.has_work:
        for id, completion in e.step():
            done[id, completion.index] = completion
        steps += 1
        if steps % 17 == 0 and e.version < 5:
            e.update_weights(e.version + 1, dict(versions[e.version + 1].named_parameters()))
    assert e.version == 5
    assert places == {name: parameter.data_ptr() for name, parameter in e._decoder.named_parameters()}
    off, off_wide = [], []
    for (id, _), completion in done.items():
        for version in set(completion.versions):
            at = [i for i, v in enumerate(completion.versions) if v == version]
            got = torch.tensor([completion.logprobs[i] for i in at])
            off += (got - recomputed(in_fp8(version, dtype), prompts[id], completion.tokens)[at]).abs().tolist()
            off_wide += (got - recomputed(versions[version], prompts[id], completion.tokens)[at]).abs().tolist()
    found, wide = torch.tensor(off), torch.tensor(off_wide)
    # a number that lies between two codes may be rounded to either, by the order in which it was summed
    assert found.median() < 1e-5
    assert found.mean() < wide.mean() / 100


def test_a_folder_is_loaded_so(tmp_path: Path) -> None:
    save_decoder(tiny_decoder(4), tmp_path)
    decoder = load_for_engine(tmp_path, FP8)
    assert is_fp8(decoder)
    loaded, expected = engine(decoder), engine(in_fp8(4))
    answers = []
    for e in (loaded, expected):
        e.submit("a", [5, 6, 7], SAMPLING, 2)
        answers.append(run(e))
    assert [answer.tokens for answer in answers[0].values()] == [answer.tokens for answer in answers[1].values()]
    assert not is_fp8(load_for_engine(tmp_path, EngineConfig()))


def test_an_adapter_on_top_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine\.weights=fp8 and train\.lora do not go together"):
        load_for_engine(tmp_path, FP8, adapter=AdapterShape(2, 4.0))
