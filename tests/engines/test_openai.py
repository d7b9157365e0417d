"""`freerun serve` as a real process, driven by the unmodified OpenAI client."""

import asyncio
import base64
import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freerun.config.load import load_section
from freerun.core import ConfigError, FinishReason
from freerun.engines.base import Sampling
from freerun.engines.config import EngineConfig
from freerun.engines.dialects.bodies import StreamOptions
from freerun.engines.dialects.text import AnswerText
from freerun.engines.embedded.serving.completions import Answers, CompletionBody, Reply, stream_of
from freerun.engines.embedded.serving.tokenizer import Tokenizer
from freerun.engines.server.pending import AnswerPart, AnswerRequest, PendingAnswers
from tests.tiny import tiny_folder

KEY = "a secret"
TEMPLATE = (
    "{% for message in messages %}{{ message.role }} {{ message.content }}"
    "{% for call in message.tool_calls or [] %}{{ call.function.arguments.city }}{% endfor %}.{% endfor %}"
    "{% for tool in tools or [] %}{{ tool.function.name }}?{% endfor %}"
    "{{ 1 // 0 if messages[0].content == 'bad' }}>"
)
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
ENDLESS = {"ignore_eos": True}


@dataclass
class Served:
    url: str
    process: "subprocess.Popen[str]"
    client: openai.OpenAI

    def call(self, method: str, route: str, body: bytes | None = None, key: str = KEY) -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        request = urllib.request.Request(self.url + route, body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name: str) -> float:
        (value,) = re.findall(rf"^freerun_{re.escape(name)} (\S+)$", self.call("GET", "/metrics")[1], re.MULTILINE)
        return float(value)

    def until(self, name: str, holds: Callable[[float], bool]) -> None:
        """AnswerRequest the server itself until it says so."""
        while not holds(self.metric(name)):
            pass

    def complete(self, prompt: Any = "abc", **more: Any) -> Any:
        return self.client.completions.create(model="tiny", prompt=prompt, **({"max_tokens": 12, "seed": 3} | more))

    def chat(self, content: str = "hi", **more: Any) -> Any:
        messages: Any = [{"role": "user", "content": content}]
        return self.client.chat.completions.create(
            **({"model": "tiny", "messages": messages, "max_tokens": 12, "seed": 3} | more)
        )


def start(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "freerun.cli.main", "serve", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tiny_folder(tmp_path_factory.mktemp("served") / "tiny")
    settings = json.loads((folder / "tokenizer_config.json").read_text()) | {"chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    process = start(str(folder), "engine.cache_tokens=4096", "--port", "0", "--api-key", KEY)
    try:
        assert process.stdout
        assert process.stderr
        line = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert found, line + process.stderr.read()
        url = found.group()
        yield Served(url, process, openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=20))
    finally:
        process.kill()
        process.communicate()


def test_models(served: Served) -> None:
    assert [model.id for model in served.client.models.list()] == ["tiny"]
    assert served.client.models.retrieve("tiny").id == "tiny"


def test_completions(served: Served) -> None:
    answer = served.complete(n=2, logprobs=0, extra_body=ENDLESS | {"return_token_ids": True})
    assert answer.object == "text_completion"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (3, 24, 27)
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert choice.finish_reason == "length"
        assert choice.prompt_token_ids == [2, 3, 4]
        assert len(choice.token_ids) == len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs) == 12
        assert choice.logprobs.top_logprobs is None
        assert choice.logprobs.text_offset[:2] == [0, len(choice.logprobs.tokens[0])]
        assert all(logprob <= 0 for logprob in choice.logprobs.token_logprobs)
        assert choice.text == "".join(word for word in choice.logprobs.tokens if not word.startswith("<"))


