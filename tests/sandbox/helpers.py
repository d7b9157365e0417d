"""Opening a sandbox and running programs in it."""

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from freerun.core import ConfigError
from freerun.sandbox.base import Backend, Ending, Limits
from freerun.sandbox.sandbox import Sandbox


@contextmanager
def open_sandbox(backend: Backend | None = None) -> Iterator[Sandbox]:
    """Open a sandbox, or skip the test on a machine that has none."""
    sandbox = Sandbox(backend)
    try:
        sandbox.open()
    except ConfigError as refusal:
        pytest.skip(str(refusal))
    with sandbox:
        yield sandbox


def run(sandbox: Sandbox, program: str, stdin: bytes = b"", limits: Limits | None = None) -> str:
    """Run a script that must succeed, and return what it printed."""
    result = sandbox.run_script([textwrap.dedent(program)], stdin, limits)
    assert (result.ending, result.exit_code, result.stderr) == (Ending.EXITED, 0, b"")
    return result.stdout.decode()
