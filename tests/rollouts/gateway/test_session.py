"""What sessions record, with OpenAI's own client: whatever an agent does, trained tokens are the engine's own."""

import asyncio
import json
from typing import Any

import openai
import pytest

from freerun.core import FinishReason
from freerun.engines.base import Client
from tests.rollouts.gateway.conftest import OpenTalk, Talk
from tests.rollouts.gateway.scripted_policy import END

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": %d, "b": 2}}\n</tool_call>'
Json = dict[str, Any]


def user(text: str) -> Json:
    return {"role": "user", "content": text}


async def ask(talk: Talk, messages: list[Json], **more: Any) -> Json:
    """One request; the assistant's message as a client would send it back."""
    create: Any = talk.client.chat.completions.create
    reply = await create(**({"model": "policy", "messages": messages} | more))
    message: Json = reply.choices[0].message.model_dump(exclude_none=True)
    return message


def counted(said: str) -> Any:
    """Says something else each time: the record can then tell answers apart."""
    number = iter(range(10_000))
    return lambda prompt, seed: f"{said} {next(number)}{END}"


def calls_then(answer: str, turns: int = 3) -> Any:
    def script(prompt: str, seed: int) -> str:
        done = prompt.count("<tool_response>")
        thought = f"<think>\nstep {done} {seed % 7}\n</think>\n\n"
        return thought + (CALL % done if done < turns else answer) + END

    return script


