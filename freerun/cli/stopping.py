"""How commands that take long are stopped."""

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import typer

T = TypeVar("T")


def run_to_end(work: Coroutine[Any, Any, T], last_words: Callable[[], str] | None = None) -> T:
    """Run it. Ctrl-C and SIGTERM cancel it, and everything it started ends with it, in seconds."""
    received: list[signal.Signals] = []

    async def cancellable() -> T:
        main, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert main is not None

        def stop(number: signal.Signals) -> None:
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
