"""What the engine works on: a request (a prompt, n answers) and its sequences (one answer each).

The cache of a prompt is computed once, up to but without its last token, and belongs to the request. Each sequence
shares its full blocks, has its own copy of the last, partial one, and computes on from the prompt's last token by
itself. So every sequence samples from its own forward pass, and one that starts late needs nothing but the cache.
"""

from dataclasses import dataclass, field

from freerun.core import FinishReason, Version
from freerun.engines.base import Completion, Sampling
from freerun.engines.extras import Alternatives
from freerun.models.routes import Routes

_WORD = (1 << 64) - 1


def mixed(seed: int, index: int, position: int = 0) -> int:
    """64 well-mixed bits from three integers: two rounds of splitmix64."""
    state = (seed * 0x9E3779B97F4A7C15 + index * 0xD1B54A32D192ED03 + position + 1) & _WORD
    for _ in range(2):
        state = (state + 0x9E3779B97F4A7C15) & _WORD
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _WORD
        state ^= state >> 31
    return state


@dataclass(slots=True, eq=False)
class Request:
    id: str
    prompt: list[int]
    sampling: Sampling
    n: int
    blocks: list[int] = field(default_factory=list)
    """Those that hold the prompt."""
    computed: int = 0
    """Tokens of the prompt whose cache is filled."""
    unfinished: int = 0
    """Sequences of it that have not ended."""
    running: int = 0
    """Sequences of it that are running, and so use its prompt's cache."""
    cached_by: Version = -1
    """The version that computes its cache; blocks of several versions, under `keep`, are not for others to use."""
    behind: int = 0
    """How many versions old its cached tokens are, all together."""
    stops: frozenset[int] = frozenset()
    """Tokens that end its answers."""
    asked_s: float = 0.0
    cached: int | None = None
    """Tokens of the prompt that were in the cache when it was first looked for there. None: it has not been yet."""

    @property
    def prefix(self) -> int:
        """Tokens of the prompt that its sequences share: all but the last."""
        return len(self.prompt) - 1


@dataclass(slots=True, eq=False)
class Sequence:
    request: Request
    index: int
    tokens: list[int] = field(default_factory=list)
    """The sampled ones."""
    logprobs: list[float] = field(default_factory=list)
    versions: list[Version] = field(default_factory=list)
    alternatives: list[Alternatives] = field(default_factory=list)
    """One list for every token, if the request asks for alternatives."""
    blocks: list[int] = field(default_factory=list)
    """Its own, behind the prompt's full ones."""
    table: list[int] = field(default_factory=list)
    """The prompt's full blocks and its own: where each of its positions lies."""
    computed: int = 0
    """Tokens (prompt included) whose cache is filled. 0: it has not joined its prompt's cache yet."""
    behind: int = 0
    """How many versions old its own cached tokens are, all together; with its prompt's if it is `apart`."""
    apart: bool = False
    """It has the prompt's cache as its own, of older weights than the request's: `blocks` are all of `table`."""
    ahead: int = 0
    """Tokens being sampled by a step that is under way: they count, but are not known yet."""
    epoch: int = 0
    """Rises when it gives way: what is still under way for it then is not wanted any more."""
    finish: FinishReason | None = None
    started_s: float = 0.0
    """When it first left the queue, and had its first token; 0: not yet."""
    first_token_s: float = 0.0
    routes: list[Routes] = field(default_factory=list)
    """Which experts the token before each of its tokens went through when that was sampled, where there are such."""
    key: int = field(init=False)
    """31 bits of its own, from the request's seed and its index: what its sampling depends on, on a GPU."""

    def __post_init__(self) -> None:
        self.key = mixed(self.request.sampling.seed, self.index) >> 33

    @property
    def length(self) -> int:
        return len(self.request.prompt) + len(self.tokens) + self.ahead

    @property
    def sampled(self) -> int:
        """How many tokens it has, those under way included."""
        return len(self.tokens) + self.ahead

    @property
    def age(self) -> float:
        """How many versions old its cache is, a mean over its tokens."""
        return (self.behind + (0 if self.apart else self.request.behind)) / max(self.length - 1, 1)

    @property
    def most_tokens(self) -> int:
        """Its length when it runs to the limit."""
        return len(self.request.prompt) + self.request.sampling.max_new_tokens

    def slice(self, start: int, end: int) -> list[int]:
        """Its tokens from position start to end, the prompt's included."""
        given = len(self.request.prompt)
        if start >= given:
            return self.tokens[start - given : end - given]
        return self.request.prompt[start:end] + self.tokens[: max(end - given, 0)]


@dataclass(slots=True)
class EndedAnswer:
    """What the engine has of an answer that ended, by token, in lists: they grow as it samples."""

    index: int
    tokens: list[int]
    logprobs: list[float]
    versions: list[Version]
    finish: FinishReason
    alternatives: list[Alternatives] = field(default_factory=list)
    """One list for every token, if the request asked for alternatives."""
    cached: int = 0
    """Tokens of its prompt that were in the cache when the prompt was first read."""
    routes: Routes | None = None
    """Which experts all tokens but the last went through, the prompt's included, where the request asked for that."""

    @property
    def completion(self) -> Completion:
        parts = self.index, self.tokens, self.logprobs, self.versions, self.finish, self.cached
        return Completion(*parts, routes=self.routes)


UNKNOWN = -1
"""A token that the step before is still sampling."""


@dataclass(slots=True)
class Chunk:
    """A stretch of one row's tokens to compute in a step."""

    tokens: list[int]
    start: int
    table: list[int]
    """The blocks of the row, from position 0."""
    samples: Sequence | None = None
    """Who samples a token from the last position, if anybody."""
    guesses: int = 0
    """The last so many tokens are guessed: it samples from the position before them and from each of theirs, up to the
    first that is not what was sampled."""

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)
