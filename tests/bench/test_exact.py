"""Every trained token is the engine's own: a short form of `freerun bench exact`, and that it would see if not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from freerun.bench.exact.bench import APPEND_ONLY, Bench
from freerun.bench.exact.compare import compare
from freerun.bench.exact.policy import Answered, Policy
from freerun.core import FinishReason, Sample
from freerun.core.turns import Turn
from freerun.engines.base import Completion


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
async def test_whatever_clients_do_trained_tokens_are_the_engines_own(tmp_path: Path) -> None:
    found = await Bench(Policy.made(tmp_path), tmp_path, seed=2).run(requests=160, at_once=12)
    assert found.compared.wrong == []
    assert found.is_exact
    assert found.compared.tokens > 2_500
    assert found.updates >= 3, "new weights all the while"
    assert found.spanning >= 5, "samples of several versions"
    assert 1.0 <= found.samples_a_member < 1.15, "pydantic-ai rewrites an answer with <think> in its middle: a fork"
    assert len(found.kinds.keys() & APPEND_ONLY.keys()) >= 6
    assert sum(found.forks.values()) >= 10
    errors = {error.partition(":")[0] for counted in found.kinds.values() for error in counted.errors}
    assert errors <= {"ModelBehaviorError", "UnexpectedModelBehavior"}, "frameworks that mind an answer that was cut"


def one(**changes: Any) -> Sample:
    given: dict[str, Any] = {
        "tokens": [5, 6, 7, 8],
        "loss_mask": [False, True, True, False],
        "behavior_logprobs": [0.0, -0.5, -0.25, 0.0],
        "versions": [-1, 3, 4, -1],
    }
    turn = Turn({"role": "assistant", "content": ""}, True, 1, 3)
    return Sample(**(given | changes), finish=FinishReason.STOP, turns=[turn])


def answered() -> Answered:
    return Answered(np.asarray([5], np.int32), Completion(0, [6, 7], [-0.5, -0.25], [3, 4], FinishReason.STOP))


def test_it_sees_what_is_not_the_engines_own() -> None:
    found = compare([one()], [answered()])
    assert (found.tokens, found.mismatches, found.twice, found.trained_answers) == (2, 0, 0, 1)
    for changes, wrong in (
        ({"tokens": [5, 6, 9, 8]}, 2),
        ({"tokens": [4, 6, 7, 8]}, 2),
        ({"behavior_logprobs": [0.0, -0.5, -0.3, 0.0]}, 1),
        ({"versions": [-1, 3, 3, -1]}, 1),
        ({"versions": [-1, 3, 4, 4], "loss_mask": [False, True, True, True]}, 1),
    ):
        assert compare([one(**changes)], [answered()]).mismatches == wrong, changes
    assert compare([one(), one()], [answered()]).twice == 2
    assert compare([one(), one()], [answered()]).different == 4
