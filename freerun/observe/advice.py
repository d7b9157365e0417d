"""Advice for a run whose batches look wrong: each piece once, with the likely cause and what to do about it.

Consumes the batches that are learned from and how agents' sessions go, produces notes. The trainer watches its own
figures: see `Health`.
"""

from collections.abc import Iterator

from freerun.core import Batch
from freerun.core.records import AgentRecord
from freerun.observe.figures import reasons, share

CONSTANT_STEPS = 20
"""So many steps of equal rewards are no accident."""
CUT_STEPS, CUT_SHARE = 5, 0.95
ENOUGH = 20
"""So many sessions, or requests, say something about the rest."""
FAILED_SHARE, FORK_SHARE = 0.2, 0.5

FAILURES = {
    "error": "the agent raises; the notes name the line",
    "deadline": "they are not done in rollout.deadline_s: raise it, or lower rollout.max_sessions",
    "crash": "the agent's process dies, most often for lack of memory: lower rollout.max_sessions",
    "bad_result": "the agent returns what is no finite number: return a reward, or None for the judge to decide",
    "no_call": "the agent never asks the policy: give its client session.base_url and session.api_key",
}
"""What to do about each `SessionFailure`."""
FORKS = {
    "edited": "the agent changes what was said earlier, such as a date or a counter in the system prompt: add to the "
    "conversation instead",
    "compacted": "the agent leaves out or sums up what was said earlier: have it do so less often",
    "tools_changed": "tools or options of the template change between requests: offer the same ones in the same order",
    "template_refused": "the model's chat template writes earlier turns in another way than they were sampled: set "
    "rollout.history: sampled, or use another template",
    "foreign_assistant": "the agent, or its SDK, writes the policy's messages anew: pass them on as they came",
    "same_prompt": "the agent asks the same several times, as a vote does",
    "new_conversation": "the agent begins other conversations, as sub-agents do",
}
"""What makes each `ForkReason` frequent."""


class Advice:
    def __init__(self) -> None:
        self._constant = self._cut = 0
        self._reward: float | None = None

    def notes(self, batch: Batch) -> Iterator[str]:
        """What this batch gives reason to say. Counting goes on, so that each note comes once. Examples of supervised
        training have no rewards, and give reason for nothing."""
        rewards = {sample.reward for sample in batch.samples}
        if rewards <= {None}:
            return
        same = len(rewards) == 1 and self._reward in {None, *rewards}
        self._constant = self._constant + 1 if same else int(len(rewards) == 1)
        self._reward = next(iter(rewards)) if len(rewards) == 1 else None
        if self._constant == CONSTANT_STEPS:
            yield (
                f"every answer of the last {CONSTANT_STEPS} steps got the reward {self._reward:g}, so nothing can be "
                "learned from them: read some with `freerun samples`, and try the reward on them with `freerun judge`; "
                "if it is right, the tasks are too hard for this model, or too easy"
            )
        members = [member for group in batch.groups for member in group.members]
        cut = sum(any(branch.truncated for branch in member) for member in members) / max(len(members), 1)
        self._cut = self._cut + 1 if cut >= CUT_SHARE else 0
        if self._cut == CUT_STEPS:
            yield (
                f"nearly all answers of the last {CUT_STEPS} steps were cut off at rollout.max_new_tokens: unless that "
                "is meant, raise it, or ask for shorter answers in the prompt; a model that never ends an answer may "
                "have a wrong eos_token_id in its config.json or generation_config.json"
            )


class AgentAdvice:
    def __init__(self) -> None:
        self._said_failed = self._said_forked = False

    def notes(self, agents: AgentRecord) -> Iterator[str]:
        """What the sessions so far give reason to say, each once."""
        sessions = sum(agents.sessions.values())
        if not self._said_failed and sessions >= ENOUGH and agents.failed_share > FAILED_SHARE:
            self._said_failed = True
            yield (
                f"{share(agents.failed_share)} of the agents' sessions fail "
                f"({reasons(agents.failures)} of {sessions}): {_of_most(agents.failures, FAILURES)}"
            )
        if not self._said_forked and agents.requests >= ENOUGH and agents.fork_share > FORK_SHARE:
            self._said_forked = True
            yield (
                f"{share(agents.fork_share)} of the agents' requests do not go on from where the conversation was "
                f"({reasons(agents.forks)} of {agents.requests}), and each makes a sample more to compute: "
                f"{_of_most(agents.forks, FORKS)}"
            )


def _of_most(counts: dict[str, int], causes: dict[str, str]) -> str:
    """The cause of the most frequent one."""
    most = max(counts, key=lambda reason: counts[reason])
    return causes.get(most, f"see {most} in docs/agents.md")
