"""How a command of the documentation is tried: in this process, as one that is stopped again, or by parsing it."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

import typer
from typer.core import TyperCommand, TyperGroup

from freerun.cli.main import app
from freerun.config.load import load_config
from tests.typed import freerun


def run(command: str) -> str:
    """Type it, see it succeed, and give what it printed."""
    done = freerun(*shlex.split(command)[1:])
    said = done.stdout + done.stderr
    assert done.returncode == 0, f"{command}\n{said}"
    return said


def parse(command: str) -> None:
    """Its arguments are ones that the command takes, and its changes to a configuration are ones that can be loaded."""
    found: TyperCommand | TyperGroup = typer.main.get_command(app)  # type: ignore[assignment]
    words = shlex.split(command)[1:]
    while isinstance(found, TyperGroup):
        found = found.commands[words.pop(0)]  # type: ignore[assignment]
    given = found.make_context(command, words).params
    if given.get("file") and "overrides" in given:
        load_config(Path(given["file"]), given["overrides"] or [])


@contextmanager
def started(command: str) -> Iterator[Callable[[str], re.Match[str]]]:
    """Start it, and end it as Ctrl-C does. What is given waits until it has printed something that matches. Nobody
    waits longer than a minute."""
    words = [sys.executable, "-m", "freerun.cli.main", *shlex.split(command)[1:]]
    unbuffered = os.environ | {"PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=unbuffered)
    output = process.stdout
    assert output is not None
    seen = ""

    def printed(pattern: str) -> re.Match[str]:
        nonlocal seen
        while not (found := re.search(pattern, seen)):
            line = output.readline()
            assert line, f"{command} ended with {process.wait()}: {seen}"
            seen += line
        return found

    killing = Timer(60, process.kill)
    killing.start()
    try:
        yield printed
        process.send_signal(signal.SIGINT)
        assert process.wait(30) in (0, 130), f"{command}: {seen}{output.read()}"
    finally:
        killing.cancel()
        process.kill()
        process.wait()
        output.close()
