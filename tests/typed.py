"""`freerun …` as a user types it, by the console script's own function in this process: a process of its own would take
seconds to import what is imported here."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from subprocess import CompletedProcess
from unittest import mock

import pytest

from freerun.cli.main import main


def freerun(*words: object) -> "CompletedProcess[str]":
    """Waits for its end."""
    argv = ["freerun", *map(str, words)]
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with (
        mock.patch.object(sys, "argv", argv),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    return CompletedProcess(argv, int(ended.value.code or 0), *map(_written, (out, err)))


def _written(stream: io.TextIOWrapper) -> str:
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode()
