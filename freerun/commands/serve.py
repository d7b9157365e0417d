"""`freerun serve`: a model behind HTTP, for people and their programs, in this process."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence

from freerun.config.load import load_section
from freerun.engines.config import EngineConfig
from freerun.machine.machines import names_this_machine
from freerun.models.hub import find_model
from freerun.models.shape import read_shape
from freerun.models.weight_files import check_weights
from freerun.weights.subscribe import AnySubscriber, plain


def serve_model(model: str, overrides: Sequence[str], host: str, port: int, api_key: str | None) -> None:
    """Ends the process on Ctrl-C. What is wrong with the folder or the command line is a ConfigError."""
    config = load_section("engine", EngineConfig, overrides=overrides)
    found = find_model(model)
    folder, name = found.folder, found.name if found.is_of_hub else found.folder.resolve().name
    check_weights(folder, read_shape(folder))  # before torch is imported, which is slow
    from freerun.engines.embedded.server import serve
    from freerun.engines.listening import Where

    def ready(url: str) -> None:
        if api_key is None and not names_this_machine(host):
            print(f"freerun: whoever reaches {host} can use this model; consider --api-key", file=sys.stderr)
        print(f"freerun: serving {name} at {url}/v1 (Ctrl-C ends it)", flush=True)

    async def until_told() -> None:
        with contextlib.suppress(asyncio.CancelledError):  # that is how asyncio says Ctrl-C
            await serve(folder, config, AnySubscriber(plain()), ready, where=Where(host, port), api_key=api_key)
        print("freerun: ended", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(0)  # threads may be in the middle of a step, or of reading a text, for seconds

    asyncio.run(until_told())
