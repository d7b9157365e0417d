"""The blocks of the key/value cache, and who has them."""


class Blocks:
    """Numbered blocks. Each is free or has one owner; the pool only counts and hands out."""

    def __init__(self, count: int, block_tokens: int) -> None:
        self.count = count
        self.block_tokens = block_tokens
        self._free = list(range(count - 1, -1, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    def needed(self, tokens: int) -> int:
        """Blocks that hold that many tokens."""
        return -(-tokens // self.block_tokens)

    def take(self, count: int) -> list[int]:
        assert count <= len(self._free), "asked for more blocks than are free"
        return [self._free.pop() for _ in range(count)]

    def give_back(self, blocks: list[int]) -> None:
        """The blocks are free again; the list is emptied so that nobody uses them by mistake."""
        self._free.extend(blocks)
        blocks.clear()
        assert len(self._free) <= self.count, "a block came back twice"
