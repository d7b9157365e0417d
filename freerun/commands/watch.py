"""`freerun watch`: the page over all runs of a folder, until Ctrl-C; `freerun report`: one run's page as a file."""

import asyncio
import secrets
import socket
from contextlib import suppress
from pathlib import Path

import uvicorn

from freerun.core import ConfigError
from freerun.machine.machines import names_this_machine
from freerun.observe.folder import RunFolder
from freerun.observe.report import write_report
from freerun.observe.web.runs import Runs
from freerun.observe.web.server import app_of


def watch(root: Path, host: str, port: int, token: str | None) -> None:
    """Beyond this machine a token is asked for: the one that is given, or one made up now. It is in the address that is
    printed."""
    runs = Runs(root)
    if token is None and not names_this_machine(host):
        token = secrets.token_urlsafe(24)
    with _listening(host, port) as listening:
        shown, used = _shown(host), listening.getsockname()[1]
        entered = f"http://{shown}:{used}/" + (f"?token={token}" if token else "")
        print(f"freerun: watching {runs.root / (runs.only or '')} at {entered} (Ctrl-C ends it)", flush=True)
        if names_this_machine(host):
            print(f"         from another machine: ssh -L {used}:localhost:{used} THIS_MACHINE, then open it there")
        with suppress(KeyboardInterrupt):
            asyncio.run(_serve(runs, token, listening))


async def _serve(runs: Runs, token: str | None, listening: socket.socket) -> None:
    ending = asyncio.Event()

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            """Browsers that listen for events would keep it up."""
            ending.set()
            await super().shutdown(sockets)

    app = app_of(runs, token, ending)
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=2, lifespan="off")
    await Server(config).serve(sockets=[listening])


def report(folder: Path) -> Path:
    """Write a run's report anew, and say where it is."""
    run = RunFolder(folder)
    if not (run.config.is_file() or run.metrics.is_file()):
        raise ConfigError(f"{folder} is not a run's folder: it has no config.yaml")
    return write_report(run)


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port} ({error.strerror}): choose another --port, or 0 for a free one"
        ) from None
    return listening


def _shown(host: str) -> str:
    """A name that a browser can open: any address of the machine is its host name."""
    if host in ("0.0.0.0", "::", ""):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host
