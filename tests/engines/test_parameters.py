"""Every parameter that clients of OpenAI and vLLM send: done, taken without effect, or refused by name."""

import json
import math
import re
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import openai
import pytest
from anthropic.types.beta import message_create_params as message_params
from openai.types import completion_create_params as completion_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params as response_params

from freerun.engines.dialects.bodies import StreamOptions
from freerun.engines.dialects.chat import ChatBody
from freerun.engines.dialects.messages import MessagesBody
from freerun.engines.dialects.parameters import (
    IGNORED,
    MESSAGES_IGNORED,
    MESSAGES_REFUSED,
    REFUSED,
    RESPONSES_IGNORED,
    RESPONSES_REFUSED,
)
from freerun.engines.dialects.responses import ResponsesBody
from freerun.engines.embedded.serving.completions import CompletionBody
from freerun.engines.wire import SamplingParams
from tests.engines.test_openai import ENDLESS, Served, served

__all__ = ["served"]
PAGE = Path(__file__).parents[2] / "docs" / "serving.md"
IDS = ENDLESS | {"return_token_ids": True}


def names(*kinds: Any) -> set[str]:
    return {field.name for kind in kinds for field in msgspec.structs.fields(kind)}


def test_no_parameter_of_openai_is_unknown() -> None:
    chat = get_type_hints(chat_params.CompletionCreateParamsNonStreaming).keys()
    plain = get_type_hints(completion_params.CompletionCreateParamsNonStreaming).keys()
    assert chat - names(ChatBody) - IGNORED.keys() - REFUSED.keys() == set()
    assert plain - names(CompletionBody) - IGNORED.keys() - REFUSED.keys() == set()


def test_no_parameter_of_responses_and_messages_is_unknown() -> None:
    responses = get_type_hints(response_params.ResponseCreateParamsNonStreaming).keys()
    messages = get_type_hints(message_params.MessageCreateParamsNonStreaming).keys()
    assert responses - names(ResponsesBody) - RESPONSES_IGNORED.keys() - RESPONSES_REFUSED.keys() == set()
    assert messages - names(MessagesBody) - MESSAGES_IGNORED.keys() - MESSAGES_REFUSED.keys() == set()


def test_the_page_names_them_all() -> None:
    named = set(re.findall(r"`(\w+)`", PAGE.read_text()))
    bodies = names(ChatBody, CompletionBody, StreamOptions, SamplingParams, ResponsesBody, MessagesBody)
    ignored = IGNORED.keys() | RESPONSES_IGNORED.keys() | MESSAGES_IGNORED.keys()
    refused = REFUSED.keys() | RESPONSES_REFUSED.keys() | MESSAGES_REFUSED.keys()
    assert (bodies | ignored | refused) - named == set()


@pytest.mark.parametrize("name", sorted(IGNORED))
def test_what_changes_nothing_is_taken(served: Served, name: str) -> None:
    assert served.chat(extra_body={name: "x"}).choices[0].message == served.chat().choices[0].message


def test_what_is_not_done_is_refused_by_name_unless_it_asks_for_nothing(served: Served) -> None:
    for name, (harmless, instead) in REFUSED.items():
        with pytest.raises(openai.BadRequestError, match=re.escape(f"{name} is not supported: {instead}")) as error:
            served.complete(extra_body={name: {"type": "json_object"}})
        assert (error.value.param, error.value.code) == (name, "unsupported_parameter")
        for value in [None, *harmless]:
            served.complete(extra_body={name: value}, max_tokens=1)


def test_alternatives_of_a_completion(served: Served) -> None:
    plain = served.complete(logprobs=0, extra_body=IDS).choices[0]
    assert plain.logprobs.top_logprobs is None
    told = served.complete(logprobs=2, extra_body=IDS).choices[0]
    assert (told.token_ids, told.logprobs.token_logprobs) == (
        plain.token_ids,
        pytest.approx(plain.logprobs.token_logprobs),
    )
    for word, logprob, best in zip(
        told.logprobs.tokens, told.logprobs.token_logprobs, told.logprobs.top_logprobs, strict=True
    ):
        assert best[word] == pytest.approx(logprob)
        assert 2 <= len(best) <= 3, "two, and what was sampled"
    streamed = list(served.complete(logprobs=2, stream=True, extra_body=IDS))
    assert [best for chunk in streamed for best in chunk.choices[0].logprobs.top_logprobs] == told.logprobs.top_logprobs
    as_ids = served.complete(logprobs=1, extra_body=IDS | {"return_tokens_as_token_ids": True}).choices[0]
    assert as_ids.logprobs.tokens == [f"token_id:{token}" for token in told.token_ids]


