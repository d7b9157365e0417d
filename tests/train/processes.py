"""Real processes that train together, for tests. They are forked from one that has torch already, which saves each of
them seconds."""

import multiprocessing
import socket
from collections.abc import Callable
from typing import Any

_PRELOADED = ["torch", "torch.distributed.fsdp", "tests.train.test_ranks"]


def together(work: Callable[..., None], size: int, *args: Any) -> None:
    """`work(rank, *args)` on so many ranks at the same time; all of them have to succeed."""
    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload(_PRELOADED)
    processes = [forking.Process(target=work, args=(rank, *args), daemon=True) for rank in range(size)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * size


def meeting_point() -> str:
    """A URL at which ranks on this machine can meet: a port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"tcp://127.0.0.1:{listening.getsockname()[1]}"
