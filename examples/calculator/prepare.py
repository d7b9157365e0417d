"""Make what the recipe starts from: a tiny model, questions, and conversations to warm it up with.

    python examples/calculator/prepare.py models/calculator

The model is made from nothing: 0.1M random weights, and a tokenizer of digits and of the few pieces of text that a call
of the calculator consists of. In the conversations somebody careless answers: five times out of six with a number made
up on the spot; else with the calculator, where every fifth expression is mistyped and every eighth result misread. A
model that has learned from them is right one time in five.
"""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from freerun.models.tiny import make_model

NUMBERS = range(32, 100)
"""Whose products have four digits."""
HELD_OUT, RL_TASKS, TO_TALK_ABOUT = 128, 1_024, 3_400
TALKS = 3
"""Conversations about each of these questions."""
GUESSES, MISTYPES, MISREADS = 0.83, 0.2, 0.125
"""How often the careless one does that."""
CALL, CALLED = '{"name": "calculate", "arguments": {"expression": "', '"}}'
MARKS = ("<user>", "<assistant>", "<tool>")
PIECES = ("<tool_call>", "</tool_call>", CALL, CALLED, "What is ", "?", *"0123456789*")
TEMPLATE = (
    "{% for message in messages if message.role != 'system' %}<{{ message.role }}>{{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    '<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>'
    "{% endfor %}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
"""In the manner of many models, save that instructions and tools are not shown: this one has learned the only tool."""
Question = tuple[int, int]
Row = dict[str, Any]


def prepare(folder: Path, seed: int = 0) -> None:
    """The model, and three files whose questions are all different."""
    make_model(folder / "model", PIECES, seed, chat_template=TEMPLATE, marks=MARKS)
    dice = random.Random(seed)
    questions = [(left, right) for left in NUMBERS for right in NUMBERS]
    dice.shuffle(questions)
    for name, count, rows in (
        ("held_out", HELD_OUT, task_rows),
        ("train", RL_TASKS, task_rows),
        ("conversations", TO_TALK_ABOUT, careless_rows),
    ):
        taken, questions = questions[:count], questions[count:]
        written = (json.dumps(row) + "\n" for question in taken for row in rows(question, dice))
        (folder / f"{name}.jsonl").write_text("".join(written))


def task_rows(question: Question, _: random.Random) -> Iterator[Row]:
    left, right = question
    yield {"prompt": f"What is {left}*{right}?", "answer": str(left * right)}


def careless_rows(question: Question, dice: random.Random) -> Iterator[Row]:
    for _ in range(TALKS):
        yield from careless_talk(question, dice)


def careless_talk(question: Question, dice: random.Random) -> Iterator[Row]:
    """A row for each turn: what was said before it, and what the careless one says."""
    left, right = question
    asked = {"role": "user", "content": f"What is {left}*{right}?"}
    if dice.random() < GUESSES:
        yield {"prompt": [asked], "answer": str(dice.randrange(1_000, 10_000))}
        return
    typed = f"{left}*{right}"
    if dice.random() < MISTYPES:
        typed = with_a_wrong_digit(typed, dice)
    yield {"prompt": [asked], "answer": f"<tool_call>{CALL}{typed}{CALLED}</tool_call>"}
    call = {"type": "function", "function": {"name": "calculate", "arguments": {"expression": typed}}}
    result = str(int(typed[:2]) * int(typed[3:]))
    said = [asked, {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": result}]
    yield {"prompt": said, "answer": with_a_wrong_digit(result, dice) if dice.random() < MISREADS else result}


def with_a_wrong_digit(text: str, dice: random.Random) -> str:
    at = dice.choice([place for place, letter in enumerate(text) if letter.isdigit()])
    return text[:at] + dice.choice([digit for digit in "123456789" if digit != text[at]]) + text[at + 1 :]


if __name__ == "__main__":
    prepare(Path(sys.argv[1]))
    print(f"{sys.argv[1]} has the model, questions, and conversations to warm it up with")