def test_alternatives_of_a_chat(served: Served) -> None:
    how: Any = {"logprobs": True, "top_logprobs": 20, "extra_body": ENDLESS}
    (choice,) = served.chat(**how).choices
    for entry in choice.logprobs.content:
        values = [other.logprob for other in entry.top_logprobs]
        assert len(values) == 20
        assert values == sorted(values, reverse=True)
        assert {other.token: other.logprob for other in entry.top_logprobs}.get(entry.token, entry.logprob) == (
            pytest.approx(entry.logprob)
        )
    chunks = [chunk.choices[0] for chunk in served.chat(stream=True, **how) if chunk.choices[0].logprobs]
    assert [entry for chunk in chunks for entry in chunk.logprobs.content] == choice.logprobs.content
    few = served.chat(**(how | {"extra_body": ENDLESS | {"top_k": 3}})).choices[0].logprobs.content
    for entry in few:
        assert entry.token in {other.token for other in entry.top_logprobs[:3]}, "one of the three"
        assert sum(math.exp(other.logprob) for other in entry.top_logprobs[:3]) < 0.999, "likely among all tokens"


def test_what_shapes_the_answer(served: Served) -> None:
    def tokens(**more: Any) -> list[int]:
        extra = IDS | more.pop("extra_body", {})
        got: list[int] = served.complete(max_tokens=40, extra_body=extra, **more).choices[0].token_ids
        return got

    greedy = tokens(temperature=0)
    assert tokens(extra_body={"min_p": 1.0}) == greedy
    assert len(set(tokens(presence_penalty=2, frequency_penalty=2))) > len(set(tokens()))
    assert len(set(tokens(temperature=0, extra_body={"repetition_penalty": 2.0}))) > len(set(greedy))
    assert set(tokens(logit_bias={"9": 100})) == {9}
    assert 9 not in tokens(logit_bias={"9": -100})
    assert set(tokens(extra_body={"allowed_token_ids": [7, 8]})) == {7, 8}
    ends = {"stop_token_ids": list(range(2, 48)), "min_tokens": 7}
    assert len(tokens(extra_body=ends)) >= 7
    chat = served.chat(temperature=0, presence_penalty=2, logit_bias={9: 1}, extra_body={"min_p": 0.1})
    assert chat.choices[0].message.content


def test_what_shapes_the_text(served: Served) -> None:
    free = served.complete(max_tokens=60, extra_body=ENDLESS).choices[0].text
    how = {"stop": free[6:9], "max_tokens": 60, "extra_body": ENDLESS | {"include_stop_str_in_output": True}}
    expected = free[: free.index(free[6:9]) + 3]
    assert served.complete(**how).choices[0].text == expected
    assert "".join(chunk.choices[0].text for chunk in served.complete(**how, stream=True)) == expected
    assert served.complete(echo=True, best_of=1).choices[0].text == "abc" + served.complete().choices[0].text
    both = [chunk.choices[0] for chunk in served.complete([[2, 3], [4]], n=2, echo=True, stream=True)]
    for index, prompt in enumerate(("ab", "ab", "c", "c")):
        assert "".join(part.text for part in both if part.index == index).startswith(prompt)
    special = {"logit_bias": {"0": 100}, "max_tokens": 2}
    assert served.complete(**special).choices[0].text == ""
    shown = served.complete(**special, extra_body={"skip_special_tokens": False}).choices[0].text
    assert re.fullmatch(r"(<\w+>)\1", shown)


def test_what_shapes_the_prompt(served: Served) -> None:
    def prompt(**more: Any) -> int:
        tokens: int = served.chat(**more).usage.prompt_tokens
        return tokens

    assert prompt(extra_body={"truncate_prompt_tokens": 4}) == 4
    assert prompt(reasoning_effort="low", extra_body={"chat_template_kwargs": {"enable_thinking": False}}) == 9
    messages: Any = [{"role": "developer", "content": "x"}, {"role": "assistant", "content": "yes"}]
    assert prompt(messages=messages) == len("system x.assistant yes.>")
    assert prompt(messages=messages, extra_body={"continue_final_message": True}) == len("system x.assistant yes")
    cut = served.complete("xabc", extra_body={"truncate_prompt_tokens": 3, "add_special_tokens": False})
    assert cut.choices[0].text == served.complete("abc").choices[0].text


