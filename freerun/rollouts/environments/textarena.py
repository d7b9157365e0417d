"""Games of TextArena, `textarena:GuessTheNumber-v0`: one seat is the policy's. The only file that imports textarena.

What the game says since the policy's last move is a message of the user's, what the policy says is its move: a
conversation that only grows. The wrappers by which TextArena repeats the whole history in every observation are left
out; those that shape actions, such as the one that adds brackets where there are none, are kept.

The reward is the game's, as it is: 1 for a game that is won, -1 for one that is lost to another player, and whatever a
game gives for half a solution. Options of ours, the others being the game's own (`max_number: 16`):
    score: won        1 for a reward of 1 or more, else 0, instead of the game's reward
    unfinished: 0     the reward of a game that is not over after `rollout.max_turns` answers
    opponent: random  who has the other seat of a game for two: `random` takes any of the moves that the game lists;
                      `policy-fixed` is the model of that name, which is not trained
    seat: 0           the policy's
"""

import contextlib
import inspect
import random
import re
from typing import Any

from freerun.core import ConfigError, Task
from freerun.core.task import Message
from freerun.core.text import did_you_mean
from freerun.core.traces import describe
from freerun.rollouts.environments.base import Session, chosen, opening, refuse_unknown, seed_of, text_of

with contextlib.suppress(ImportError):  # here, so that processes are forked with it; `check` says what is missing
    import textarena  # noqa: F401

OURS = ("score", "unfinished", "opponent", "seat")
SCORES, OPPONENTS = ("game", "won"), ("random", "policy-fixed")
MOVE = re.compile(r"\[(?!Player|GAME)[^\[\]\n]{1,24}\]")


async def run(task: Task, session: Session, name: str, options: dict[str, Any], max_turns: int) -> float:
    game = Game(name, options, seed_of(task))
    seat = int(options.get("seat", 0)) if game.players == 2 else 0
    opponent = Opponent(session, options.get("opponent", OPPONENTS[0]), seed_of(task))
    conversation, turns = opening(task), 0
    while not game.over:
        if game.to_move != seat:
            game.move(await opponent.move(game.new_messages()))
            continue
        if turns == max_turns:
            return float(options.get("unfinished", 0.0))
        conversation.append({"role": "user", "content": game.new_messages()})
        conversation.append(await session.chat(conversation))
        turns += 1
        game.move(text_of(conversation[-1]))
    reward = game.rewards[seat]
    return reward if options.get("score", SCORES[0]) == SCORES[0] else float(reward >= 1)


def check(name: str, options: dict[str, Any], max_turns: int) -> None:
    """Make the game and start it once: some need data that has to be downloaded."""
    textarena, called = _library(), f"textarena:{name}"
    games = textarena.envs.registration.ENV_REGISTRY
    if name not in games:
        raise ConfigError(f'textarena has no game "{name}"{did_you_mean(name, games)}')
    chosen(called, options, "score", SCORES)
    chosen(called, options, "opponent", OPPONENTS)
    if options.get("seat", 0) not in (0, 1):
        raise ConfigError(f"{called}: seat {options['seat']} must be 0 or 1")
    unused = random.getstate()  # textarena seeds the random numbers of the whole process
    try:
        game = Game(name, options, seed=0)
    except TypeError as error:
        unexpected = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if not unexpected:
            raise ConfigError(f"{called} does not start: {describe(error)}") from error
        refuse_unknown(called, [unexpected[1]], [*OURS, *_parameters(name)])
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{called} does not start: {_why(error)}") from error
    else:
        _check_opponent(called, game, options)
    finally:
        random.setstate(unused)


def _check_opponent(called: str, game: "Game", options: dict[str, Any]) -> None:
    if game.players == 1 and (unused := [option for option in ("opponent", "seat") if option in options]):
        raise ConfigError(f"{called} is for one player: remove its option {unused[0]}")
    if game.players == 2 and options.get("opponent", OPPONENTS[0]) == "random" and not MOVE.search(game.new_messages()):
        raise ConfigError(
            f"{called} does not list its moves, so nobody can take a random one: set opponent: policy-fixed"
        )


class Game:
    """One game that has begun."""

    def __init__(self, name: str, options: dict[str, Any], seed: int) -> None:
        textarena = _library()
        own = {option: value for option, value in options.items() if option not in OURS}
        self._env: Any = textarena.make(name, **own)
        self._bare: Any = _unwrapped(self._env)
        self._own_moves = textarena.ObservationType.PLAYER_ACTION
        self.players = self._reset(name, seed)
        self.over = False

    @property
    def to_move(self) -> int:
        return int(self._bare.state.current_player_id)

    @property
    def rewards(self) -> dict[int, float]:
        rewards, _ = self._env.close()
        return {player: float(reward) for player, reward in rewards.items()}

    def new_messages(self) -> str:
        """What the player whose turn it is has not seen yet, its own moves aside."""
        player, observation = self._bare.get_observation()
        return "\n".join(
            message if sender not in range(self.players) else f"[Player {sender}] {message}"
            for sender, message, kind in observation
            if not (sender == player and kind == self._own_moves)
        ).strip()

    def move(self, action: str) -> None:
        self.over, _ = self._env.step(action=action)

    def _reset(self, name: str, seed: int) -> int:
        """Start it for one player, else for two; the number of players. Games refuse other numbers in two ways."""
        refused: Exception | None = None
        for players in (1, 2):
            try:
                self._env.reset(num_players=players, seed=seed)
            except (AssertionError, ValueError) as error:
                refused = error
            else:
                return players
        if isinstance(refused, ValueError):
            raise refused
        raise ConfigError(f"textarena:{name} is for more than two players: choose a game for one or two")


class Opponent:
    """Who has the other seat."""

    def __init__(self, session: Session, kind: str, seed: int) -> None:
        self._session = session
        self._model = None if kind == "random" else kind
        self._dice = random.Random(f"opponent {seed}")
        self._conversation: list[Message] = []
        self._moves: list[str] = []

    async def move(self, said: str) -> str:
        if self._model is None:
            return self._at_random(said)
        self._conversation.append({"role": "user", "content": said})
        self._conversation.append(await self._session.chat(self._conversation, model=self._model))
        return text_of(self._conversation[-1])

    def _at_random(self, said: str) -> str:
        """Any of the moves listed last. A game that says nothing new has refused the last one."""
        self._moves = MOVE.findall(said.splitlines()[-1] if said else "") or MOVE.findall(said) or self._moves
        if not self._moves:
            raise ConfigError("the game lists no moves, so nobody can take a random one: set opponent: policy-fixed")
        return self._dice.choice(self._moves)


def _why(error: BaseException) -> str:
    """Games of words read lists of them by nltk, which looks for them on the machine and says so at length."""
    lacking = re.search(r"nltk\.download\('([\w.]+)'\)", str(error))
    return f"it needs data, python -m nltk.downloader {lacking[1]}" if lacking else describe(error)


def _parameters(name: str) -> list[str]:
    """The options that the game itself has."""
    return list(inspect.signature(type(_unwrapped(_library().make(name)))).parameters)


def _unwrapped(env: Any) -> Any:
    while isinstance(env, _library().Wrapper):
        env = env.env
    return env


def _library() -> Any:
    try:
        import textarena
    except ImportError:
        raise ConfigError("textarena is not installed: pip install 'freerun[textarena]'") from None
    return textarena
