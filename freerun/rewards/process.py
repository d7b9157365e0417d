"""The workers that judge, as the service sees them."""

import msgspec

from freerun.core import RewardError
from freerun.machine.forked import Died, ForeignReply, ForkedWorker, Program
from freerun.machine.host import memory_bytes
from freerun.rewards.base import JudgeReason, Verdict
from freerun.rewards.forkserver import MODULE
from freerun.rewards.protocol import SEES_SAMPLES
from freerun.rewards.spec import JudgeSpec

LEAST_MEMORY = 1 << 30


def program(parts: list[JudgeSpec], workers: int) -> Program:
    """`workers` share the machine's memory."""
    return Program(
        name="judge",
        module=MODULE,
        what=msgspec.json.encode(parts).decode(),
        called=f"the judge {' + '.join(part.name for part in parts)}",
        parts="the judges",
        refusal=RewardError,
        memory_bytes=memory_each(workers),
    )


class JudgeWorker(ForkedWorker):
    @property
    def sees_samples(self) -> bool:
        """Whether one of its judges asks for the whole sample."""
        return self.about == SEES_SAMPLES

    async def judge(self, request: bytes, timeout_s: float) -> Verdict | None:
        """None if that was not to be had from this worker, through no fault of the request's: somebody else answered, a
        process that the judge forked before, or it ended with its forkserver. It is of no use any more."""
        try:
            return await self.ask(request, Verdict, timeout_s)
        except ForeignReply:
            return None
        except TimeoutError:
            return Verdict(None, JudgeReason.TIMEOUT, f"no verdict after {timeout_s:g} s: killed")
        except Died as died:
            if died.with_forkserver:
                return None
            return Verdict(None, JudgeReason.CRASH, f"the reward worker {died.how}\n{died.last_words}".strip())


def memory_each(workers: int) -> int:
    """Bytes that a worker may have beside what is loaded: together no more than half of the machine's, unless that is
    too little to work with."""
    return max(memory_bytes() // 2 // workers, LEAST_MEMORY)
