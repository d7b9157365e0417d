"""The embedded engine against transformers, in float32, on real weights: SmolLM2-135M-Instruct.

The weights are not part of the repository, so these tests are skipped unless told where they are:

    python examples/smollm2.py models/smollm2
    FREERUN_SMOLLM2=models/smollm2 python -m pytest tests/engines/test_smollm2.py
"""

import os
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from freerun.engines.base import Sampling
from freerun.engines.config import EngineConfig
from freerun.engines.embedded.engine import EmbeddedEngine
from freerun.engines.embedded.sequence import EndedAnswer
from freerun.models.checkpoint import load_decoder, to_hugging_face
from freerun.models.decoder import Decoder
from freerun.models.tokenizer import load_tokenizer

FOLDER = os.environ.get("FREERUN_SMOLLM2", "")
MAKE_IT = "needs SmolLM2 in FREERUN_SMOLLM2: python examples/smollm2.py models/smollm2"
NEW_TOKENS = 24
SWAP_EVERY = 7
"""Steps between two versions."""

QUESTIONS = [
    "What is the capital of {}?",
    "Name three things that one finds in {}, and say in one short sentence each why they are there.",
    "Write a limerick about {}.",
    "How far is it from here to {}?",
    "Tell me a fact about {} that would surprise somebody who has lived there for forty years.",
    "{}: ",
    "A train to {} leaves at 9:40 and takes 3 hours and 35 minutes. When does it arrive? Think step by step.",
    "Translate to French: my sister and her 2 dogs have never been to {}.",
]
PLACES = ["Norway", "the Moon", "Peru", "a small village in the Alps", "Osaka", "Madagascar", "the sea", "Ohio"]
PROMPTS = [question.format(place) for question in QUESTIONS for place in PLACES]


needs_weights = pytest.mark.skipif(not Path(FOLDER, "model.safetensors").is_file(), reason=MAKE_IT)


@pytest.fixture
def theirs() -> Any:
    """A fresh one for each test: one of them changes its weights."""
    return transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()


@pytest.fixture
def tokenizer() -> Any:
    return load_tokenizer(Path(FOLDER))


def chat(tokenizer: Any, question: str) -> list[int]:
    messages = [{"role": "user", "content": question}]
    tokens: list[int] = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    return tokens


def weights_of(version: int, base: Decoder) -> dict[str, torch.Tensor]:
    """Version 0 is the model; each other one differs from it by a little noise of its own."""
    dice = torch.Generator().manual_seed(version)
    scale = 0.03 if version else 0.0
    with torch.no_grad():
        return {
            name: parameter + scale * parameter.std() * torch.randn(parameter.shape, generator=dice)
            for name, parameter in base.named_parameters()
        }


def recomputed(theirs: Any, prompt: list[int], answer: list[int]) -> torch.Tensor:
    """transformers' log-probabilities of the answer, in one pass, without a cache."""
    with torch.no_grad():
        logits = theirs(torch.tensor([prompt + answer]), use_cache=False, logits_to_keep=len(answer) + 1).logits[0]
    at = torch.arange(len(answer))
    return torch.Tensor(logits.float().log_softmax(-1)[at, torch.tensor(answer)])


@needs_weights
def test_logprobs_are_those_of_transformers_whatever_the_version(theirs: Any, tokenizer: Any) -> None:
    """64 sampled answers with new weights every few steps: each token against its own version, recomputed."""
    base = load_decoder(Path(FOLDER))
    config = EngineConfig(max_running=24, cache_tokens=4096, on_update="recompute")
    engine = EmbeddedEngine(load_decoder(Path(FOLDER)), config.on("cpu", step_tokens=512))
    prompts = {str(i): tokenizer(prompt)["input_ids"] for i, prompt in enumerate(PROMPTS)}
    assert len(prompts) == 64
    for id, prompt in prompts.items():
        engine.submit(id, prompt, Sampling(max_new_tokens=NEW_TOKENS, seed=int(id), ignore_eos=True), 1)
    answers: dict[str, EndedAnswer] = {}
    steps = 0
    while engine.has_work:
        answers.update(engine.step())
        steps += 1
        if steps % SWAP_EVERY == 0:
            engine.update_weights(engine.version + 1, weights_of(engine.version + 1, base))
    assert len(answers) == 64
    assert sum(len(set(answer.versions)) >= 4 for answer in answers.values()) >= 48, "at least three swaps mid-answer"

    of_version: dict[int, list[str]] = defaultdict(list)
    for id, answer in answers.items():
        for version in set(answer.versions):
            of_version[version].append(id)
    differences, others = [], []
    for version, ids in sorted(of_version.items()):
        if version:  # version 0 is what transformers itself read from the folder
            renamed = dict(to_hugging_face(weights_of(version, base), base.shape))
            assert theirs.load_state_dict(renamed, strict=False) == (["lm_head.weight"], [])  # the head is tied
        for id in ids:
            answer = answers[id]
            difference = (torch.tensor(answer.logprobs) - recomputed(theirs, prompts[id], answer.tokens)).abs()
            mine = torch.tensor(answer.versions) == version
            differences.append(difference[mine])
            others.append(difference[~mine])
    all_differences, all_others = torch.cat(differences), torch.cat(others)
    print(f"\n{len(all_differences)} tokens of {len(of_version)} versions: mean {all_differences.mean():.2e}, "
          f"largest {all_differences.max():.2e}; against another version: mean {all_others.mean():.2e}")  # fmt: skip
    assert len(all_differences) == 64 * NEW_TOKENS
    assert all_differences.mean() < 1e-4
    assert all_differences.max() < 2e-3
    assert all_others.mean() > 1e-2, "the versions are too alike for this test to tell them apart"


@needs_weights
def test_greedy_answers_are_those_of_transformers(theirs: Any, tokenizer: Any) -> None:
    config = EngineConfig(max_running=8, cache_tokens=4096)
    engine = EmbeddedEngine(load_decoder(Path(FOLDER)), config.on("cpu", step_tokens=512))
    prompts = {prompt: chat(tokenizer, prompt) for prompt in random.Random(0).sample(PROMPTS, 16)}
    assert len(prompts) == 16
    for prompt, tokens in prompts.items():
        engine.submit(prompt, tokens, Sampling(max_new_tokens=NEW_TOKENS, temperature=0.0), 1)
    answers: dict[str, EndedAnswer] = {}
    while engine.has_work:
        answers.update(engine.step())
    for prompt, tokens in prompts.items():
        with torch.no_grad():
            whole = theirs.generate(torch.tensor([tokens]), attention_mask=torch.ones(1, len(tokens), dtype=torch.long),
                                    do_sample=False, max_new_tokens=NEW_TOKENS)  # fmt: skip
        assert answers[prompt].tokens == whole[0, len(tokens) :].tolist(), prompt
