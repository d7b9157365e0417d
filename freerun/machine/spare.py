"""A process that has imported what a child of ours needs, and waits to be told which one it is: what is started again
need not import torch first. `processes.py` is its parent's side.

It has done nothing but import: no thread, no GPU. It is told by one line on its lifeline, and ends with that before.
"""

import os
from dataclasses import dataclass

import msgspec

SPARE = "spare"
"""The only argument of such a process."""


@dataclass(slots=True, frozen=True)
class Role:
    arguments: list[str]
    environment: dict[str, str]
    """What it has besides. The number of threads is read when torch is imported, and cannot change any more."""
    log: str

    def line(self) -> bytes:
        return msgspec.json.encode(self) + b"\n"


def await_role() -> list[str]:
    """The arguments that it would have been started with."""
    line = b""
    while not line.endswith(b"\n"):
        if not (read := os.read(0, 1)):  # not a byte more: the rest is the lifeline's
            os._exit(0)
        line += read
    role = msgspec.json.decode(line, type=Role)
    os.environ.update(role.environment)
    log = os.open(role.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    return role.arguments
