"""More problems to train on, made out of GSM8K's own: the same stories with other numbers.

    python examples/gsm8k/variants.py train.jsonl variants.jsonl --each 16       # up to 16 variants of each problem
    python examples/gsm8k/variants.py train.jsonl drills.jsonl --drills 50000    # bare arithmetic like that of the solutions

Both files have rows {"question": ..., "answer": ...}. In a variant the numerals of the question are others, and the
whole worked solution is computed again: the marks <<48/2=24>>, the text around them, and the final number. A problem
whose numbers cannot all be traced to a source is left out, and the program says how many are, by reason.
"""

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # as a program it finds its other files too

from examples.gsm8k.arithmetic import Unreadable, compute, parse
from examples.gsm8k.drawing import drawn
from examples.gsm8k.drills import drills
from examples.gsm8k.numerals import exact
from examples.gsm8k.reading import MARK, equations
from examples.gsm8k.template import Reason, Refused, Template
from examples.gsm8k.tracing import trace

Row = dict[str, str]


def variants(row: Row, count: int, rng: random.Random) -> list[Row]:
    """Up to `count` problems like that one, or Refused. Each has been checked."""
    template = trace(row["question"], row["answer"])
    original = {"question": row["question"], "answer": row["answer"]}
    if template.filled(template.values({})) != original:
        raise Refused(Reason.NOT_ITSELF)
    right = len(equations(row["answer"]))
    made = []
    for values in drawn(template, count, rng):
        variant = template.filled(values)
        check(variant)
        if len(equations(variant["answer"])) != right:
            raise Refused(Reason.EQUATION)
        if variant not in made:
            made.append(variant)
    if not made:
        raise Refused(Reason.NO_DRAW)
    return made


def check(row: Row) -> None:
    """Every mark is right, read from the text alone, and the last one is the final number."""
    for expression in MARK.findall(row["answer"]):
        if not holds(expression):
            raise AssertionError(f"<<{expression}>> is not right in {row}")


def holds(equation: str) -> bool:
    expression, _, shown = equation.rpartition("=")
    try:
        tree, values, _ = parse(expression)
        return compute(tree, values) == exact(shown)
    except (Unreadable, ZeroDivisionError):
        return False


def read_rows(file: Path) -> list[Row]:
    rows: list[Row] = []
    try:
        with file.open() as lines:
            for number, line in enumerate(lines, start=1):
                row: Any = json.loads(line)
                if not (isinstance(row, dict) and all(isinstance(row.get(key), str) for key in ("question", "answer"))):
                    raise SystemExit(f"variants.py: line {number} of {file} is no row with a question and an answer")
                rows.append(row)
    except OSError as problem:
        raise SystemExit(f"variants.py: {file} cannot be read: {problem.strerror}") from None
    except ValueError:
        raise SystemExit(f"variants.py: line {len(rows) + 1} of {file} is not JSON") from None
    if not rows:
        raise SystemExit(f"variants.py: {file} is empty")
    return rows


def all_variants(rows: list[Row], each: int, seed: int, refused: Counter[Reason]) -> Iterator[list[Row]]:
    """Those of one problem after the other. They depend on the seed and the problem alone."""
    for row in rows:
        try:
            yield variants(row, each, random.Random(f"{seed} {row['question']}"))
        except Refused as problem:
            refused[problem.reason] += 1
            yield []


def write(file: Path, rows: list[Row]) -> None:
    unfinished = file.with_name(file.name + ".unfinished")
    with unfinished.open("w") as out:
        out.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    unfinished.rename(file)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make problems like those of GSM8K, with other numbers.")
    parser.add_argument("source", type=Path, help="GSM8K's train.jsonl")
    parser.add_argument("target", type=Path, help="the file to write")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--each", type=int, default=16, metavar="N", help="the most variants of a problem (16)")
    what.add_argument("--drills", type=int, metavar="N", help="write N rows of bare arithmetic instead")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.each < 1 or (given.drills is not None and given.drills < 1):
        parser.error("--each and --drills must be 1 or more")
    rows = read_rows(given.source)
    start_s = time.monotonic()
    if given.drills:
        made = list(drills([row["answer"] for row in rows], given.drills, given.seed))
        write(given.target, made)
        print(f"done: {len(made)} drills are in {given.target}, after {time.monotonic() - start_s:.0f} s")
        return
    refused: Counter[Reason] = Counter()
    made, varied = [], 0
    for number, of_one in enumerate(all_variants(rows, given.each, given.seed, refused), start=1):
        made += of_one
        varied += bool(of_one)
        if number % 500 == 0 or number == len(rows):
            print(f"\r{number} of {len(rows)} problems, {len(made)} variants", end="", flush=True)
    print()
    for reason, count in refused.most_common():
        print(f"{count:6} left out: {reason}")
    if not made:
        raise SystemExit(f"variants.py: no problem of {given.source} can be varied")
    random.Random(given.seed).shuffle(made)
    write(given.target, made)
    print(
        f"done: {len(made)} variants of {varied} problems ({varied / len(rows):.0%}) are in {given.target}, "
        f"after {time.monotonic() - start_s:.0f} s"
    )


if __name__ == "__main__":
    main()
