"""An order cut into stretches that a forward pass can take."""

from collections.abc import Iterator, Sequence


def within(order: Sequence[int], lengths: Sequence[int], capacity: int) -> Iterator[list[int]]:
    """Stretches of `order` of at most that many tokens, or one sequence."""
    stretch: list[int] = []
    tokens = 0
    for index in order:
        if stretch and tokens + lengths[index] > capacity:
            yield stretch
            stretch, tokens = [], 0
        stretch.append(index)
        tokens += lengths[index]
    if stretch:
        yield stretch