def test_a_seed_makes_answers_repeatable_whatever_their_company(served: Served) -> None:
    alone = served.complete().choices[0].text
    assert served.complete().choices[0].text == alone
    assert served.complete(["x", "abc"]).choices[1].text == alone
    assert served.complete([[6, 7], [2, 3, 4]]).choices[1].text == alone
    assert served.complete([2, 3, 4]).choices[0].text == alone
    assert len({served.complete(seed=None, max_tokens=30).choices[0].text for _ in range(4)}) == 4
    batch = served.complete(["x", "abc"], n=2)
    assert [choice.index for choice in batch.choices] == [0, 1, 2, 3]
    assert batch.choices[2].text == alone


def test_greedy_needs_no_seed(served: Served) -> None:
    assert len({served.complete(seed=None, temperature=0).choices[0].text for _ in range(3)}) == 1


def test_streamed_completions_say_the_same_token_by_token(served: Served) -> None:
    how: Any = {"n": 2, "max_tokens": 40, "logprobs": 0, "extra_body": ENDLESS | {"return_token_ids": True}}
    whole = served.complete(**how)
    chunks = list(served.complete(**how, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert len(chunks) > 10
    for expected in whole.choices:
        parts = [chunk.choices[0] for chunk in chunks[:-1] if chunk.choices[0].index == expected.index]
        assert "".join(part.text for part in parts) == expected.text
        assert [token for part in parts for token in part.token_ids] == expected.token_ids
        assert [at for part in parts for at in part.logprobs.text_offset] == expected.logprobs.text_offset
        assert [part.finish_reason for part in parts] == [None] * (len(parts) - 1) + ["length"]
        assert parts[0].prompt_token_ids == [2, 3, 4]


def test_stop_strings_are_left_out(served: Served) -> None:
    free = served.complete(max_tokens=60, extra_body=ENDLESS).choices[0].text
    stop = free[6:9]
    expected = free[: free.index(stop)]
    for stops in (stop, ["never!", stop]):
        how: Any = {"max_tokens": 60, "stop": stops, "extra_body": ENDLESS}
        whole = served.complete(**how).choices[0]
        assert (whole.text, whole.finish_reason) == (expected, "stop")
        assert "".join(chunk.choices[0].text for chunk in served.complete(**how, stream=True)) == expected


def test_the_answer_is_as_long_as_fits_unless_told(served: Served) -> None:
    answer = served.complete(max_tokens=None, extra_body=ENDLESS)
    assert answer.usage.total_tokens == 512
    assert answer.choices[0].finish_reason == "length"


def test_chat(served: Served) -> None:
    answer = served.chat(n=2, logprobs=True, extra_body=ENDLESS | {"return_token_ids": True})
    assert answer.object == "chat.completion"
    assert answer.usage.prompt_tokens == len("user hi.>")
    first, second = answer.choices
    assert first.message.role == "assistant"
    assert first.message.content != second.message.content
    assert len(first.logprobs.content) == 12
    entry = first.logprobs.content[0]
    assert (entry.bytes, entry.top_logprobs) == (list(entry.token.encode()), [])
    assert len(first.prompt_token_ids) == len(answer.prompt_token_ids) == 9
    assert served.chat(max_tokens=None, max_completion_tokens=5, extra_body=ENDLESS).usage.completion_tokens == 5


def test_streamed_chat(served: Served) -> None:
    whole = served.chat(n=2, extra_body=ENDLESS)
    chunks = list(served.chat(n=2, stream=True, extra_body=ENDLESS))
    for expected in whole.choices:
        parts = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == expected.index]
        assert parts[0].delta.role == "assistant"
        assert "".join(part.delta.content or "" for part in parts) == expected.message.content
        assert parts[-1].finish_reason == "length"


def test_a_prompt_that_is_in_the_cache_is_said_to_be(served: Served) -> None:
    question = "what is in the cache " * 4
    first, again = served.chat(question), served.chat(question)
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert again.usage.prompt_tokens_details.cached_tokens == len(f"user {question}.>") // 16 * 16
    body = {"messages": [{"role": "user", "content": question}], "max_tokens": 1}
    usage = json.loads(served.call("POST", "/v1/messages", json.dumps(body).encode())[1])["usage"]
    assert usage["cache_read_input_tokens"] == again.usage.prompt_tokens_details.cached_tokens
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == again.usage.prompt_tokens


def test_tools_and_their_calls_go_through_the_template(served: Served) -> None:
    assert served.chat(tools=[TOOL]).usage.prompt_tokens == len("user hi.weather?>")
    assert served.chat(tools=[TOOL], tool_choice="none").usage.prompt_tokens == len("user hi.>")
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "rome"}'}}
    messages: Any = [
        {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    assert served.chat(messages=messages).usage.prompt_tokens == len("user hi.assistant rome.>")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"prompt": ""}, "prompt is empty"),
        ({"prompt": [[]]}, "prompt is empty"),
        ({"prompt": [1, "a"]}, "prompt must be"),
        ({"prompt": [99]}, r"0\.\.47"),
        ({"prompt": "a" * 600, "max_tokens": None}, "exceed the 512 tokens"),
        ({"max_tokens": 510}, "exceed the 512 tokens"),
        ({"max_tokens": 0}, "max_tokens must"),
        ({"n": 0}, "n must"),
        ({"n": 3, "prompt": ["a"] * 2000}, "more than 4096 answers"),
        ({"temperature": -0.1}, "temperature must"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p must"),
        ({"stop": [""]}, "stop must"),
        ({"suffix": "x"}, "suffix is not supported"),
        ({"extra_body": {"temprature": 1}}, "unknown parameter temprature; did you mean temperature"),
    ],
)
def test_nonsense_is_refused_with_a_reason(served: Served, more: dict[str, Any], says: str) -> None:
    with pytest.raises(openai.BadRequestError, match=says) as error:
        served.complete(**more)
    assert error.value.type == "invalid_request_error"


