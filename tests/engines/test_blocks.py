"""Blocks of the cache: what is found again, and what new weights made worthless."""

from hypothesis import given
from hypothesis import strategies as st

from freerun.engines.embedded.blocks import Blocks

A, B = [1, 2, 3, 4], [1, 2, 5, 6]


def filled(blocks: Blocks, tokens: list[int]) -> list[int]:
    table = blocks.take(len(tokens) // blocks.block_tokens)
    blocks.remember(tokens, table)
    return table


def test_a_prefix_is_found_until_it_is_forgotten() -> None:
    blocks = Blocks(8, 2)
    table = filled(blocks, A)
    assert blocks.match([*A, 9]) == table
    assert blocks.match(B) == table[:1]
    blocks.forget()
    assert blocks.match(A) == []


def test_a_block_that_is_filled_again_after_new_weights_is_found_again() -> None:
    blocks = Blocks(8, 2)
    table = filled(blocks, A)
    blocks.forget()
    blocks.remember(A, table)
    assert blocks.match(A) == table
    blocks.forget()
    assert blocks.match(A) == []


@given(st.lists(st.sampled_from(["a", "b", "give back", "forget"]), max_size=40))
def test_what_is_found_was_filled_with_the_present_weights(doings: list[str]) -> None:
    """Whoever asks either finds its prefix, filled since the last `forget`, or fills new blocks, of which there are too
    few to keep all."""
    blocks, held = Blocks(5, 2), list[list[int]]()
    content: dict[int, tuple[int, list[int]]] = {}
    weights = 0
    for doing in doings:
        if doing == "forget":
            blocks.forget()
            weights += 1
        elif doing == "give back" and held:
            blocks.give_back(held.pop(0))
        elif doing in ("a", "b"):
            tokens = A if doing == "a" else B
            table = blocks.match(tokens)
            assert [content[block] for block in table] == [
                (weights, tokens[: 2 * at + 2]) for at in range(len(table))
            ], "by these weights, after the same tokens"
            if blocks.free < 2 - len(table):
                blocks.give_back(table)
                continue
            table += blocks.take(2 - len(table))
            content |= {block: (weights, tokens[: 2 * at + 2]) for at, block in enumerate(table)}
            blocks.remember(tokens, table)
            held.append(table)
    for table in held:
        blocks.give_back(table)
    assert blocks.free == blocks.count
