"""A user's own rollout: what it is given, what it may return, and what becomes of its failures."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from freerun import (
    Client,
    ConfigError,
    Conversation,
    EngineError,
    FinishReason,
    InProcessEngine,
    Learner,
    RolloutClient,
    Sampling,
    Task,
    TrainConfig,
    Trajectory,
)
from freerun.core.nouns import NOT_SAMPLED
from freerun.engines.config import EngineConfig
from freerun.models.tokenizer import load_tokenizer
from freerun.rollouts.base import Rollout
from freerun.rollouts.config import RolloutConfig
from freerun.rollouts.load import load_own
from freerun.rollouts.own import OwnRollout
from tests.tiny import tiny_decoder, tiny_folder

TEMPLATE = (
    "{% for m in messages %}{{ m['role'][0] }}={{ m['content'] }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}a={% endif %}"
)
"""Turns such as `u=hello<eos>`; the policy samples the <eos> of its own turns."""
EOS = 1


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_tokenizer(tiny_folder(tmp_path_factory.mktemp("tiny") / "model"))


@pytest.fixture(scope="module")
def chatting(tmp_path_factory: pytest.TempPathFactory) -> Any:
    tokenizer = load_tokenizer(tiny_folder(tmp_path_factory.mktemp("tiny") / "model"))
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def engine() -> InProcessEngine:
    return InProcessEngine(tiny_decoder(3), EngineConfig(cache_tokens=4096))


def client(tokenizer: Any, size: int = 4, most: int = 40, on: Any = None, seed: str = "0") -> RolloutClient:
    return RolloutClient(Client(on or engine(), seed), tokenizer, Sampling(most), size)


def task(tokenizer: Any, prompt: str = "ab?") -> Task:
    return Task("t", prompt, tokenizer.encode(prompt, add_special_tokens=False), "b")


async def two_turns(chat: Conversation) -> None:
    await chat.reply(max_tokens=6)
    chat.add("go on")
    await chat.reply(max_tokens=6)


@pytest.mark.parametrize("name", ["tokenizer", "chatting"])
async def test_tokens_of_a_conversation_are_exactly_those_sampled_and_seen(
    name: str, request: pytest.FixtureRequest
) -> None:
    """The trainer computes the engine's log-probabilities again from the whole sample: they agree."""
    tokenizer = request.getfixturevalue(name)
    found = await client(tokenizer, size=8).each_member(task(tokenizer), two_turns)
    samples = [trajectory.sample for trajectory in found if trajectory.sample]
    assert len(samples) == 8
    scored = Learner(tiny_decoder(3), TrainConfig()).score(samples)
    for trajectory, sample, policy in zip(found, samples, scored, strict=True):
        assert [message["role"] for message in trajectory.messages] == ["user", "assistant", "user", "assistant"]
        assert trajectory.messages[-1]["content"] == sample.text
        assert [v != NOT_SAMPLED for v in sample.versions] == list(sample.loss_mask)
        turns = [[*group] for _, group in itertools.groupby(sample.loss_mask)]
        assert [turn[0] for turn in turns] == [False, True, False, True]
        behavior = list(itertools.compress(sample.behavior_logprobs, sample.loss_mask))
        assert policy == pytest.approx(behavior, abs=1e-4)
        assert [turn.message for turn in sample.turns] == trajectory.messages
        assert [turn.sampled for turn in sample.turns] == [False, True, False, True]
        for turn in itertools.compress(sample.turns, [False, True, False, True]):
            assert sample.loss_mask[turn.start : turn.end].all()
            said = tokenizer.decode(sample.tokens[turn.start : turn.end].tolist(), skip_special_tokens=True)
            assert said == turn.message["content"]


