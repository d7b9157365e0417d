"""What `freerun export` writes, served by vLLM and SGLang: their log-probabilities are those of our code and of
transformers' for the same tokens. `make test-engines` runs it."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from freerun.engines.base import Sampling
from freerun.machine.scratch import scratch_folder
from freerun.models import checkpoint
from freerun.models.checkpoint import load_decoder, save_decoder
from freerun.models.tiny import EOS, PAD, write_tokenizer
from freerun.models.weight_files import SINGLE
from tests.architectures import random_folder
from tests.engines.contract import CHARACTERS, collect, serving, where_wanted
from tests.engines.test_embedded import recomputed
from tests.typed import freerun

SIZES: dict[str, Any] = {
    "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 96,
    "initializer_range": 0.12,
}  # fmt: skip
"""Of heads and experts that vLLM has kernels for on CPUs."""
EXPERTS: dict[str, Any] = {"moe_intermediate_size": 64, "num_experts": 8, "num_local_experts": 8}
PROMPTS = ([5, 6, 7], [2 + i % 40 for i in range(70)])


@dataclass(frozen=True)
class Case:
    family: str
    tied: bool
    sharded: bool
    dtype: str = "float32"

    def __str__(self) -> str:
        return f"{self.family}-{'tied' if self.tied else 'untied'}-{'sharded-' if self.sharded else ''}{self.dtype}"


CASES = [
    Case("llama", tied=True, sharded=True),
    Case("qwen2", tied=False, sharded=False, dtype="bfloat16"),
    Case("qwen3", tied=True, sharded=True, dtype="bfloat16"),
    Case("qwen3_moe", tied=False, sharded=True),
    Case("mixtral", tied=False, sharded=False),
    Case("olmoe", tied=False, sharded=True, dtype="bfloat16"),
]


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    with scratch_folder() as folder:
        yield folder


@pytest.fixture(scope="module", params=CASES, ids=str)
def exported(request: pytest.FixtureRequest, scratch: Path) -> Path:
    """The folder that is exported of a run which has learned a step. As every export it is in float32; where bfloat16
    is wanted, it is written again."""
    case: Case = request.param
    folder = scratch / str(case)
    model = random_folder(case.family, folder / "model", **SIZES, **EXPERTS, tie_word_embeddings=case.tied)
    write_tokenizer(model, {token: index for index, token in enumerate([PAD, EOS, *CHARACTERS])})
    (folder / "train.jsonl").write_text("".join(json.dumps({"prompt": c, "answer": c}) + "\n" for c in "abcdefgh"))
    (folder / "run.yaml").write_text(
        json.dumps(
            {
                **{"name": "run", "runs": str(folder), "model": {"path": str(model)}},
                **{"data": {"source": str(folder / "train.jsonl"), "max_prompt_tokens": 8}},
                **{"rollout": {"max_new_tokens": 8}, "control": {"steps": 1, "groups_per_step": 8}},
            }
        )
    )
    with pytest.MonkeyPatch.context() as patched:
        if case.sharded:
            patched.setattr(checkpoint, "SHARD_BYTES", 40_000)
        for words in (("sft", folder / "run.yaml"), ("export", folder / "run", folder / "float32")):
            done = freerun(*words)
            assert done.returncode == 0, done.stderr
        if case.dtype != "float32":
            decoder = load_decoder(folder / "float32", getattr(torch, case.dtype))
            save_decoder(decoder, folder / case.dtype, like=folder / "float32")
    assert (folder / case.dtype / SINGLE).is_file() is not case.sharded
    return folder / case.dtype


@pytest.mark.parametrize("kind", [where_wanted(kind, kind, kind) for kind in ("vllm", "sglang")])
async def test_it_is_served_with_our_log_probabilities(kind: str, exported: Path, tmp_path: Path) -> None:
    decoder, theirs = load_decoder(exported), AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)
    sampling = Sampling(max_new_tokens=40, ignore_eos=True)
    async with serving(exported, tmp_path, kind=kind, dtype="float32") as (_, engine):
        groups = await asyncio.gather(*(collect(engine.generate(prompt, sampling, 4)) for prompt in PROMPTS))
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for answer in group:
            tokens = answer.tokens.tolist()
            ours = recomputed(decoder, prompt, tokens)
            torch.testing.assert_close(torch.tensor(answer.logprobs), ours, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(logprobs_of(theirs, prompt, tokens), ours, atol=1e-4, rtol=1e-4)


def logprobs_of(model: Any, prompt: list[int], tokens: list[int]) -> Tensor:
    sequence = torch.tensor(prompt + tokens)
    with torch.no_grad():
        logprobs: Tensor = model(input_ids=sequence[None]).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    return logprobs.gather(1, sequence[len(prompt) :, None])[:, 0]
