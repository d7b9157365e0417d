"""How commands that take long are stopped."""

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import typer

T = TypeVar("T")

_QUIET_S = 1.0
"""How long a run may take to end before it is said what it still does."""


def run_to_end(work: Coroutine[Any, Any, T], last_words: Callable[[], str] | None = None, *, saves: bool = False) -> T:
    """Run it. Ctrl-C and SIGTERM cancel it, and everything it started ends with it, in seconds. One that `saves` first
    finishes and saves the step that it is in, unless it is cancelled again."""
    received: list[signal.Signals] = []

    async def cancellable() -> T:
        main, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert main is not None

        def stop(number: signal.Signals) -> None:
            if saves and not received:
                loop.call_later(_QUIET_S, _say_what_it_does)
            received.append(number)
            main.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop, number)
        return await work

    try:
        return asyncio.run(cancellable())
    except asyncio.CancelledError:
        if not received:
            raise
        said = last_words() if last_words else "stopped; what was done so far is in the run's folder"
        print(said, file=sys.stderr)
        raise typer.Exit(128 + received[0]) from None


def _say_what_it_does() -> None:
    print("finishing and saving the step that it is in; Ctrl-C again to end without", file=sys.stderr, flush=True)