async def test_the_end_of_a_turn_is_given_only_where_the_policy_did_not_sample_it(chatting: Any) -> None:
    found = await client(chatting, size=16).each_member(task(chatting), two_turns)
    ended = set()
    for trajectory in found:
        assert trajectory.sample
        tokens, mask = list(trajectory.sample.tokens), list(trajectory.sample.loss_mask)
        first, given = mask.index(True), mask.index(False, mask.index(True))
        stopped = tokens[given - 1] == EOS
        ended.add(stopped)
        said = chatting.decode(tokens[first:given], skip_special_tokens=True)
        assert tokens[:given].count(EOS) == stopped
        rest = chatting.decode(tokens[given : mask.index(True, given)])
        assert rest == ("" if stopped else "<eos>") + "u=go on<eos>a="
        assert trajectory.messages[1]["content"] == said
    assert ended == {True, False}, "some of each"


async def test_what_is_said_before_the_first_reply_makes_the_prompt_longer(chatting: Any) -> None:
    chat = client(chatting).conversation(task(chatting))
    chat.add("be kind")
    await chat.reply(max_tokens=1)
    assert chatting.decode(chat.tokens[:-1]) == "u=ab?<eos>u=be kind<eos>a="


async def test_a_conversation_fits_the_longest_answer(tokenizer: Any) -> None:
    async def talk(chat: Conversation) -> None:
        while await chat.reply(max_tokens=3):
            chat.add("a")
        assert chat.finish is FinishReason.LENGTH

    for trajectory in await client(tokenizer, most=10).each_member(task(tokenizer), talk):
        assert trajectory.error is None
        assert trajectory.sample
        assert len(trajectory.sample.tokens) <= 3 + 10
        assert trajectory.sample.truncated

    (short,) = await client(tokenizer, size=1).each_member(task(tokenizer), two_turns)
    assert short.sample
    assert not short.sample.truncated, "turns that ended at their own limit are as they should be"


async def test_what_is_sampled_does_not_depend_on_who_is_faster(tokenizer: Any) -> None:
    async def dawdle(chat: Conversation, delays: list[int]) -> None:
        for _ in range(delays.pop()):
            await asyncio.sleep(0)
        await two_turns(chat)

    runs = []
    for delays in ([0, 0, 0, 0], [9, 3, 50, 0]):
        found = await client(tokenizer).each_member(task(tokenizer), lambda chat, d=delays: dawdle(chat, d))  # type: ignore[misc]
        runs.append([[int(token) for token in one.sample.tokens] for one in found if one.sample])
    assert runs[0] == runs[1]
    assert len({tuple(tokens) for tokens in runs[0]}) > 1


async def test_a_member_that_raises_fails_alone(tokenizer: Any) -> None:
    count = itertools.count()

    async def member(chat: Conversation) -> float:
        if next(count) == 1:
            raise KeyError("answer")
        await chat.reply()
        return 0.5

    found = await client(tokenizer).each_member(task(tokenizer), member)
    assert [one.reward for one in found].count(0.5) == 3
    (failed,) = [one for one in found if one.error is not None]
    assert failed.sample is None
    assert f"{__file__}:" in str(failed.error)
    assert str(failed.error).endswith("KeyError: 'answer'")


async def test_an_engine_that_fails_is_not_the_users_fault(tokenizer: Any) -> None:
    async def member(chat: Conversation) -> None:
        chat._turns = [[10_000]]
        await chat.reply()

    with pytest.raises(EngineError, match="token ids must lie in"):
        await client(tokenizer).each_member(task(tokenizer), member)


Own = Callable[[Task, RolloutClient], Awaitable[Any]]


async def outcome(tokenizer: Any, rollout: Own, notes: list[str] | None = None) -> list[Trajectory]:
    told: list[str] = [] if notes is None else notes
    own = OwnRollout(rollout, tokenizer, Sampling(8), 2, told.append)  # type: ignore[arg-type]
    return await own(task(tokenizer), Client(engine(), "0"))


async def returns_nothing(task: Task, client: RolloutClient) -> None: ...


async def returns_too_few(task: Task, client: RolloutClient) -> Any:
    return (await client.each_member(task, two_turns))[:1]


async def raises(task: Task, client: RolloutClient) -> Any:
    raise KeyError("key")


async def exits(task: Task, client: RolloutClient) -> Any:
    raise SystemExit(3)


