"""Environments of Gymnasium whose actions have numbers, `gymnasium:FrozenLake-v1`. The only file that imports it.

The policy sees the environment as text and answers with the number of an action, the last whole number of its answer.
Each step's reward belongs to the answer that earned it (a turn reward); the member's reward is their sum. An answer
without a legal action is told so, and uses up a turn. Options of ours, the others being the environment's own
(`is_slippery: false`, `max_episode_steps: 20`):
    render: ansi      what is shown: the environment's own drawing, or `numbers`, its observation; without this option,
                      the drawing where there is one
    illegal: 0        the reward of an answer without a legal action
    instructions: ""  what the policy is told first, instead of what the actions mean
"""

import contextlib
import inspect
import re
from typing import Any

from freerun.core import ConfigError, Task
from freerun.core.text import did_you_mean
from freerun.core.traces import describe
from freerun.rollouts.environments.base import Session, chosen, opening, refuse_unknown, seed_of, text_of

with contextlib.suppress(ImportError):  # here, so that processes are forked with it; `check` says what is missing
    import gymnasium  # noqa: F401

OURS = ("render", "illegal", "instructions")
OF_EVERY_ONE = ("max_episode_steps", "disable_env_checker")
DRAWN, NUMBERS = "ansi", "numbers"


async def run(task: Task, session: Session, name: str, options: dict[str, Any], max_turns: int) -> None:
    env = _make(name, options)
    try:
        observation, _ = env.reset(seed=seed_of(task))
        seen = f"{options.get('instructions') or _instructions(name, env)}\n\n{_shown(env, observation)}"
        conversation, over = opening(task), False
        for _ in range(max_turns):
            conversation.append({"role": "user", "content": seen})
            conversation.append(await session.chat(conversation))
            action = _action(env, text_of(conversation[-1]))
            if action is None:
                session.reward(float(options.get("illegal", 0.0)))
                seen = f"That is no action. {_range(env)}"
                continue
            observation, reward, ended, cut, _ = env.step(action)
            session.reward(float(reward))
            seen, over = _shown(env, observation), ended or cut
            if over:
                return
    finally:
        env.close()


def check(name: str, options: dict[str, Any], max_turns: int) -> None:
    gymnasium, called = _library(), f"gymnasium:{name}"
    if name not in gymnasium.registry:
        raise ConfigError(f'gymnasium has no environment "{name}"{did_you_mean(name, gymnasium.registry)}')
    chosen(called, options, "render", (DRAWN, NUMBERS))
    own = {option for option in options if option not in OURS}
    try:
        env = _make(name, options)
        env.reset(seed=0)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(f"{called} does not start: {error}") from None
    except (Exception, SystemExit) as error:
        refuse_unknown(called, own, [*OURS, *OF_EVERY_ONE, *_parameters(name)])
        raise ConfigError(f"{called} does not start: {describe(error)}") from error
    if not isinstance(env.action_space, gymnasium.spaces.Discrete):
        kind = type(env.action_space).__name__
        raise ConfigError(f"the actions of {called} are a {kind}, and only numbered ones (Discrete) can be said")
    if options.get("render") == DRAWN and env.render_mode != DRAWN:
        raise ConfigError(f"{called} draws no text: set render: {NUMBERS}")
    env.close()


def _make(name: str, options: dict[str, Any]) -> Any:
    gymnasium = _library()
    own = {option: value for option, value in options.items() if option not in OURS}
    drawn = options.get("render", DRAWN) == DRAWN and DRAWN in _class(name).metadata.get("render_modes", [])
    return gymnasium.make(name, **({"disable_env_checker": True, "render_mode": DRAWN if drawn else None} | own))


def _class(name: str) -> Any:
    gymnasium = _library()
    point = gymnasium.spec(name).entry_point
    return gymnasium.envs.registration.load_env_creator(point) if isinstance(point, str) else point


def _parameters(name: str) -> list[str]:
    return [one for one in inspect.signature(_class(name)).parameters if one != "kwargs"]


def _instructions(name: str, env: Any) -> str:
    """The environment's name, what it says of its actions, and how to answer."""
    listed = re.findall(r"^ *- (\d+:.*)$", _section("Action Space", inspect.getdoc(env.unwrapped) or ""), re.MULTILINE)
    return "\n".join([f"You act in {name.rpartition('-')[0] or name}. {_range(env)}", *listed])


def _section(title: str, text: str) -> str:
    found = re.search(rf"^ *#+ {title} *\n(.*?)(?=^ *#|\Z)", text, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def _range(env: Any) -> str:
    first, last = _bounds(env)
    return f"Answer with one action: a whole number from {first} to {last}."


def _bounds(env: Any) -> tuple[int, int]:
    first = int(env.action_space.start)
    return first, first + int(env.action_space.n) - 1


def _action(env: Any, text: str) -> int | None:
    numbers = re.findall(r"-?\d+", text)
    first, last = _bounds(env)
    return int(numbers[-1]) if numbers and len(numbers[-1]) < 10 and first <= int(numbers[-1]) <= last else None


def _shown(env: Any, observation: Any) -> str:
    if env.render_mode != DRAWN:
        return str(_plain(observation))
    return re.sub(r"\x1b\[[0-9;]*m", "|", str(env.render())).strip("\n")


def _plain(value: Any) -> Any:
    """Numbers as Python has them: NumPy's own would be shown with their types."""
    if isinstance(value, tuple | list):
        return type(value)(_plain(one) for one in value)
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    value = value.tolist() if hasattr(value, "tolist") else value
    return round(value, 4) if isinstance(value, float) else _plain(value) if isinstance(value, list) else value


def _library() -> Any:
    try:
        import gymnasium
    except ImportError:
        raise ConfigError("gymnasium is not installed: pip install 'freerun[gymnasium]'") from None
    return gymnasium
