"""What every engine promises, whoever made it: one file of tests for all.

`make test` runs it on the embedded engine, `make test-engines` on vLLM and SGLang, which `make engines` installs.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import torch

from freerun.core import EngineError, FinishReason, ProcessDied
from freerun.engines.base import Sampling
from freerun.machine.descendants import descendants
from freerun.machine.scratch import scratch_folder
from tests.children import child_of
from tests.engines.contract import POSITIONS, Contract, Variant, contract, is_alive, started, where_wanted

pytestmark = pytest.mark.asyncio(loop_scope="module")

SAMPLING = Sampling(max_new_tokens=40, seed=3, ignore_eos=True)
FEW = replace(SAMPLING, max_new_tokens=5)
PROMPTS = ([5, 6, 7], [9], [2 + i % 40 for i in range(70)])
EOS = 1


def variants(*wanted: tuple[bool, int]) -> list[Any]:
    """For each kind: whether the embeddings are tied, and over how many workers it is spread."""
    found = []
    for kind in ("embedded", "vllm", "sglang"):
        for tied, workers in wanted:
            if workers == 1 or kind != "embedded":
                variant = Variant(kind, tied, workers)
                found.append(where_wanted(kind, variant, str(variant)))
    return found


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    with scratch_folder() as folder:
        yield folder


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=variants((False, 1), (True, 1), (True, 2)))
async def c(request: pytest.FixtureRequest, scratch: Path) -> AsyncIterator[Contract]:
    folder = scratch / str(request.param)
    folder.mkdir()
    async with contract(request.param, folder) as served:
        yield served


async def test_logprobs_are_the_trainers(c: Contract) -> None:
    """Groups of answers to several prompts at a time, each token with its log-probability and version."""
    groups = await asyncio.gather(*(c.ask(prompt, SAMPLING, 4) for prompt in PROMPTS))
    for prompt, group in zip(PROMPTS, groups, strict=True):
        assert [answer.index for answer in group] == [0, 1, 2, 3]
        assert len({tuple(answer.tokens.tolist()) for answer in group}) == 4
        for answer in group:
            assert len(answer.tokens) == len(answer.logprobs) == len(answer.versions) == 40
            assert answer.finish is FinishReason.LENGTH
            assert set(answer.versions) == {c.version}
            assert c.off(prompt, answer) < c.tolerance


async def test_long_prompts_are_read_in_pieces(c: Contract) -> None:
    prompts = [[2 + (i * step) % 40 for i in range(2500)] for step in (1, 3, 7)]
    for prompt, answers in zip(prompts, await asyncio.gather(*(c.ask(p, FEW, 2) for p in prompts)), strict=True):
        for answer in answers:
            assert c.off(prompt, answer) < c.tolerance


@pytest.mark.parametrize("temperature", [0.5, 1.7])
async def test_logprobs_are_after_temperature(c: Contract, temperature: float) -> None:
    for answer in await c.ask(PROMPTS[0], replace(SAMPLING, temperature=temperature), 3):
        assert c.off(PROMPTS[0], answer, temperature) < c.tolerance / min(temperature, 1.0)


async def test_logprobs_are_before_top_k_and_top_p(c: Contract) -> None:
    """Among all tokens, as the trainer's are, though only the likeliest are sampled."""
    prompt = PROMPTS[0]
    for answer in await c.ask(prompt, replace(SAMPLING, top_k=5, top_p=0.8), 3):
        assert c.off(prompt, answer) < c.tolerance
        better = c.all_logprobs(prompt, answer) > torch.tensor(answer.logprobs)[:, None] + 2 * c.tolerance
        assert better.sum(1).max() < 5


async def test_at_temperature_zero_the_likeliest_is_taken(c: Contract) -> None:
    """Up to the engine's precision: of two that are as likely, either."""
    (answer,) = await c.ask(PROMPTS[0], replace(SAMPLING, temperature=0.0))
    logprobs = c.all_logprobs(PROMPTS[0], answer)
    taken = logprobs.gather(1, torch.tensor(answer.tokens).long()[:, None])[:, 0]
    assert (logprobs.max(1).values - taken).max() < 2 * c.tolerance