async def cancels_itself(task: Task, client: RolloutClient) -> Any:
    raise asyncio.CancelledError


async def replies(chat: Conversation) -> None:
    await chat.reply()


async def too_long(task: Task, client: RolloutClient) -> Any:
    client.sampling = Sampling(20, ignore_eos=True)
    return await client.each_member(task, replies)


async def bad_reward(task: Task, client: RolloutClient) -> Any:
    async def member(chat: Conversation) -> Trajectory:
        await chat.reply()
        return chat.result(float("nan"))

    return await client.each_member(task, member)


async def says_nothing(task: Task, client: RolloutClient) -> Any:
    return [client.conversation(task).result() for _ in range(2)]


@pytest.mark.parametrize(
    ("rollout", "says"),
    [
        (returns_nothing, "a rollout must return a list of Sample or Trajectory, not None"),
        (returns_too_few, "a rollout returned 1 samples, but the group has client.group_size=2"),
        (raises, "test_own.py:"),
        (exits, "SystemExit: 3"),
        (cancels_itself, "CancelledError"),
        (too_long, "a sample of 23 tokens is longer than its prompt and rollout.max_new_tokens (11)"),
        (bad_reward, "a reward must be a finite number, not nan"),
        (says_nothing, "a sample holds nothing that the policy sampled"),
    ],
)
async def test_failures_are_data_and_are_said_once(tokenizer: Any, rollout: Own, says: str) -> None:
    notes: list[str] = []
    found = await outcome(tokenizer, rollout, notes)
    assert len(found) == 2
    assert all(one.sample is None and says in str(one.error) for one in found)
    assert len(notes) == 1
    assert says in notes[0]


async def test_another_failure_is_said_too_and_the_same_with_other_words_is_not(tokenizer: Any) -> None:
    count = itertools.count()

    async def rollout(task: Task, client: RolloutClient) -> Any:
        number = next(count)
        if number == 3:
            raise ValueError("another")
        raise KeyError(f"task {number}")

    notes: list[str] = []
    own = OwnRollout(rollout, tokenizer, Sampling(8), 2, notes.append)
    for _ in range(5):
        await own(task(tokenizer), Client(engine(), "0"))
    assert [("KeyError" in note, "ValueError" in note) for note in notes] == [(True, False), (False, True)]


async def test_being_cancelled_is_no_failure(tokenizer: Any) -> None:
    async def waits(task: Task, client: RolloutClient) -> Any:
        await asyncio.Event().wait()

    going = asyncio.create_task(outcome(tokenizer, waits))
    await asyncio.sleep(0)
    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going


SOURCE = """
from dataclasses import dataclass

@dataclass
class Mine:
    turns: int = 1
    async def __call__(self, task, client):
        return []

async def plain(task, client, turns=1):
    return []

def not_async(task, client):
    return []

class Explodes:
    def __init__(self):
        1 / 0
"""


def test_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(SOURCE)

    def own(kind: str, **options: Any) -> Rollout | None:
        return load_own(RolloutConfig(kind={"name": kind, **options} if options else kind))

    assert own("single_turn") is None
    assert getattr(own(f"{file}:Mine", turns="3"), "turns") == 3  # noqa: B009
    assert own(f"{file}:plain", turns=3) is not None
    for kind, options, says in (
        (f"{file}:Mine", {"turn": 3}, 'has no option "turn"; did you mean turns?'),
        (f"{file}:Mine", {"turns": "many"}, "turns: Expected int, got str"),
        (f"{file}:not_async", {}, "is no rollout: it must be `async def rollout(task, client)`"),
        (f"{file}:Explodes", {}, f"cannot be made: {file}:18: ZeroDivisionError"),
        (f"{file}:Main", {}, "has no class Main; did you mean Mine?"),
        ("single_tun", {}, "did you mean single_turn?"),
        ("single_turn", {"turns": 3}, "single_turn has no options"),
    ):
        with pytest.raises(ConfigError) as caught:
            own(kind, **options)
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)