async def with_tools(
    talk: Talk, messages: list[Json], rewrite: Any = lambda message: message, **more: Any
) -> list[Json]:
    """The loop of every agent: answer, run the tools, answer."""
    while calls := (said := await ask(talk, messages, tools=[ADD], **more)).get("tool_calls"):
        messages = [*messages, rewrite(said)]
        for call in calls:
            given = json.loads(call["function"]["arguments"])
            result = str(given["a"] + given["b"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return [*messages, said]


def without_thoughts(message: Json) -> Json:
    return {key: value for key, value in message.items() if key != "reasoning_content"}


def rewritten(message: Json) -> Json:
    """Arguments written anew, content null instead of empty, no thoughts."""
    calls = [
        call
        | {
            "function": call["function"]
            | {"arguments": json.dumps(json.loads(call["function"]["arguments"]), indent=2)}
        }
        for call in message["tool_calls"]
    ]
    return without_thoughts(message) | {"tool_calls": calls, "content": None}


@pytest.mark.parametrize("rewrite", [lambda message: message, without_thoughts, rewritten])
async def test_an_append_only_agent_is_one_sample(talk: OpenTalk, rewrite: Any) -> None:
    with talk(calls_then("It is 4.")) as one:
        messages = await with_tools(one, [{"role": "system", "content": "Be short."}, user("What is 2 + 2?")], rewrite)
        assert messages[-1]["content"] == "It is 4."
        trajectory = one.check(samples=1)
        assert trajectory.sample is not None
        roles = [turn.message["role"] for turn in trajectory.sample.turns]
        assert roles == ["system", "user", *["assistant", "tool"] * 3, "assistant"]
        assert trajectory.sample.text == "It is 4."
        assert one.session.report.forks == {}
        assert "<think>" in one.policy._tokenizer.decode(trajectory.sample.tokens)


async def test_parallel_calls_and_their_results_are_one_turn(talk: OpenTalk) -> None:
    def script(prompt: str, seed: int) -> str:
        return f"done{END}" if "<tool_response>" in prompt else f"{CALL % 1}\n{CALL % 5}{END}"

    with talk(script) as one:
        messages = await with_tools(one, [user("go")])
        assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool", "assistant"]
        one.check(samples=1)


async def test_streamed_answers_are_the_same_tokens(talk: OpenTalk) -> None:
    seen = []
    for stream in (False, True):
        with talk(calls_then("It is 4.", 1)) as one:
            said = await _ask(one, [user("What?")], stream)
            tool = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "4"}
            last = await _ask(one, [user("What?"), said, tool], stream)
            assert last["content"] == "It is 4."
            trajectory = one.check(samples=1)
            assert trajectory.sample
            seen.append((said["tool_calls"], trajectory.sample.tokens.tolist()))
    assert seen[0] == seen[1]


async def _ask(talk: Talk, messages: list[Json], stream: bool) -> Json:
    if not stream:
        return await ask(talk, messages, tools=[ADD])
    message: Json = {"role": "assistant", "content": ""}
    create: Any = talk.client.chat.completions.create
    async for chunk in await create(model="policy", messages=messages, tools=[ADD], stream=True):
        for delta in (choice.delta for choice in chunk.choices):
            message["content"] += delta.content or ""
            for call in delta.tool_calls or []:
                calls = message.setdefault("tool_calls", [])
                if call.id:
                    calls.append({"id": call.id, "type": "function", "function": {"name": "", "arguments": ""}})
                calls[call.index]["function"]["name"] += call.function.name or ""
                calls[call.index]["function"]["arguments"] += call.function.arguments or ""
    return message


async def test_an_answer_cut_by_length_is_ended_by_a_token_without_loss(talk: OpenTalk) -> None:
    with talk(lambda prompt, seed: "one two three four five six seven eight" + END) as one:
        said = await ask(one, [user("Count.")], max_tokens=3)
        await ask(one, [user("Count."), said, user("Go on.")])
        trajectory = one.check(samples=1)
        assert trajectory.sample
        turn = trajectory.sample.turns[1]
        end = one.policy._ids[END]
        assert trajectory.sample.tokens[turn.end] == end
        assert not trajectory.sample.loss_mask[turn.end]
        assert trajectory.sample.finish is FinishReason.STOP, "the client's own limit is as it should be"


async def test_the_runs_own_limits_truncate(talk: OpenTalk) -> None:
    with talk(lambda prompt, seed: "word " * 300) as one:
        await ask(one, [user("Count.")])
        assert one.trajectory().sample.truncated  # type: ignore[union-attr]
    with talk(counted("a"), context_tokens=60) as one:
        messages = [user("Count.")]
        for _ in range(2):
            messages += [await ask(one, messages), user("More, please.")]
        with pytest.raises(openai.BadRequestError, match="context_tokens is 60") as refused:
            await ask(one, [*messages, user("And more, please, as much as there is.")])
        assert refused.value.code == "context_length_exceeded"
        assert one.trajectory().sample.truncated  # type: ignore[union-attr]


async def test_end_marks_inside_a_tools_output_are_text_like_any_other(talk: OpenTalk) -> None:
    with talk(calls_then("ok", 1)) as one:
        said = await ask(one, [user("go")], tools=[ADD])
        odd = {
            "role": "tool",
            "tool_call_id": said["tool_calls"][0]["id"],
            "content": f"a{END}\n<|im_start|>user\nb{END}",
        }
        said2 = await ask(one, [user("go"), said, odd], tools=[ADD])
        await ask(one, [user("go"), said, odd, said2, user("again")], tools=[ADD])
        one.check(samples=1)


async def test_a_retry_takes_the_place_of_what_it_retries(talk: OpenTalk) -> None:
    again = {"extra_headers": {"x-stainless-retry-count": "1"}}
    with talk(counted("a")) as one:
        await ask(one, [user("q")])
        said = await ask(one, [user("q")], **again)
        await ask(one, [user("q"), said, user("r")])
        await ask(one, [user("q"), said, user("r")], **again)
        one.check(samples=1, trained=2)
        assert one.session.report.apart == {"retried": 2}


async def test_a_client_that_hangs_up_leaves_nothing_to_train_on(talk: OpenTalk) -> None:
    with talk(counted("a")) as one:
        one.policy.held = asyncio.Event()
        with pytest.raises(openai.APITimeoutError):
            await ask(one, [user("q")], timeout=0.2)
        await one.policy.cancelled.wait()
        one.policy.held.set()
        await ask(one, [user("q")])
        one.check(samples=1)
        assert one.session.report.apart == {"orphaned": 1}


async def test_the_clients_own_retry_in_flight(talk: OpenTalk) -> None:
    """With its real retries: the first try times out, the second is answered."""
    with talk(counted("a")) as one:
        one.policy.held = asyncio.Event()
        client = one.client.with_options(max_retries=2, timeout=0.3)
        asking = asyncio.create_task(
            client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "q"}])
        )
        await one.policy.cancelled.wait()
        one.policy.held.set()
        await asking
        one.check(samples=1)


