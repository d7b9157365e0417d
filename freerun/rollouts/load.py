"""From the configuration to a rollout: single-turn, or a user's own by its name."""

import inspect
from collections.abc import Callable
from typing import Any

from freerun.core import ConfigError
from freerun.core.options import with_options
from freerun.core.traces import describe
from freerun.engines.base import Sampling
from freerun.rollouts.base import GroupRollout, Rollout
from freerun.rollouts.config import ROLLOUTS, SINGLE_TURN, RolloutConfig
from freerun.rollouts.own import OwnRollout
from freerun.rollouts.single_turn import Decoder, SingleTurn
from freerun.rollouts.template import ChatTokenizer


def load_own(config: RolloutConfig) -> Rollout | None:
    """The user's own, imported in this process; None for single-turn and for agents. A mistake in it is one line."""
    if config.is_agent:
        return None
    if config.name == SINGLE_TURN:
        if config.options:
            raise ConfigError("rollout.kind: single_turn has no options; they are for a rollout of your own")
        return None
    called = f"the rollout {config.name}"
    found = ROLLOUTS.find(config.name)
    found.definition()
    target = found.load()
    try:
        rollout = with_options(target, config.options, called)
    except ConfigError:
        raise
    except Exception as error:  # the user's constructor
        raise ConfigError(f"{called} cannot be made: {describe(error)}") from error
    return checked(rollout, called)


def checked(rollout: Any, called: str) -> Rollout:
    """Refuse what is no rollout."""
    is_async = inspect.iscoroutinefunction(inspect.unwrap(getattr(rollout, "func", rollout)))
    if not is_async and not inspect.iscoroutinefunction(getattr(rollout, "__call__", None)):  # noqa: B004
        raise ConfigError(
            f"{called} is no rollout: it must be `async def rollout(task, client)`, or a class with such a __call__"
        )
    own: Rollout = rollout
    return own


def make_rollout(
    own: Rollout | None,
    tokenizer: ChatTokenizer,
    decoder: Decoder,
    sampling: Sampling,
    group_size: int,
    note: Callable[[str], None] = lambda text: None,
) -> GroupRollout:
    """`decoder` does what the tokenizer's `decode` does, and may be faster."""
    if own is None:
        return SingleTurn(decoder, sampling, group_size)
    return OwnRollout(own, tokenizer, sampling, group_size, note)
