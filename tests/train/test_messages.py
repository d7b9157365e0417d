"""Batches over a real socket to a worker that says what it got."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from freerun.core import Batch, FinishReason, Group, Sample, Task, TrainerError
from freerun.core.nouns import NOT_SAMPLED, Logprobs
from freerun.core.reports import StepResult
from freerun.train.messages import Received, opening, samples_message, samples_of
from freerun.train.ranks import ALONE
from freerun.train.remote import RemoteTrainer
from freerun.train.worker import serve
from tests.train.test_learner import random_batch


class Echo:
    """Keeps what it was asked to do, and refuses to save."""

    ranks = ALONE
    before_logprobs: list[Logprobs] | None = None

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []

    def do(self, request: tuple[str, Any]) -> Any:
        self.asked.append(request)
        method, argument = request
        if method == "save":
            raise TrainerError("there is no room", "said at length")
        if method == "score":
            return [sample.behavior_logprobs[sample.loss_mask].tolist() for sample in argument]
        return StepResult(len(self.asked), before_logprobs=self.before_logprobs)


@pytest.fixture
def echo(tmp_path: Path) -> tuple[Echo, str]:
    worker, bound = Echo(), threading.Event()
    endpoint = f"ipc://{tmp_path}/trainer"
    threading.Thread(target=serve, args=(worker, endpoint, lambda _: bound.set()), daemon=True).start()
    assert bound.wait(10)
    return worker, endpoint


def assert_same(found: Sample, sent: Sample) -> None:
    """But for the text, which stays where it is."""
    assert found.tokens.tobytes() == sent.tokens.tobytes()
    assert found.loss_mask.tobytes() == sent.loss_mask.tobytes()
    assert found.behavior_logprobs.tobytes() == sent.behavior_logprobs.tobytes()
    assert (found.versions, found.finish, found.reward) == (sent.versions, sent.finish, sent.reward)
    assert (found.member, found.returns) == (sent.member, sent.returns)
    assert found.trained == sent.trained


async def test_a_batch_arrives_as_it_was(echo: tuple[Echo, str]) -> None:
    worker, endpoint = echo
    batch = random_batch(3)
    batch.groups[0].task = Task("odd", "?", [1], extra={"what msgpack cannot say": object()})
    batch.groups[1].samples = []
    for sample in batch.groups[2].samples:
        sample.member, sample.returns = 3, ((0.5, 1), (-1.25, len(sample.tokens) - 1))
    with RemoteTrainer(endpoint) as trainer:
        result = await trainer.step(batch)
    assert result.version == 1
    ((method, found),) = worker.asked
    assert (method, found.version) == ("step", batch.version)
    for ours, theirs in zip(found.groups, batch.groups, strict=True):
        assert (ours.id, ours.task.id, ours.admitted_at) == (theirs.id, theirs.task.id, theirs.admitted_at)
        for one, other in zip(ours.samples, theirs.samples, strict=True):
            assert_same(one, other)


async def test_log_probabilities_come_back_as_they_are(echo: tuple[Echo, str]) -> None:
    worker, endpoint = echo
    with RemoteTrainer(endpoint) as trainer:
        assert (await trainer.step(Batch(0, []))).before_logprobs is None
        for sent in ([], [np.array([-1.5, np.nan, -1e-30], np.float32), np.zeros(0, np.float32)]):
            worker.before_logprobs = sent
            found = (await trainer.step(Batch(0, []))).before_logprobs
            assert found is not None
            assert [array.dtype for array in found] == [np.float32] * len(sent)
            assert [array.tobytes() for array in found] == [array.tobytes() for array in sent]


async def test_samples_without_groups_keep_their_order(echo: tuple[Echo, str]) -> None:
    worker, endpoint = echo
    samples = [Sample([7] * n, [n > 1] * n, [-float(n)] * n, [NOT_SAMPLED] * n, FinishReason.STOP) for n in range(150)]
    with RemoteTrainer(endpoint) as trainer:
        assert await trainer.score(samples) == [[-float(n)] * n if n > 1 else [] for n in range(150)]
        assert (await trainer.sft(samples[:1])).version == 2
    for one, other in zip(worker.asked[0][1], samples, strict=True):
        assert_same(one, other)


async def test_what_the_trainer_refuses_is_raised(echo: tuple[Echo, str]) -> None:
    with RemoteTrainer(echo[1]) as trainer:
        with pytest.raises(TrainerError, match="there is no room") as raised:
            await trainer.save("anywhere")
        assert raised.value.detail == "said at length"
        assert (await trainer.step(Batch(0, []))).version == 2


async def test_a_request_given_up_half_way_leaves_nothing_behind(echo: tuple[Echo, str]) -> None:
    """Cancelled at any turn that sending it takes, or when its reply is on the way. The next has a reply of its own."""
    worker, endpoint = echo
    groups = [Group(n, Task("a", "", []), random_batch(n).samples, 0) for n in range(12)]
    one = groups[0].samples[0]

    def got_a_step() -> bool:
        return any(method == "step" for method, _ in worker.asked)

    with RemoteTrainer(endpoint) as trainer:
        for turns in [*range(1, 20), None]:
            given_up = asyncio.create_task(trainer.step(Batch(0, groups)))
            while not got_a_step() if turns is None else turns:
                turns = turns and turns - 1
                await asyncio.sleep(0)
            given_up.cancel()
            await asyncio.gather(given_up, return_exceptions=True)
            assert await trainer.score([one]) == [one.behavior_logprobs[one.loss_mask].tolist()]
    assert got_a_step()
    assert all(len(batch.groups) == 12 for method, batch in worker.asked if method == "step"), "never a part of one"


def test_lengths_that_do_not_fit_are_refused() -> None:
    sample = Sample([5, 6, 7], [True] * 3, [-1.0] * 3, [0, 0, 1], FinishReason.STOP, reward=1.0)
    _, header, buffer = (memoryview(part) for part in samples_message([sample]))
    assert_same(samples_of(header, buffer)[0], sample)
    with pytest.raises(TrainerError, match="3 tokens came in 26 bytes: there must be nine for each"):
        samples_of(header, buffer[:-1])
    sample.returns = ((1.0, 2), (0.5, 2))
    _, header, buffer = (memoryview(part) for part in samples_message([sample]))
    with pytest.raises(TrainerError, match="returns for more or fewer tokens"):
        samples_of(header, buffer)
    sample.versions = Sample([5], [True], [-1.0], [0], FinishReason.STOP).versions
    _, header, buffer = (memoryview(part) for part in samples_message([sample]))
    with pytest.raises(TrainerError, match="versions for more or fewer tokens"):
        samples_of(header, buffer)


def test_a_batch_with_fewer_messages_than_groups_is_refused() -> None:
    class Part:
        def __init__(self, data: bytes) -> None:
            self.bytes, self.buffer = data, memoryview(data)

    frames = opening(1, "step", {"version": 0, "groups": [{"id": 0, "task": "a", "admitted_at": 0}]}, 0)
    with pytest.raises(ValueError, match="shorter"):
        Received([Part(frame) for frame in frames]).decoded()


def test_the_largest_group_of_the_paper_is_one_copy() -> None:
    """Nine bytes a token, and the buffer is not the samples' own: it may still be on its way when they are gone."""
    tokens = np.arange(8_256, dtype=np.int32)
    samples = [
        Sample(tokens, np.arange(8_256) >= 64, tokens.astype(np.float32), [0] * 8_256, FinishReason.STOP)
        for _ in range(16)
    ]
    *_, buffer = samples_message(samples)
    assert len(buffer) == 16 * 8_256 * 9
    assert not np.shares_memory(np.frombuffer(buffer, np.uint8), tokens)
