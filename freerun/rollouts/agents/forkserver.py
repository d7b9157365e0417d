"""The process that agents' workers are forked from: `python -m freerun.rollouts.agents.forkserver CONTROL_FD SPEC
MEMORY_BYTES [late]`."""

import sys

import msgspec

from freerun.machine import forkserver
from freerun.rollouts.agents.function import load
from freerun.rollouts.agents.spec import AgentSpec
from freerun.rollouts.agents.worker import AgentFunction, run_sessions

MODULE = "freerun.rollouts.agents.forkserver"


def job(encoded_spec: str) -> forkserver.Job[AgentFunction]:
    spec = msgspec.json.decode(encoded_spec, type=AgentSpec)
    return forkserver.Job(MODULE, encoded_spec, lambda: load(spec), about=lambda _: "", work=run_sessions)


if __name__ == "__main__":
    sys.exit(forkserver.main(job(sys.argv[2]), int(sys.argv[1]), int(sys.argv[3]), "late" in sys.argv[4:]))