def test_absurd_numbers_hurt_nobody(served: Served) -> None:
    """No such answer is wrong, and the engine answers the next request."""
    greedy = served.complete(temperature=0).choices[0].text
    assert served.complete(temperature=1e-300).choices[0].text == greedy
    assert served.complete(temperature=1e-38, extra_body={"top_k": 2**62}).choices[0].text == greedy
    assert served.complete(top_p=1e-50).choices[0].text == greedy
    everything = served.complete(extra_body={"top_k": 2**80}).choices[0].text
    assert everything == served.complete().choices[0].text
    served.complete(seed=2**70, extra_body={"stop_token_ids": [2**70]})


def test_other_refusals(served: Served) -> None:
    with pytest.raises(openai.NotFoundError, match="only 'tiny'") as unknown:
        served.client.completions.create(model="gpt", prompt="a")
    assert unknown.value.code == "model_not_found"
    for chat, says in (
        ({"messages": []}, "messages is empty"),
        ({"messages": [{"role": "user", "content": "bad"}]}, "template refuses"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "text only"),
        ({"tool_choice": "often"}, "tool_choice must"),
        ({"tool_choice": "required"}, "there are no tools"),
        ({"response_format": {"type": "json_object"}}, "response_format is not supported"),
    ):
        with pytest.raises(openai.BadRequestError, match=says):
            served.chat(**chat)
    for method, route, body, status in (
        ("POST", "/v1/completions", b"{", 400),
        ("POST", "/v1/completions", b"[]", 400),
        ("POST", "/v1/completions", b'{"prompt": "\xff"}', 400),
        ("POST", "/inference/v1/generate", b'{"request_id": "\xff"}', 400),
        ("POST", "/v1/completions", b" " * (64 * 2**20 + 1), 413),
        ("OPTIONS", "/v1/models", None, 405),
        ("POST", "/update_weights", b"{}", 400),
        ("POST", "/pause?mode=often", b"", 400),
        ("GET", "/v1/nothing", None, 404),
    ):
        got, text = served.call(method, route, body)
        assert (got, bool(json.loads(text)["error"]["message"])) == (status, True)


