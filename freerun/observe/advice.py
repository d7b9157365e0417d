"""Advice for a run whose batches look wrong: each piece once, with the likely cause and what to do about it.

Consumes the batches that are learned from, produces notes. The trainer watches its own figures: see `Health`.
"""

from collections.abc import Iterator

from freerun.core import Batch

CONSTANT_STEPS = 20
"""So many steps of equal rewards are no accident."""
CUT_STEPS, CUT_SHARE = 5, 0.95


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
                "learned from them: read some in samples.jsonl, and try the reward on them with `freerun judge`; if it "
                "is right, the tasks are too hard for this model, or too easy"
            )
        share = sum(sample.truncated for sample in batch.samples) / max(len(batch.samples), 1)
        self._cut = self._cut + 1 if share >= CUT_SHARE else 0
        if self._cut == CUT_STEPS:
            yield (
                f"nearly all answers of the last {CUT_STEPS} steps were cut off at rollout.max_new_tokens: unless that "
                "is meant, raise it, or ask for shorter answers in the prompt; a model that never ends an answer may "
                "have a wrong eos_token_id in its config.json or generation_config.json"
            )