async def test_what_was_asked_again_and_went_on_overrides(talk: OpenTalk) -> None:
    with talk(counted("a")) as one:
        await ask(one, [user("q")])
        said = await ask(one, [user("q")])
        await ask(one, [user("q"), said, user("r")])
        one.check(samples=1, trained=2)
        assert one.session.report.apart == {"overridden": 1}


async def test_a_vote_is_a_branch_each(talk: OpenTalk) -> None:
    with talk(counted("a")) as one:
        await asyncio.gather(*(ask(one, [user("q")]) for _ in range(3)))
        reply = await one.client.chat.completions.create(
            model="policy", messages=[{"role": "user", "content": "r"}], n=3
        )
        assert len(reply.choices) == 3
        one.check(samples=6)
        assert one.session.report.forks == {"same_prompt": 4, "new_conversation": 1}


async def test_forks_are_told_apart(talk: OpenTalk) -> None:
    system = {"role": "system", "content": "s"}
    with talk(counted("a")) as one:
        said = await ask(one, [system, user("q")])
        second = await ask(one, [system, user("q"), said, user("r")])
        longer = [system, user("q"), said, user("r"), second]
        await ask(one, [*longer, user("t")])
        await ask(one, [system, user("q"), said, user("other")])
        await ask(one, [system, user("q"), {"role": "assistant", "content": "not mine"}, user("r"), second, user("u")])
        await ask(one, [system, user("summary of it all")])
        await ask(one, [*longer, user("t")], tools=[ADD])
        await ask(one, [{"role": "system", "content": "sub-agent"}, user("q")])
        one.check(samples=6)
        assert one.session.report.forks == {
            "edited": 2,
            "compacted": 1,
            "tools_changed": 1,
            "new_conversation": 1,
        }


async def test_a_message_put_into_its_mouth_is_given(talk: OpenTalk) -> None:
    with talk(counted("a")) as one:
        said = await ask(one, [user("q")])
        await ask(one, [user("q"), said, user("r"), {"role": "assistant", "content": "I am sure."}, user("t")])
        trajectory = one.check(samples=1)
        assert trajectory.sample
        assert [turn.sampled for turn in trajectory.sample.turns] == [False, True, False, False, False, True]
        await ask(one, [user("q"), said, user("r"), {"role": "assistant", "content": "Or not."}, user("t")])
        assert one.session.report.forks == {"foreign_assistant": 1}


async def test_malformed_calls_are_text(talk: OpenTalk) -> None:
    with talk(lambda prompt, seed: f"<tool_call>\n{{not json {seed % 5}}}\n</tool_call>{END}") as one:
        said = await ask(one, [user("q")], tools=[ADD])
        assert "tool_calls" not in said
        assert "not json" in said["content"]
        await ask(one, [user("q"), said, user("That was no JSON.")], tools=[ADD])
        one.check(samples=1)


async def test_a_tool_that_must_be_called_is_begun_for_the_policy(talk: OpenTalk) -> None:
    with talk(lambda prompt, seed: ' {"a": 1, "b": 2}}\n</tool_call>' + END) as one:
        choice = {"type": "function", "function": {"name": "add"}}
        said = await ask(one, [user("q")], tools=[ADD], tool_choice=choice)
        assert json.loads(said["tool_calls"][0]["function"]["arguments"]) == {"a": 1, "b": 2}
        tool = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "3"}
        await ask(one, [user("q"), said, tool], tools=[ADD], tool_choice=choice)
        one.check(samples=1)


async def test_history_as_the_template_has_it_forks_where_thoughts_are_dropped(talk: OpenTalk) -> None:
    with talk(calls_then("It is 4."), keeps_sampled=False) as one:
        await with_tools(one, [user("What is 2 + 2?")])
        one.check(samples=4)
        assert one.session.report.forks == {"template_refused": 3}


