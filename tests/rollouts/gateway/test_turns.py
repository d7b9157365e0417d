"""What a session's turns come to: which experts the tokens of each branch went through."""

import numpy as np

from freerun.core import FinishReason
from freerun.engines.base import Completion
from freerun.engines.dialects.base import Said
from freerun.rollouts.gateway.turns import SampledTurn, samples_of


def turn(number: int, parent: SampledTurn | None, given: list[int], sampled: list[int]) -> SampledTurn:
    """Its engine read the whole context, and says for every token but the last which turn's pass that was: `number` in
    the tens, the token's place in the ones."""
    before = 0 if parent is None else len(parent.tokens)
    context = before + len(given) + len(sampled) - 1
    routes = np.array([[10 * number + place] for place in range(context)], np.uint8)
    logprobs, versions = [-1.0] * len(sampled), [0] * len(sampled)
    completion = Completion(0, sampled, logprobs, versions, FinishReason.STOP, routes=routes)
    made = SampledTurn(number, parent, np.array(given, np.int32), completion, Said(), [], 0)
    if parent is not None:
        parent.children.append(made)
    return made


def test_a_branch_has_each_turns_own_choice_from_the_token_before_it_on() -> None:
    first = turn(1, None, [5, 6], [7, 8])
    turns = [first, turn(2, first, [9], [3, 4]), turn(3, first, [2], [1])]
    one, other = samples_of(turns, None)
    assert one.routes is not None
    assert other.routes is not None
    assert one.tokens.tolist() == [5, 6, 7, 8, 9, 3, 4]
    assert one.routes[:, 0].tolist() == [10, 11, 12, 23, 24, 25, 255], "8 was read by the second turn's pass"
    assert other.routes[:, 0].tolist() == [10, 11, 12, 33, 34, 255]
    first.completion.routes = None
    (one, _) = samples_of(turns, None)
    assert one.routes is not None
    assert one.routes[:, 0].tolist() == [20, 21, 22, 23, 24, 25, 255], "what one turn does not tell the next does"