def test_every_route_but_health_needs_the_key(served: Served) -> None:
    stranger = openai.OpenAI(base_url=f"{served.url}/v1", api_key="wrong", max_retries=0)
    none: Any = {"Authorization": openai.Omit()}
    for headers, says, code in (
        ({}, "the API key that was sent is wrong", "invalid_api_key"),
        (none, "no API key was sent", "missing_api_key"),
        ({"Authorization": "Basic abc"}, "no API key was sent", "missing_api_key"),
    ):
        with pytest.raises(openai.AuthenticationError, match=says) as error:
            stranger.models.list(extra_headers=headers)
        assert (error.value.status_code, error.value.code) == (401, code)
        assert error.value.response.headers["www-authenticate"] == "Bearer"
    assert served.call("HEAD", "/health", key="") == (200, "")
    for route in ("/metrics", "/stats", "/v1/models", "/is_paused", "/docs"):
        assert served.call("GET", route, key="")[0] == 401
    assert served.call("POST", "/inference/v1/generate", b"{}", key="")[0] == 401
    assert served.call("GET", "/health", key="")[0] == 200


class Hostile:
    """Unpickled, it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


def test_weights_whose_handle_is_a_pickle_are_not_taken_from_people(served: Served, tmp_path: Path) -> None:
    pickled = base64.b64encode(pickle.dumps(Hostile(tmp_path / "made"))).decode()
    handle = {"backend": "ipc", "version": 1, "location": pickled, "checksum": ""}
    status, text = served.call("POST", "/update_weights", json.dumps({"update_info": handle}).encode())
    assert status >= 400
    assert "weights by 'ipc' are not taken here" in text
    assert not (tmp_path / "made").exists()


def test_pause_keeps_requests_and_resume_goes_on(served: Served) -> None:
    expected = served.complete().choices[0].text
    assert served.call("POST", "/pause?mode=keep&clear_cache=true") == (200, '{"status":"paused"}')
    assert served.call("GET", "/is_paused")[1] == '{"is_paused":true}'
    tokens = served.metric("generated_tokens_total")
    with ThreadPoolExecutor() as threads:
        asking = threads.submit(served.complete)
        served.until("requests_waiting", lambda waiting: waiting == 1)
        assert served.metric("generated_tokens_total") == tokens
        assert served.call("POST", "/resume") == (200, '{"status":"resumed"}')
        assert asking.result().choices[0].text == expected
    assert served.call("GET", "/is_paused")[1] == '{"is_paused":false}'


def test_pause_can_abort(served: Served) -> None:
    aborted = served.metric('requests_total{finish_reason="abort"}')
    served.call("POST", "/pause")
    stream = served.chat(stream=True, n=2)
    served.call("POST", "/pause?mode=abort")
    reasons = [chunk.choices[0].finish_reason for chunk in stream]
    assert reasons == [None, None, "abort", "abort"]
    served.call("POST", "/resume")
    assert served.metric('requests_total{finish_reason="abort"}') == aborted + 2


def test_a_client_that_hangs_up_cancels(served: Served) -> None:
    aborted = served.metric('requests_total{finish_reason="abort"}')
    served.call("POST", "/pause")
    with pytest.raises(openai.APITimeoutError):
        served.complete(timeout=0.2)
    served.until("requests_waiting", lambda waiting: waiting == 0)
    stream = served.complete(n=3, stream=True)
    served.until("requests_waiting", lambda waiting: waiting == 3)
    stream.close()
    served.until("requests_waiting", lambda waiting: waiting == 0)
    assert served.metric('requests_total{finish_reason="abort"}') == aborted + 4
    served.call("POST", "/resume")
    assert served.complete().choices


def test_metrics(served: Served) -> None:
    length, tokens = 'requests_total{finish_reason="length"}', "generated_tokens_total"
    before = {name: served.metric(name) for name in (length, tokens, "idle_seconds_total")}
    served.complete(n=2, extra_body=ENDLESS)
    assert served.metric(length) == before[length] + 2
    assert served.metric(tokens) == before[tokens] + 24
    assert served.metric("idle_seconds_total") > before["idle_seconds_total"]
    served.until("requests_running", lambda running: running == 0)
    assert served.metric("cache_blocks_free") == 256
    for name in ("weights_version", "weight_updates_total", "preemptions_total", "last_weight_update_pause_seconds"):
        assert served.metric(name) == 0


def test_latencies(served: Served) -> None:
    """One observation for every answer that ended by itself, in buckets that only grow."""
    served.complete(n=3, max_tokens=4, extra_body=ENDLESS)
    text = served.call("GET", "/metrics")[1]
    ended = sum(served.metric(f'requests_total{{finish_reason="{why}"}}') for why in ("stop", "length"))
    for name in ("time_to_first_token", "request_time_per_output_token", "e2e_request_latency", "request_queue_time"):
        assert f"# TYPE freerun_{name}_seconds histogram" in text
        found = re.findall(rf'^freerun_{name}_seconds_bucket{{le="(.*)"}} (\d+)$', text, re.MULTILINE)
        bounds, counts = [float(bound) for bound, _ in found], [int(count) for _, count in found]
        assert (bounds, counts) == (sorted(bounds), sorted(counts))
        assert counts[-1] == served.metric(f"{name}_seconds_count")
        assert served.metric(f"{name}_seconds_sum") >= 0
    assert served.metric("e2e_request_latency_seconds_count") == ended
    assert served.metric("time_to_first_token_seconds_count") >= ended
    before = served.metric("prompt_tokens_total")
    served.complete(["abc", "de"], n=2)
    assert served.metric("prompt_tokens_total") == before + 5


def test_the_schema_says_what_every_route_takes(served: Served) -> None:
    schema = json.loads(served.call("GET", "/openapi.json")[1])
    parts = schema["components"]["schemas"]
    for path, name, field in (
        ("/v1/completions", "CompletionBody", "prompt"),
        ("/v1/chat/completions", "ChatBody", "messages"),
        ("/v1/responses", "ResponsesBody", "input"),
        ("/v1/messages", "MessagesBody", "messages"),
        ("/inference/v1/generate", "GenerateRequest", "token_ids"),
        ("/update_weights", "UpdateRequest", "update_info"),
    ):
        content = schema["paths"][path]["post"]["requestBody"]["content"]
        assert content["application/json"]["schema"] == {"$ref": f"#/components/schemas/{name}"}
        assert field in parts[name]["required"]
    assert [p["name"] for p in schema["paths"]["/pause"]["post"]["parameters"]] == ["mode"]
    assert [p["name"] for p in schema["paths"]["/v1/models/{name}"]["get"]["parameters"]] == ["name"]
    assert set(schema["paths"]) == {
        *("/inference/v1/generate", "/update_weights", "/pause", "/resume", "/is_paused", "/stats", "/metrics"),
        *("/health", "/model", "/v1/models", "/v1/models/{name}", "/v1/completions", "/v1/chat/completions"),
        *("/v1/responses", "/v1/responses/{id}", "/v1/messages", "/v1/messages/count_tokens"),
    }
    for reference in re.findall(r'"#/components/schemas/(\w+)"', json.dumps(schema)):
        assert reference in parts
    status, page = served.call("GET", "/docs")
    assert status == 200
    assert "/openapi.json" in page


def test_a_bad_command_is_one_line(tmp_path: Path) -> None:
    process = start(str(tmp_path / "none"))
    assert process.communicate()[1].splitlines() == [
        f"freerun: model.path: there is no folder {tmp_path / 'none'}; give one with config.json and "
        "safetensors, or ORG/NAME of the Hugging Face hub"
    ]
    assert process.returncode == 2
    for override, says in (
        ("train.lr=1", "is not engine.KEY=VALUE"),
        ("engine.cache_token=1", "did you mean engine.cache_tokens"),
        ("engine.max_running=0", "engine.max_running"),
    ):
        with pytest.raises(ConfigError, match=says):
            load_section("engine", EngineConfig, overrides=[override])


def deaf_client(served: Served) -> socket.socket:
    """It asks for more than all buffers hold, and reads none of it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", int(served.url.rsplit(":", 1)[1])))
    body = json.dumps({"prompt": "a", "n": 64, "logprobs": 20, "max_tokens": 100, "stream": True} | ENDLESS)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {len(body)}"
    ended = served.metric('requests_total{finish_reason="length"}')
    client.sendall(f"{head}\r\n\r\n{body}".encode())
    served.until('requests_total{finish_reason="length"}', lambda now: now == ended + 64)
    return client