def test_usage_with_every_chunk(served: Served) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True, "include_obfuscation": False}
    used = [chunk.usage.completion_tokens for chunk in served.chat(stream=True, stream_options=options)]
    assert used == sorted(used)
    assert used[0] == 0
    assert used[-1] == served.chat().usage.completion_tokens


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"n": 64_012}, "n"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"extra_body": {"repetition_penalty": 0}}, "repetition_penalty"),
        ({"extra_body": {"min_p": 1.1}}, "min_p"),
        ({"extra_body": {"min_tokens": -1}}, "min_tokens"),
        ({"extra_body": {"min_tokens": 13}}, "min_tokens"),
        ({"extra_body": {"min_tokens": 2}, "stop": "a"}, "min_tokens"),
        ({"extra_body": {"allowed_token_ids": []}}, "allowed_token_ids"),
        ({"extra_body": {"truncate_prompt_tokens": 0}}, "truncate_prompt_tokens"),
        ({"logit_bias": {"9": 101}}, "logit_bias"),
        ({"logit_bias": {"nine": 1}}, "logit_bias"),
        ({"logit_bias": {"99": 1}}, None),
        ({"stop": ["x"] * 65}, "stop"),
        ({"stop": "x" * 2000}, "stop"),
        ({"best_of": 2}, "best_of"),
        ({"echo": True, "logprobs": 0}, "echo"),
        ({"stream_options": {"include_all": True}}, "stream_options"),
        ({"temperature": "hot"}, "temperature"),
        ({"prompt": "a" * 1_000_000}, None),
    ],
)
def test_nonsense_is_refused(served: Served, more: dict[str, Any], param: str | None) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        served.complete(**more)
    assert "\n" not in error.value.message
    assert error.value.param == param


def test_nonsense_in_a_chat_is_refused(served: Served) -> None:
    for more, says in (
        ({"top_logprobs": 2}, "top_logprobs needs logprobs: true"),
        ({"top_logprobs": 21, "logprobs": True}, r"top_logprobs must lie in 0\.\.20"),
        ({"messages": [{"role": "user"}]}, "a message of user needs content"),
        ({"messages": [{"content": "hi"}]}, "every message needs a role"),
        ({"extra_body": {"echo": True}}, "echo is for /v1/completions"),
        ({"extra_body": {"add_generation_prompt": True, "continue_final_message": True}}, "does not go with"),
        ({"extra_body": {"chat_template_kwargs": {"tokenize": True}}}, "must not hold tokenize"),
        ({"extra_body": {"max_completion_token": 3}}, "did you mean max_completion_tokens"),
    ):
        with pytest.raises(openai.BadRequestError, match=says):
            served.chat(**more)


@pytest.mark.parametrize(
    ("token_ids", "params", "says"),
    [
        ("[1]", '{"n": 64012}', "n must lie in 1..4096"),
        ("[1]", '{"n": -1}', "n must lie in 1..4096"),
        ("[1]", '{"max_tokens": 0}', "max_tokens must be 1 or more"),
        ("[1]", '{"max_tokens": 1000000000}', "exceed the model's 512 positions"),
        ("[1]", '{"temperature": -0.5}', "temperature must be 0 or more"),
        ("[1]", '{"temperature": NaN}', "the request's body"),
        ("[1]", '{"temperature": 1e999}', "out of range"),
        ("[1]", '{"top_p": 0}', "top_p must be above 0"),
        ("[1]", '{"top_k": -2}', "top_k must be 0"),
        ("[1]", '{"logprobs": 21}', "logprobs must lie in 0..20"),
        ("[1]", '{"min_p": 2}', "min_p must lie in 0..1"),
        ("[1]", '{"presence_penalty": 3}', "presence_penalty must lie in -2..2"),
        ("[1]", '{"stop": [""]}', "stop must not be empty text"),
        ("[1]", '{"best_of": 2}', "unknown field `best_of`"),
        ("[]", "{}", "at least one token"),
        ("[48]", "{}", "token ids must lie in 0..47"),
        ("[-1]", "{}", "token ids must lie in 0..47"),
        ("[1e400]", "{}", "out of range"),
        ('["a"]', "{}", "Expected `int`"),
    ],
)
def test_nonsense_is_refused_where_tokens_go_in(served: Served, token_ids: str, params: str, says: str) -> None:
    body = f'{{"request_id": "x", "token_ids": {token_ids}, "sampling_params": {params}}}'
    status, text = served.call("POST", "/inference/v1/generate", body.encode())
    message = json.loads(text)["error"]["message"]
    assert status == 400
    assert says in message
    assert "\n" not in message


def test_tokens_come_with_alternatives_if_asked(served: Served) -> None:
    params = {"max_tokens": 3, "ignore_eos": True, "logprobs": 2, "seed": 5}
    body = {"request_id": "x", "token_ids": [4, 5], "sampling_params": params}
    choice = json.loads(served.call("POST", "/inference/v1/generate", json.dumps(body).encode())[1])["choices"][0]
    assert [len(entry["top_logprobs"]) for entry in choice["logprobs"]["content"]] == [2, 2, 2]
    plain = json.dumps(body | {"sampling_params": params | {"logprobs": 0}}).encode()
    (without,) = json.loads(served.call("POST", "/inference/v1/generate", plain)[1])["choices"]
    assert without["token_ids"] == choice["token_ids"]
    assert "top_logprobs" not in without["logprobs"]["content"][0]
