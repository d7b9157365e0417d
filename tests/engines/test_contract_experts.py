"""What every engine promises for mixtures of experts: answers, new weights, and which experts tokens went through.

`make test` runs it on the embedded engine, `make test-engines` on vLLM and SGLang. vLLM tells experts by a model runner
that is made of Triton kernels; `interpreted_vllm.py` serves by that one without a GPU, and our front is given its URL.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import pytest_asyncio
import torch

from freerun.core import Batch, FinishReason, Group, Sample, Task
from freerun.engines.base import Completion, Sampling
from freerun.engines.config import EngineConfig
from freerun.engines.external.base import Command, Launch
from freerun.engines.external.kinds import python_of
from freerun.engines.external.program import Program
from freerun.engines.external.serve import _first, _free_port, _until_answers
from freerun.engines.external.vllm import VllmBackend
from freerun.machine.machines import LOOPBACK
from freerun.machine.scratch import scratch_folder
from freerun.models.shape import read_shape
from freerun.rollouts.samples import sample_of_turns
from freerun.train.config import TrainConfig
from freerun.train.learner import Learner
from tests.engines.contract import POSITIONS, Contract, Variant, contract, where_wanted
from tests.engines.test_embedded import recomputed
from tests.engines.test_routed import alike, routes_of
from tests.tiny import mixture
from tests.train.test_replay import told_logprobs

pytestmark = pytest.mark.asyncio(loop_scope="module")

EXPERTS: dict[str, Any] = {"num_experts": 8, "moe_intermediate_size": 64}
"""As wide as vLLM's CPU kernels want them."""
SAMPLING = Sampling(max_new_tokens=40, seed=3, ignore_eos=True, routes=True)
PROMPTS = ([5, 6, 7], [9], [2 + i % 40 for i in range(70)])


@dataclass(frozen=True)
class Mixture(Variant):
    """A Qwen3-MoE, one of whose layers has no experts where the server knows such layers."""

    precision: Literal["float32", "bfloat16"] = "float32"
    """Rounded to bfloat16, experts that are nearly alike change places."""
    interpreted: bool = False

    def __str__(self) -> str:
        return f"{self.kind}-{'interpreted-' if self.interpreted else ''}{self.precision}"

    @property
    def dtype(self) -> str:
        return self.precision

    @property
    def tolerance(self) -> float:
        return 2e-4 if self.precision == "float32" else super().tolerance

    @property
    def long(self) -> int:
        return 300 if self.interpreted else super().long

    @property
    def changes(self) -> dict[str, Any]:
        dense = {"mlp_only_layers": [] if self.kind == "sglang" else [1]}
        return super().changes | mixture("qwen3_moe") | EXPERTS | dense

    @asynccontextmanager
    async def server(self, model: Path) -> AsyncIterator[dict[str, Any]]:
        if not self.interpreted:
            yield {}
            return
        port, python = _free_port(), python_of(EngineConfig(kind="vllm"))
        launch = Launch(python, model, read_shape(model), port, "cpu", self.precision, 1, 16, 16 * POSITIONS, 0.9)
        ours, script = VllmBackend.command(launch), Path(__file__).with_name("interpreted_vllm.py")
        argv = [str(python), str(script), *ours.argv[3:], "--enable-return-routed-experts"]
        environment = {**ours.environment, "VLLM_USE_V2_MODEL_RUNNER": "1", "OMP_NUM_THREADS": "1"}
        url = f"http://{LOOPBACK}:{port}"
        async with Program("vLLM", Command(argv, environment)) as program, VllmBackend(url) as backend:
            await _first(_until_answers(backend), program.watch())
            yield {"urls": [url]}


def mixtures(*wanted: Mixture) -> list[Any]:
    return [where_wanted(each.kind, each, str(each)) for each in wanted]


IN_FLOAT32 = mixtures(
    Mixture("embedded", False),
    Mixture("vllm", False),
    Mixture("vllm", False, interpreted=True),
    Mixture("sglang", False),
)
IN_BFLOAT16 = mixtures(Mixture("sglang", False, precision="bfloat16"))


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    with scratch_folder() as folder:
        yield folder


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=IN_FLOAT32)
async def c(request: pytest.FixtureRequest, scratch: Path) -> AsyncIterator[Contract]:
    folder = scratch / str(request.param)
    folder.mkdir()
    async with contract(request.param, folder) as served:
        yield served


def tells(c: Contract) -> bool:
    """Whether it tells experts: vLLM's first model runner does not."""
    return c.variant.kind != "vllm" or (isinstance(c.variant, Mixture) and c.variant.interpreted)


def off(c: Contract, prompt: list[int], answer: Completion) -> float:
    """How far log-probabilities lie from the trainer's, each by the weights of its version, but for one token in a
    hundred: two experts may be as likely as makes no difference, and then rounding decides."""
    tokens, versions = answer.tokens.tolist(), np.array(list(answer.versions))
    found = np.zeros(len(tokens), np.float32)
    for version in set(answer.versions):
        found = np.where(versions == version, recomputed(c.weights[version], prompt, tokens).numpy(), found)
    return float(np.quantile(np.abs(found - answer.logprobs), 0.99))


