"""Ctrl-C at `freerun serve` while clients stream and a step takes seconds: a real process, and a real client."""

import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai

from tests.engines.test_openai import start
from tests.tiny import tiny_folder

SLOW: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 16,
    "head_dim": 128,
    "max_position_embeddings": 8192,
}
"""Reading 2,048 tokens, which is a step, takes seconds."""


def reasons(chunks: Iterator[Any]) -> set[str | None]:
    return {chunk.choices[0].finish_reason for chunk in chunks}


def test_control_c_does_not_wait_for_a_step(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "slow", **SLOW)
    process = start(str(folder), "--port", "0")
    try:
        assert process.stdout
        assert process.stderr
        found = re.search(r"http://\S+/v1", process.stdout.readline())
        assert found, process.stderr.read()
        client = openai.OpenAI(base_url=found.group(), api_key="any", max_retries=0)
        ask: Any = {"model": "slow", "max_tokens": 2000, "stream": True, "extra_body": {"ignore_eos": True}}
        short = client.completions.create(prompt="abc", **ask)
        assert next(iter(short)).choices[0].text
        long = client.completions.create(prompt="abcd" * 1024, **ask)  # it is being read when this returns
        told_s = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert reasons(iter(short)) in ({None, "abort"}, {"abort"})
        assert reasons(iter(long)) == {"abort"}
        assert process.wait() == 0
        assert time.monotonic() - told_s < 3
        assert process.stderr.read() == "freerun: ended\n"
    finally:
        process.kill()
        process.communicate()
