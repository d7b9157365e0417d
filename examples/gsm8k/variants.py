"""More problems to train on, made out of GSM8K's own: the same stories with other numbers.

    python examples/gsm8k/variants.py train.jsonl variants.jsonl --each 16       # up to 16 variants of each problem
    python examples/gsm8k/variants.py train.jsonl drills.jsonl --drills 50000    # bare arithmetic, as in solutions

Both files have rows {"question": ..., "answer": ...}. In a variant the numerals of the question are others, and the
whole worked solution is computed again: the marks <<48/2=24>>, the text around them, and the final number. A problem
whose numbers cannot all be traced to a source is left out, and the program says how many are, by reason.

`trace` (tracing.py) makes a template of a problem, `drawn` (drawing.py) other numbers for it.
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

from examples.gsm8k.drawing import drawn
from examples.gsm8k.drills import drills
from examples.gsm8k.reading import read
from examples.gsm8k.template import Reason, Refused
from examples.gsm8k.tracing import trace

Row = dict[str, str]
EVERY = 250
"""Problems from one report of progress to the next."""


def variants(row: Row, count: int, rng: random.Random) -> list[Row]:
    """Up to `count` problems like that one, or Refused. Each is read again, which checks all of its arithmetic."""
    template = trace(row["question"], row["answer"])
    if template.filled(template.values({})) != {"question": row["question"], "answer": row["answer"]}:
        raise Refused(Reason.NOT_ITSELF)
    said = [step.said for step in read(row["question"], row["answer"]).steps]
    made = [template.filled(values) for values in drawn(template, count, rng)]
    if not made:
        raise Refused(Reason.NO_DRAW)
    for variant in made:
        if [step.said for step in read(variant["question"], variant["answer"]).steps] != said:
            raise Refused(Reason.EQUATION)
    return made


def read_rows(file: Path) -> list[Row]:
    rows: list[Row] = []
    try:
        with file.open(encoding="utf-8") as lines:
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


def all_variants(rows: list[Row], each: int, seed: int) -> Iterator[Row]:
    """Those of one problem after the other, which depend on the seed and the problem alone. Prints how far it is."""
    refused: Counter[Reason] = Counter()
    num_made = 0
    for number, row in enumerate(rows, start=1):
        try:
            made = variants(row, each, random.Random(f"{seed} {row['question']}"))
            num_made += len(made)
            yield from made
        except Refused as problem:
            refused[problem.reason] += 1
        if number % EVERY == 0 or number == len(rows):
            print(f"\r{number} of {len(rows)} problems, {num_made} variants", end="", flush=True)
    print()
    for reason, count in refused.most_common():
        print(f"{count:6} left out: {reason}")
    print(f"{len(rows) - refused.total():6} varied ({1 - refused.total() / len(rows):.0%})")


def write(file: Path, rows: list[Row]) -> None:
    """All of them, or nothing."""
    unfinished = file.with_name(file.name + ".unfinished")
    try:
        with unfinished.open("w", encoding="utf-8") as out:
            out.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        unfinished.rename(file)
    except OSError as problem:
        raise SystemExit(f"variants.py: {file} cannot be written: {problem.strerror}") from None


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
        made = list(drills((row["answer"] for row in rows), given.drills, given.seed))
    else:
        made = list(all_variants(rows, given.each, given.seed))
        random.Random(given.seed).shuffle(made)
    if not made:
        raise SystemExit(f"variants.py: nothing can be made of {given.source}: are its rows like GSM8K's?")
    write(given.target, made)
    print(f"done: {len(made)} rows are in {given.target}, after {time.monotonic() - start_s:.0f} s")


if __name__ == "__main__":
    main()
