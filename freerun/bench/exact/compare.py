"""Compares what a session gives to training with the engine's own record, token by token."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from freerun.bench.exact.policy import Answered
from freerun.core import Sample
from freerun.core.nouns import Tokens
from freerun.engines.base import Completion


@dataclass
class Compared:
    """Counts, of one session or of many."""

    tokens: int = 0
    """Trained tokens whose id, log-probability, version and whole context were compared."""
    mismatches: int = 0
    """Trained tokens that are not the engine's own in one of these."""
    twice: int = 0
    """Trained tokens that are trained elsewhere, too."""
    answers: int = 0
    """Answers of the engine's."""
    trained_answers: int = 0
    computed: int = 0
    """Tokens of all samples."""
    different: int = 0
    """The same, where what samples of a member begin with in common counts once."""
    by_request: int = 0
    """Tokens of a sample for each answer that is trained on: its context and itself."""
    wrong: list[str] = field(default_factory=list)
    """What the first mismatches were."""

    def add(self, other: "Compared") -> None:
        for name in ("tokens", "mismatches", "twice", "answers", "trained_answers"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("computed", "different", "by_request"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.wrong = (self.wrong + other.wrong)[:10]


def compare(samples: Sequence[Sample], record: Sequence[Answered]) -> Compared:
    found = Compared(answers=len(record))
    left: dict[tuple[bytes, bytes], list[Completion]] = {}
    for one in record:
        left.setdefault(_key(one.prompt, one.completion.tokens), []).append(one.completion)
    for sample in samples:
        _compare_sample(sample, left, found)
    found.computed = sum(len(sample.tokens) for sample in samples)
    found.different = _different([sample.tokens for sample in samples])
    return found


def _compare_sample(sample: Sample, left: dict[tuple[bytes, bytes], list[Completion]], found: Compared) -> None:
    versions, spoken = sample.versions.by_token(), np.zeros(len(sample.tokens), np.bool_)
    if ((versions >= 0) != sample.loss_mask).any():
        found.wrong.append("a token is said to be sampled here, and is not trained here, or the other way round")
        found.mismatches += int(((versions >= 0) != sample.loss_mask).sum())
    for turn in sample.turns:
        part = slice(turn.start, turn.end)
        if not turn.sampled or turn.end == turn.start or not sample.loss_mask[turn.start]:
            continue
        spoken[part] = True
        found.tokens += turn.end - turn.start
        key = _key(sample.tokens[: turn.start], sample.tokens[part])
        answers = left.get(key)
        if not answers:
            found.twice += (turn.end - turn.start) * (answers is not None)
            found.mismatches += (turn.end - turn.start) * (answers is None)
            found.wrong += ["no answer of the engine's has these tokens in this context"] * (answers is None)
            continue
        wrong = [_differ(answer, sample, part, versions) for answer in answers]
        best = int(np.argmin(wrong))
        answers.pop(best)
        found.mismatches += wrong[best]
        found.wrong += ["log-probabilities or versions are not the engine's"] * bool(wrong[best])
        found.trained_answers += 1
        found.by_request += turn.end
    stray = int((sample.loss_mask & ~spoken).sum())
    found.mismatches += stray
    found.wrong += ["tokens that no turn sampled are trained"] * bool(stray)


def _differ(answer: Completion, sample: Sample, part: slice, versions: Tokens) -> int:
    """How many of an answer's tokens have another log-probability, another version, or no loss."""
    wrong = sample.behavior_logprobs[part] != answer.logprobs
    wrong |= versions[part] != answer.versions.by_token()
    return int((wrong | ~sample.loss_mask[part]).sum())


def _key(prompt: Tokens, sampled: Tokens) -> tuple[bytes, bytes]:
    return prompt.astype(np.int32).tobytes(), sampled.astype(np.int32).tobytes()


def _different(sequences: Sequence[Tokens]) -> int:
    """Tokens of a tree that holds all these sequences. In the order of their bytes, each has its longest common
    beginning with the one before."""
    total, before = 0, np.zeros(0, np.int32)
    for sequence in sorted(sequences, key=lambda sequence: sequence.astype(">i4").tobytes()):
        shortest = min(len(before), len(sequence))
        apart = np.flatnonzero(before[:shortest] != sequence[:shortest])
        total += len(sequence) - (int(apart[0]) if len(apart) else shortest)
        before = sequence
    return total


def merged(counts: Sequence[dict[str, int]]) -> Counter[str]:
    total = Counter[str]()
    for one in counts:
        total.update(one)
    return total
