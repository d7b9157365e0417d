"""Rows that hold a seed and nothing else, for environments that make their own tasks: `seeds:4096`, `seeds:4096-4352`.

The second form names the first seed and the one after the last, so that training and held-out seeds can be kept apart.
"""

import re
from collections.abc import Iterator

from freerun.core import DataError
from freerun.data.rows import Row


def count_seeds(given: str) -> Iterator[Row]:
    """`given` is what follows `seeds:`."""
    read = re.fullmatch(r"(?:(\d+)-)?(\d+)", given.strip())
    first, after = (int(read[1] or 0), int(read[2])) if read else (0, 0)
    if after <= first:
        raise DataError(f"seeds:{given} holds none: write how many, seeds:4096, or FIRST-AFTER, seeds:4096-4352")
    return ({"id": f"seeds:{seed}", "seed": seed} for seed in range(first, after))