def test_control_c_ends_it_cleanly(served: Served) -> None:
    """Last of this file: it ends the server, in the middle of an answer, and while a client does not read."""
    deaf = deaf_client(served)
    served.call("POST", "/pause")
    stream = served.complete(stream=True)
    told_s = time.monotonic()
    served.process.send_signal(signal.SIGINT)
    assert [chunk.choices[0].finish_reason for chunk in stream] == ["abort"]
    assert served.process.stderr
    assert served.process.stderr.read() == "freerun: ended\n"
    assert served.process.wait() == 0
    assert time.monotonic() - told_s < 3
    deaf.close()


def bytewise(tokens: list[int]) -> str:
    """A byte-level tokenizer: a token is a byte."""
    return bytes(tokens).decode(errors="replace")


@given(st.text(alphabet="aé€😀", max_size=12), st.data())
def test_text_never_comes_as_half_a_character(text: str, data: st.DataObject) -> None:
    answer, tokens, part = AnswerText(bytewise, (), frozenset()), list(text.encode()), ""
    while tokens:
        count = data.draw(st.integers(1, 3))
        part += answer.add(tokens[:count], None)
        tokens = tokens[count:]
        assert text.startswith(part)
    assert part + answer.add([], FinishReason.LENGTH) == text


@given(st.text(alphabet="abc", max_size=20), st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3))
def test_no_part_of_a_stop_string_comes_out(text: str, stops: list[str]) -> None:
    """The engine stops at the first token after which a stop string is there."""
    ends = [at for at in range(len(text) + 1) if any(text[:at].endswith(stop) for stop in stops)]
    sampled = text[: ends[0]] if ends else text
    finish = FinishReason.STOP if ends else FinishReason.LENGTH
    answer, tokens = AnswerText(bytewise, tuple(stops), frozenset()), list(sampled.encode())
    part = "".join(answer.add([token], None) for token in tokens[:-1]) + answer.add(tokens[-1:], finish)
    assert part == sampled[: min((sampled.find(stop) for stop in stops if stop in sampled), default=len(sampled))]


def test_the_token_that_ends_an_answer_is_left_out() -> None:
    answer = AnswerText(bytewise, (), frozenset({ord("!")}))
    assert answer.add(list(b"a!b"), None) == "a!b"
    assert answer.add(list(b"c!"), FinishReason.STOP) == "c"


async def test_a_stream_with_much_to_say_leaves_others_their_turn(tmp_path: Path) -> None:
    """Whoever hung up is noticed by somebody else."""
    asks, turns = [AnswerRequest("a", [5], Sampling(max_new_tokens=500))], 0
    asked = PendingAnswers(asks, lambda: None)
    for number in range(500):
        asked.put(AnswerPart("a", 0, [5], [0.0], [0], FinishReason.LENGTH if number == 499 else None))
    tokenizer = Tokenizer(tiny_folder(tmp_path / "tiny"))
    answers = Answers(CompletionBody(prompt="d"), asks, tokenizer, frozenset())
    reply = Reply("a", "tiny", 0, [[5]], 1, False, False, str)

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    events = [event async for event in stream_of(reply, answers, asked, StreamOptions())]
    counting.cancel()
    assert len(events) == 501
    assert turns >= 500