async def test_logprobs_are_the_trainers_and_before_top_k_and_top_p(c: Contract) -> None:
    for sampling in (SAMPLING, replace(SAMPLING, top_k=5, top_p=0.8), replace(SAMPLING, routes=False)):
        groups = await asyncio.gather(*(c.ask(prompt, sampling, 4) for prompt in PROMPTS))
        for prompt, group in zip(PROMPTS, groups, strict=True):
            assert len({tuple(answer.tokens.tolist()) for answer in group}) > 1
            for answer in group:
                assert set(answer.versions) == {c.version}
                assert off(c, prompt, answer) < c.tolerance
                assert (answer.routes is not None) is (tells(c) and sampling.routes)


async def test_experts_are_those_that_our_decoder_chooses(c: Contract) -> None:
    """Of prompts, too, also where they are found in the cache."""
    if not tells(c):
        pytest.skip("vLLM tells experts by its second model runner alone")
    prompt, shares = [2 + (3 * i) % 40 for i in range(150)], []
    for asked in (prompt, [*prompt, 7, 8, 9], *PROMPTS):
        for answer in await c.ask(asked, SAMPLING, 3):
            expected = routes_of(c.weights[c.version], asked + answer.tokens.tolist())[:-1]
            shares.append(alike(answer.routes, expected))
    assert np.mean(shares) > 0.99


async def test_a_batch_takes_the_trainer_through_them(c: Contract) -> None:
    if not tells(c):
        pytest.skip("vLLM tells experts by its second model runner alone")
    groups = []
    for id, prompt in enumerate(PROMPTS):
        samples = [sampled(prompt, answer) for answer in await c.ask(prompt, SAMPLING, 4)]
        for place, sample in enumerate(samples):
            sample.reward = float(place % 2)
        groups.append(Group(id, Task(str(id), "", prompt), samples, c.version))
    learner = Learner(c.variant.weights(c.version), TrainConfig(lr=1e-3))
    learner.version = c.version
    figures = learner.step(Batch(c.version, groups)).metrics
    assert figures["router_replayed_share"] > 0.95, "of all tokens but the last of an answer"
    assert figures["router_flips"] < 0.01
    assert figures["engine_mismatch_max"] < c.tolerance


async def test_weights_swap_in_mid_answer(c: Contract) -> None:
    """SGLang tells the experts as they were chosen when it last read a token; the others, as it was sampled."""
    prompt = PROMPTS[0]
    for answer in await through_three_versions(c, prompt):
        assert off(c, prompt, answer) < c.tolerance
        if tells(c):
            assert answer.routes is not None
            versions = np.array(list(answer.versions))
            for version in set(answer.versions):
                chosen_by = c.version if c.variant.kind == "sglang" else version
                expected = routes_of(c.weights[chosen_by], prompt + answer.tokens.tolist())[len(prompt) - 1 : -1]
                at = versions == version
                assert alike(answer.routes[len(prompt) - 1 :][at], expected[at]) > 0.99
    (after,) = await c.ask(PROMPTS[2], SAMPLING)
    assert set(after.versions) == {c.version}
    assert off(c, PROMPTS[2], after) < c.tolerance


async def through_three_versions(c: Contract, prompt: list[int]) -> list[Completion]:
    """Answers that two updates have come in the middle of. On a busy machine they may be over sooner: then others are
    asked for."""
    for _ in range(5):
        begun, asking = c.version, c.ask(prompt, replace(SAMPLING, max_new_tokens=c.variant.long), 3)
        for _ in range(2):
            await c.ask([2], Sampling(max_new_tokens=20, ignore_eos=True))
            await c.update()
        answers = await asking
        if all(set(answer.versions) == {begun, begun + 1, begun + 2} for answer in answers):
            return answers
    pytest.fail("five times the answers were over before two updates")


async def test_an_answer_that_is_ended_says_what_it_knows(c: Contract) -> None:
    asking = c.ask(PROMPTS[0], replace(SAMPLING, max_new_tokens=c.variant.long), 2)
    await c.ask([2], Sampling(max_new_tokens=20, ignore_eos=True))
    await c.control("/pause?mode=abort")
    for answer in await asking:
        assert answer.finish is (FinishReason.ABORT if len(answer.tokens) < c.variant.long else FinishReason.LENGTH)
        assert off(c, PROMPTS[0], answer) < c.tolerance
        if answer.routes is not None:
            assert len(answer.routes) == len(PROMPTS[0]) + len(answer.tokens) - 1
    await c.control("/resume")
    assert len(await c.ask(PROMPTS[0], SAMPLING)) == 1


@pytest.mark.parametrize("c", IN_BFLOAT16, indirect=True)
async def test_through_the_engines_experts_the_trainer_is_where_the_engine_is(c: Contract) -> None:
    """In bfloat16 a few choices differ, and log-probabilities behind them by more than rounding."""
    with_replay, without = [], []
    for prompt in PROMPTS:
        for answer in await c.ask(prompt, SAMPLING, 8):
            sample, at = sampled(prompt, answer), len(prompt) - 1
            found, decoder = torch.tensor(answer.logprobs), c.weights[c.version]
            with torch.no_grad():
                with_replay.append((told_logprobs(decoder, sample)[at:] - found).abs().max().item())
            without.append((recomputed(decoder, prompt, answer.tokens.tolist()) - found).abs().max().item())
    assert max(with_replay) < c.tolerance < max(without)


def sampled(prompt: list[int], answer: Completion) -> Sample:
    return sample_of_turns([prompt, answer], answer.finish, "")
