"""The blocks of the key/value cache: who has them, and what is in those that may be used again.

A block is free, or held by as many owners as took or matched it. What a full block holds is remembered after its last
owner left, until the block is handed out anew, oldest first: a later prompt that begins with the same tokens finds it.
New weights make everything remembered worthless, and `forget` makes sure that it is not found.

What is remembered is a tree: a node is a block's tokens below its parent's node. Keys are exact, not hashes. To forget
is to begin another tree, since answers wait for it: what is left of older ones, whose nodes have smaller numbers, goes
with its blocks.
"""

from collections.abc import Sequence as Tokens
from itertools import count

Key = tuple[int, tuple[int, ...]]
"""The parent's node, and the block's tokens."""


class Blocks:
    def __init__(self, count_: int, block_tokens: int) -> None:
        self.count = count_
        self.block_tokens = block_tokens
        self._owners = [0] * count_
        self._free: dict[int, None] = dict.fromkeys(range(count_))
        """In the order in which they will be handed out."""
        self._nodes: dict[Key, tuple[int, int]] = {}
        """What is remembered: key → node, block."""
        self._key_of: dict[int, Key] = {}
        self._new_node = count(1)
        self._root = 0

    @property
    def tokens(self) -> int:
        """What they hold, all of them."""
        return self.count * self.block_tokens

    @property
    def free(self) -> int:
        return len(self._free)

    def needed(self, tokens: int) -> int:
        """Blocks that hold that many tokens."""
        return -(-tokens // self.block_tokens)

    def take(self, number: int) -> list[int]:
        """Free blocks, to be written to: what they held is forgotten."""
        assert number <= len(self._free), "asked for more blocks than are free"
        taken = []
        for _ in range(number):
            block = next(iter(self._free))
            del self._free[block]
            self._owners[block] = 1
            if key := self._key_of.pop(block, None):
                del self._nodes[key]
            taken.append(block)
        return taken

    def share(self, blocks: list[int]) -> None:
        """They have one owner more, who gives them back as any other does."""
        for block in blocks:
            assert self._owners[block], "nobody has this block"
            self._owners[block] += 1

    def give_back(self, blocks: list[int]) -> None:
        """One owner leaves; the list is emptied so that it is not used by mistake. The ends of prefixes are reused
        before their beginnings."""
        while blocks:
            block = blocks.pop()
            self._owners[block] -= 1
            assert self._owners[block] >= 0, "a block came back twice"
            if not self._owners[block]:
                self._free[block] = None

    def match(self, tokens: Tokens[int]) -> list[int]:
        """The longest remembered run of full blocks that these tokens begin with; the caller becomes an owner."""
        matched, node = [], self._root
        for key_tokens in self._full(tokens):
            found = self._nodes.get((node, key_tokens))
            if found is None:
                break
            node, block = found
            self._free.pop(block, None)
            self._owners[block] += 1
            matched.append(block)
        return matched

    def remembered(self, tokens: Tokens[int]) -> int:
        """How many full blocks of these tokens, from the first on, `match` would find."""
        count, node = 0, self._root
        for key_tokens in self._full(tokens):
            found = self._nodes.get((node, key_tokens))
            if found is None:
                break
            node, count = found[0], count + 1
        return count

    def remember(self, tokens: Tokens[int], table: list[int]) -> None:
        """These tokens' full blocks are filled, by the present weights: `table` says where."""
        node = self._root
        for key_tokens, block in zip(self._full(tokens), table, strict=False):
            key = (node, key_tokens)
            if key not in self._nodes:
                if older := self._key_of.get(block):
                    if older[0] >= self._root:
                        return  # it is remembered under another parent, which was forgotten meanwhile
                    del self._nodes[older]
                self._nodes[key] = next(self._new_node), block
                self._key_of[block] = key
            node = self._nodes[key][0]

    def forget(self) -> None:
        self._root = next(self._new_node)

    def _full(self, tokens: Tokens[int]) -> list[tuple[int, ...]]:
        size = self.block_tokens
        return [tuple(tokens[at : at + size]) for at in range(0, len(tokens) - size + 1, size)]