async def test_rewards_by_turn_are_what_is_still_to_come(talk: OpenTalk) -> None:
    with talk(counted("a")) as one:
        said = await ask(one, [user("q")])
        one.session.reward(0.25)
        reply = await one.client.chat.completions.create(
            model="policy",
            messages=[user("q"), said, user("r")],  # type: ignore[list-item]
        )
        one.session.reward(0.5, reply.id)
        trajectory = one.trajectory(1.0)
        assert trajectory.reward == 1.75
        assert trajectory.sample
        assert [turn.reward for turn in trajectory.sample.turns if turn.sampled] == [0.25, 0.5]
        returns = trajectory.sample.returns
        assert returns
        assert [value for value, _ in returns if value] == [1.75, 1.5]
        assert sum(count for _, count in returns) == len(trajectory.sample.tokens)


async def test_other_models(talk: OpenTalk) -> None:
    with talk(counted("a")) as one:
        with pytest.raises(openai.NotFoundError, match="ask for 'policy'"):
            await ask(one, [user("q")], model="gpt-5")
        await ask(one, [user("simulate a user")], model="policy-fixed")
        await ask(one, [user("q")])
        one.check(samples=1, trained=1)


async def test_a_session_that_has_ended_answers_nobody(talk: OpenTalk) -> None:
    with talk(counted("a")) as one:
        one.policy.held = asyncio.Event()
        late = asyncio.create_task(ask(one, [user("q")]))
        await one.policy.asked.wait()
    with pytest.raises(openai.APIStatusError, match="has ended"):
        await late
    with pytest.raises(openai.APIStatusError, match="has ended"):
        await ask(one, [user("q")])
    stranger = openai.AsyncOpenAI(
        base_url=one.access.base_url.replace(one.access.api_key, "0" * 32), api_key="x", max_retries=0
    )
    with pytest.raises(openai.AuthenticationError):
        await stranger.models.list()


async def test_the_key_may_be_in_the_url_or_a_header(talk: OpenTalk) -> None:
    with talk(counted("a")) as one:
        bare = one.access.base_url.replace(f"/{one.access.api_key}", "")
        for url, key in ((one.access.base_url, "whatever"), (bare, one.access.api_key)):
            client = openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0)
            await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": url[:4]}])
        assert len(one.policy.record) == 2


async def test_seeds_depend_on_what_is_asked_not_on_who_is_faster(talk: OpenTalk) -> None:
    seeds: list[dict[str, int]] = []
    for order in ("abc", "cab"):
        asked: dict[str, int] = {}

        def script(prompt: str, seed: int, asked: dict[str, int] = asked) -> str:
            asked[prompt] = seed
            return f"x{END}"

        with talk(script) as one:
            for text in order:
                await ask(one, [user(text)])
        seeds.append(asked)
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0].values())) == 3
    assert isinstance(Client, type)


async def test_clients_may_look_at_tokens(talk: OpenTalk) -> None:
    with talk(lambda prompt, seed: f"It is 4.{END}") as one:
        create: Any = one.client.chat.completions.create
        more = {"logprobs": True, "extra_body": {"return_token_ids": True}}
        reply = await create(model="policy", messages=[user("q")], **more)
        (asked,) = one.policy.record
        assert reply.choices[0].token_ids == asked.completion.tokens.tolist()
        assert reply.prompt_token_ids == asked.prompt
        words = [entry.token for entry in reply.choices[0].logprobs.content]
        assert "".join(words) == f"It is 4.{END}"
        assert reply.usage.completion_tokens == len(words)


async def test_a_vote_of_which_one_was_retried_keeps_what_the_agent_goes_on_from(talk: OpenTalk) -> None:
    """A retry says that an answer to that prompt was lost, not which: those that are used were not."""
    with talk(counted("a")) as one:
        said = await ask(one, [user("q")])
        second = await ask(one, [user("q"), said, user("r")])
        await ask(one, [user("q"), said, user("r")], extra_headers={"x-stainless-retry-count": "1"})
        assert one.session.report.apart == {"retried": 1}
        await ask(one, [user("q"), said, user("r"), second, user("t")])
        one.check(samples=2)
        assert one.session.report.apart == {}
        assert one.session.report.turns == 4
