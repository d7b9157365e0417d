"""Tasks of reasoning-gym in several attempts, `reasoning-gym:chain_sum`: the policy answers, the dataset's scorer says
whether it is right, and it may try again. The tasks come from `data.source: reasoning-gym:NAME`.

The reward is the last answer's score. Options:
    attempts: 3    answers at most
    discount: 1    by which the reward is multiplied for each attempt after the first
"""

import contextlib
from typing import Any

from freerun.core import ConfigError, Task
from freerun.core.text import did_you_mean
from freerun.rewards.gym import reasoning_gym as score_of
from freerun.rollouts.environments.base import Session, opening, refuse_unknown, text_of

with contextlib.suppress(ImportError):  # here, so that processes are forked with it; `check` says what is missing
    import reasoning_gym  # noqa: F401

RIGHT = 1.0
AGAIN = "That is not right. Try again."


async def run(task: Task, session: Session, name: str, options: dict[str, Any], max_turns: int) -> float:
    if task.extra.get("reasoning_gym") != name:
        raise ConfigError(f"the environment reasoning-gym:{name} needs tasks of data.source: reasoning-gym:{name}")
    conversation, reward = opening(task), 0.0
    for attempt in range(min(options.get("attempts", 3), max_turns)):
        conversation.append(await session.chat(conversation))
        score = score_of(task, text_of(conversation[-1]))
        reward = score * options.get("discount", 1.0) ** attempt
        if score >= RIGHT:
            break
        conversation.append({"role": "user", "content": AGAIN})
    return reward


def check(name: str, options: dict[str, Any], max_turns: int) -> None:
    try:
        from reasoning_gym.factory import DATASETS
    except ImportError:
        raise ConfigError("reasoning-gym is not installed: pip install 'freerun[reasoning-gym]'") from None
    if name not in DATASETS:
        raise ConfigError(f'reasoning-gym has no dataset "{name}"{did_you_mean(name, DATASETS)}')
    called = f"the environment reasoning-gym:{name}"
    refuse_unknown(called, options, ["attempts", "discount"])
    attempts, discount = options.get("attempts", 3), options.get("discount", 1.0)
    if not isinstance(attempts, int) or attempts < 1:
        raise ConfigError(f"{called}: attempts {attempts} must be 1 or more")
    if not isinstance(discount, int | float) or not 0 <= discount <= 1:
        raise ConfigError(f"{called}: discount {discount} must be between 0 and 1")