async def test_seeds(c: Contract) -> None:
    if c.variant.kind == "sglang":
        pytest.skip("SGLang samples by seeds in its deterministic mode alone, which is slower")
    first, again, other = [
        [answer.tokens.tolist() for answer in await c.ask(PROMPTS[0], replace(SAMPLING, seed=seed), 2)]
        for seed in (11, 11, 12)
    ]
    assert first == again != other


async def test_stop_tokens_and_strings(c: Contract) -> None:
    """The token that ends an answer belongs to it. At temperature 0 an answer comes out the same again."""
    greedy = replace(SAMPLING, temperature=0.0)
    (free,) = await c.ask(PROMPTS[0], greedy)
    tokens = free.tokens.tolist()
    at = next(i for i, token in enumerate(tokens) if i > 3 and 2 <= token < 28 and token not in tokens[:i])
    letter = chr(ord("a") + tokens[at] - 2)
    by_token = replace(greedy, stop_token_ids=(tokens[at],), ignore_eos=False)
    for sampling in (by_token, replace(greedy, stop=(letter,))):
        (stopped,) = await c.ask(PROMPTS[0], sampling)
        assert stopped.tokens.tolist() == tokens[: at + 1]
        assert len(stopped.logprobs) == len(stopped.versions) == at + 1
        assert stopped.finish is FinishReason.STOP


async def test_the_end_token_ends_an_answer(c: Contract) -> None:
    answers = await c.ask(PROMPTS[0], replace(SAMPLING, ignore_eos=False, max_new_tokens=600), 8)
    ended = [answer.tokens.tolist() for answer in answers if answer.finish is FinishReason.STOP]
    assert ended
    assert all(tokens.index(EOS) == len(tokens) - 1 for tokens in ended)


async def test_what_makes_no_sense_is_refused(c: Contract) -> None:
    for prompt, sampling, says in [
        ([], SAMPLING, "at least one token"),
        ([99], SAMPLING, r"0\.\.47"),
        ([1], replace(SAMPLING, max_new_tokens=POSITIONS), "positions"),
        ([1], replace(SAMPLING, top_p=0.0), "top_p"),
    ]:
        with pytest.raises(EngineError, match=says):
            await c.ask(prompt, sampling)


async def test_nobody_is_answered_without_the_key(c: Contract) -> None:
    async with aiohttp.ClientSession() as session:
        for method, route in (("POST", "/inference/v1/generate"), ("POST", "/update_weights"), ("GET", "/stats")):
            async with session.request(method, c.engine.url + route) as response:
                assert response.status == 401


async def test_weights_swap_in_mid_answer(c: Contract) -> None:
    """Tokens after a swap are sampled by the new weights, and the cache of those before is rebuilt."""
    begun = c.version
    asking = c.ask(PROMPTS[0], replace(SAMPLING, max_new_tokens=c.long), 3)
    for _ in range(2):
        await c.sampled(30, asking)
        assert (await c.update()).version == c.version
    answers = await asking
    for answer in answers:
        runs = answer.versions.runs
        assert [version for version, _ in runs] == [begun, begun + 1, begun + 2]
        assert c.off(PROMPTS[0], answer) < c.tolerance
    (after,) = await c.ask(PROMPTS[2], SAMPLING)
    assert set(after.versions) == {c.version}
    assert c.off(PROMPTS[2], after) < c.tolerance
    assert c.published is not None
    with pytest.raises(EngineError, match="only go up"):
        await c.engine.update_weights(c.published)


