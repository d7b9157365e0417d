"""The process that judges' workers are forked from: `python -m freerun.rewards.forkserver CONTROL_FD PARTS
MEMORY_BYTES [late]`."""

import sys

import msgspec

from freerun.machine import forkserver
from freerun.rewards.protocol import SEES_SAMPLES
from freerun.rewards.spec import JudgeSpec
from freerun.rewards.worker import Judges, judge_until_end, load, sees_samples

MODULE = "freerun.rewards.forkserver"


def job(encoded_parts: str) -> forkserver.Job[Judges]:
    parts = msgspec.json.decode(encoded_parts, type=list[JudgeSpec])
    return forkserver.Job(
        MODULE,
        encoded_parts,
        lambda: load(parts),
        about=lambda judges: SEES_SAMPLES if sees_samples(judges) else "",
        work=lambda judges, requests, replies: judge_until_end(requests, replies, judges),
    )


if __name__ == "__main__":
    sys.exit(forkserver.main(job(sys.argv[2]), int(sys.argv[1]), int(sys.argv[3]), "late" in sys.argv[4:]))
