"""What Freerun asks of an engine of another maker, a server of its own that a front drives. Importable without torch.

A *backend* knows one kind of server: how it is started, and what its routes are called. The front (`front.py`) knows
the rest: clients, versions, updates, and what becomes of answers meanwhile.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self

from freerun.core import ConfigError, Version
from freerun.engines.base import Completion, Sampling
from freerun.machine.device import Device
from freerun.models.shape import Shape, shape_of

Interrupt = Literal["recompute", "keep", "abort"]
"""What a pause does to the answers that are running: they go on with their cache rebuilt, go on with it as it is, or
end where they are."""


@dataclass(slots=True, frozen=True)
class Launch:
    """What a server is started with."""

    python: Path
    """In whose environment it is installed."""
    model: Path
    shape: Shape
    port: int
    """On the loopback address, and nowhere else: the routes that drive it ask for no key."""
    device: Device
    dtype: Literal["float32", "bfloat16"]
    tensor_parallel: int
    max_running: int
    """Answers decoded together."""
    cache_tokens: int | None
    """Tokens that the key/value cache holds; None: what fits `memory_share`."""
    memory_share: float
    """How much of a GPU's memory it may fill, weights included."""


@dataclass(slots=True, frozen=True)
class Command:
    argv: Sequence[str]
    environment: Mapping[str, str]


@dataclass(slots=True, frozen=True)
class Counts:
    """What a server is doing, as it says itself. Totals only grow."""

    running: int
    """Answers being written."""
    tokens: int
    """Sampled, those of unfinished answers included."""
    prompt_tokens: int
    reused_tokens: int
    """Tokens of prompts, and how many of them were in the cache."""


class Backend(Protocol):
    """A client of one server, at a URL. An async context manager. Whatever fails is an EngineError."""

    NAME: ClassVar[str]
    """What the server is called in messages."""

    def __init__(self, url: str, key: str | None = None) -> None: ...

    @staticmethod
    def command(launch: Launch) -> Command:
        """How to start it. OMP_NUM_THREADS says how many threads each of its workers may have."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...

    async def answers(self) -> bool:
        """Whether it takes requests yet. Never raises."""
        ...

    async def check(self, shape: Shape) -> int:
        """That this is a server of this kind, that it may be driven, and that it holds a model of this shape: a
        ConfigError otherwise, which names the fix. Its weights are version 0 from now on. Returns the most tokens of a
        prompt and its answer together."""
        ...

    def generate(
        self, request_id: str, prompt: list[int], sampling: Sampling, n: int
    ) -> AsyncGenerator[Completion, None]:
        """n answers, each as it ends, with the log-probability and the version of each token. Closing the iterator
        aborts the rest in the server."""
        ...

    async def pause(self, interrupt: Interrupt) -> None:
        """Returns when nothing is sampled any more. New requests are queued."""
        ...

    async def load(self, folder: Path, version: Version) -> None:
        """While paused: take the weights from that folder of Hugging Face safetensors, with nothing left of the old
        ones, and label tokens with that version from now on."""
        ...

    async def resume(self) -> None: ...

    async def counts(self) -> Counts: ...

    async def metrics(self) -> str:
        """The server's own, in the text format that Prometheus reads."""
        ...


def check_shape(server: str, raw: dict[str, Any], shape: Shape) -> None:
    """`raw` is the `config.json` of the model that the server holds."""
    try:
        theirs = shape_of(raw)
    except (ConfigError, KeyError):
        found = raw.get("model_type")
        raise ConfigError(
            f"engine.urls: {server} has another model than model.path (model_type {found!r}): serve that one"
        ) from None
    if theirs.vocab_size != shape.vocab_size:
        raise ConfigError(
            f"engine.urls: {server} has a vocabulary of {theirs.vocab_size} tokens, and model.path one of "
            f"{shape.vocab_size}: serve the model of model.path there"
        )
    for field in _SAME:
        if (has := getattr(theirs, field)) != (wanted := getattr(shape, field)):
            raise ConfigError(
                f"engine.urls: {server} has another model than model.path ({field} {has}, not {wanted}): serve that one"
            )


_SAME = ("family", "hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "tied", "rope_theta", "norm_eps")
"""What two models have in common of which one can take the other's weights and then computes the same."""