async def test_running_answers_may_finish_first(c: Contract) -> None:
    """`on_update: finish`: those that have begun keep their version, those that come meanwhile wait for the next."""
    begun, asking = c.version, c.ask(PROMPTS[0], replace(SAMPLING, max_new_tokens=c.long), 3)
    await c.until(lambda stats: stats.running == 3, asking)
    updating = asyncio.create_task(c.update("finish"))
    late = c.ask(PROMPTS[1], SAMPLING)
    await updating
    for answer in await asking:
        assert set(answer.versions) == {begun}
        assert c.off(PROMPTS[0], answer) < c.tolerance
    for answer in await late:
        assert c.off(PROMPTS[1], answer) < c.tolerance


async def test_running_answers_may_keep_their_cache(c: Contract) -> None:
    """`on_update: keep`: their log-probabilities are of a mixture. Whoever comes later gets nothing of the old cache,
    the same prompt included."""
    prompt, asking = PROMPTS[2], c.ask(PROMPTS[2], replace(SAMPLING, max_new_tokens=c.long), 3)
    await c.sampled(20, asking)
    await c.update("keep")
    (later,) = await c.ask(prompt, SAMPLING)
    assert set(later.versions) == {c.version}
    assert c.off(prompt, later) < c.tolerance
    for answer in await asking:
        assert [version for version, _ in answer.versions.runs] == [c.version - 1, c.version]


async def test_paused_it_takes_requests_and_weights(c: Contract) -> None:
    await c.control("/pause?mode=keep")
    asking = c.ask(PROMPTS[0], SAMPLING)
    await c.until(lambda stats: stats.waiting == 1, asking)
    await c.update()
    assert not asking.done()
    await c.control("/resume")
    (answer,) = await asking
    assert set(answer.versions) == {c.version}
    assert c.off(PROMPTS[0], answer) < c.tolerance


async def test_a_pause_may_end_answers_where_they_are(c: Contract) -> None:
    asking = c.ask(PROMPTS[0], replace(SAMPLING, max_new_tokens=c.long), 2)
    await c.sampled(40, asking)
    await c.control("/pause?mode=abort")
    for answer in await asking:
        assert answer.finish is FinishReason.ABORT
        assert 0 < len(answer.tokens) == len(answer.logprobs) == len(answer.versions) < c.long
        assert c.off(PROMPTS[0], answer) < c.tolerance
    await c.control("/resume")
    assert len(await c.ask(PROMPTS[0], SAMPLING)) == 1


async def test_a_closed_request_is_aborted(c: Contract) -> None:
    """After those that need answers in time: vLLM on two workers may compute nothing for seconds after it."""
    asking = c.ask(PROMPTS[0], replace(SAMPLING, max_new_tokens=c.long), 8)
    await c.until(lambda stats: stats.running == 8, asking)
    asking.cancel()
    await c.until(lambda stats: stats.running + stats.waiting == 0)
    assert len(await c.ask(PROMPTS[0], FEW)) == 1, "the next one is answered"


@pytest.mark.parametrize("c", variants((False, 1)), indirect=True)
async def test_an_engine_that_dies_says_why_and_another_takes_its_place(c: Contract) -> None:
    """The server that computes is killed. Last, since nothing is left of the engine."""
    asking = c.ask(PROMPTS[0], replace(SAMPLING, max_new_tokens=c.long), 2)
    await c.until(lambda stats: stats.running == 2, asking)
    child = child_of(c.processes)
    below = list(descendants(child.process.pid))
    os.kill(min(below[1:], default=child.process.pid), signal.SIGKILL)
    with pytest.raises(ProcessDied, match="killed by SIGKILL"):
        await c.processes.watch()
    with pytest.raises(EngineError, match=r"failed a request|answers missing"):
        await asking
    assert not [pid for pid in below if is_alive(pid)]
    async with started(c.variant, c.folder) as (_, engine):
        c.engine = engine
        assert c.published is not None
        await engine.update_weights(c.published)
        for answer in await c.ask(PROMPTS[0], SAMPLING, 2):
            assert set(answer.versions) == {c.version}
            assert c.off(PROMPTS[0], answer) < c.tolerance
