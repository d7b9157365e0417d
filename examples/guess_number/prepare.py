"""Make what the recipe starts from: a tiny model, and games to warm it up with.

    python examples/guess_number/prepare.py models/guess_number

The model is made from nothing: 0.2M random weights, and a tokenizer that knows the words of the game and the numbers.
The games were played by somebody who heeds the hints most of the time, but has no plan: any number that they leave will
do. Learning from them, the model learns how to say a number and, roughly, what a hint means, but no strategy.
"""

import json
import random
import re
import sys
from pathlib import Path

from freerun.models.tiny import EOS, make_model
from freerun.rollouts.environments.textarena import Game

GAME, OPTIONS, NUMBERS = "GuessTheNumber-v0", {"max_number": 15, "max_turns": 3}, 15
GAMES, CARE = 8_192, 0.9
USER, ASSISTANT = "<user>", "<assistant>"
PIECES = r" ?[A-Za-z]+| ?\d+|[^A-Za-z\d]"
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'assistant' %}{{ '<assistant>' + message.content + '<eos>' }}"
    "{% else %}{{ '<user> ' + (message.content | replace('.', '')).split()[-1] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
"""The last word of what the game says: a model of this size does not read rules, and every hint ends with its word."""


def play(seed: int, dice: random.Random) -> list[dict[str, str]]:
    """The conversation of a careless player's game."""
    game, said, tried = Game(GAME, OPTIONS, seed), [], set()
    low, high, number = 1, NUMBERS, 0
    while not game.over:
        told = game.new_messages()
        if tried:
            low, high = (low, min(high, number - 1)) if "lower" in told else (max(low, number + 1), high)
        first, last = (low, high) if dice.random() < CARE else (1, NUMBERS)
        number = dice.choice([one for one in range(first, last + 1) if one not in tried])
        tried.add(number)
        said += [{"role": "user", "content": told}, {"role": "assistant", "content": str(number)}]
        game.move(str(number))
    return said


def every_word() -> list[str]:
    """Whatever the game may say, complaints about numbers that it does not take included."""
    texts = []
    for seed in range(8):
        for moves in (("1", str(NUMBERS), "2"), ("1", "1"), ("none",), ("99",)):
            game = Game(GAME, OPTIONS, seed)
            for move in moves:
                if not game.over:
                    texts.append(game.new_messages())
                    game.move(move)
            texts.append("" if game.over else game.new_messages())
    numbers = [f"{space}{number}" for number in range(100) for space in ("", " ")]
    return sorted({piece for text in texts for piece in re.findall(PIECES, text)} | set(numbers) | {"\n", "[", "]"})


def write_model(folder: Path, seed: int = 0) -> None:
    make_model(folder, every_word(), seed, chat_template=TEMPLATE, marks=(USER, ASSISTANT))


def write_games(file: Path, seed: int = 0) -> None:
    """A row for each turn: what was said before it, and the number."""
    dice = random.Random(seed)
    with file.open("w") as out:
        for game in range(GAMES):
            said = play(1_000_000 + game, dice)
            for turn in range(1, len(said), 2):
                out.write(json.dumps({"prompt": said[:turn], "answer": said[turn]["content"]}) + "\n")


if __name__ == "__main__":
    made = Path(sys.argv[1])
    write_model(made)
    write_games(made / "games.jsonl")
    print(f"{made} has the model and {made / 'games.jsonl'}; it ends its turns with {EOS}")
