"""What engine and trainer compute with, whoever wrote the model's code: `forward(tokens, positions, attend)`.

Tokens are packed: T tokens of any number of sequences in a row, without padding. What a token may look at is the
business of `attend`, the strategy (packed causal attention for training, paged attention in the engine); everything
else is the same code with the same weights for both, so their log-probabilities agree to rounding.

`own.py` has our code; `borrowed.py` has transformers' for all other architectures.

Which experts a token goes through, in a mixture of them, is the business of another strategy, `choose`.

Shapes: T tokens, H query heads, K key/value heads, D head dimension; D of values may be another than that of keys. E
experts of a layer, k of them for a token.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from freerun.models.routes import RouteLayout
from freerun.models.shape import Shape


class Reading(NamedTuple):
    """How a layer's attention reads, where that is not the usual way."""

    scale: float | None = None
    """What the products of queries and keys are multiplied by; None: 1 / √D."""
    window: int | None = None
    """How many tokens each sees, itself included; None: all before it."""
    softcap: float | None = None
    """Products are kept below this by a tanh."""
    sinks: Tensor | None = None
    """For each head, a product with a token that is not there: what it would read is nothing."""

    @property
    def is_masked(self) -> bool:
        """Whether it is more than causal attention."""
        return any(part is not None for part in self[1:])


USUAL = Reading()


class Attend(Protocol):
    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, reading: Reading = USUAL) -> Tensor:
        """What each token reads from those it may look at; T × H × D."""
        ...


class Choose(Protocol):
    def __call__(self, layer: int, scores_TE: Tensor, k: int) -> Tensor:
        """Which experts each token goes through, T × k, by what its router finds of them. Only layers that have experts
        are counted. Where a layer is computed twice it is asked twice, and must answer alike."""
        ...


def likeliest(layer: int, scores_TE: Tensor, k: int) -> Tensor:
    """Those that the router likes best."""
    return scores_TE.topk(k, dim=-1).indices


class Readout(NamedTuple):
    """What becomes of the head's products before they are logits."""

    scale: float = 1.0
    softcap: float | None = None
    """They are kept below this by a tanh."""

    def of(self, products: Tensor) -> Tensor:
        scaled = products if self.scale == 1 else products * self.scale
        return scaled if self.softcap is None else self.softcap * torch.tanh(scaled / self.softcap)

    def slope(self, logits: Tensor, grad: Tensor) -> Tensor:
        """The gradient of the products, from that of the logits."""
        if self.softcap is not None:
            grad = grad * (1 - (logits / self.softcap).square()).to(grad.dtype)
        return grad if self.scale == 1 else grad * self.scale


AS_IT_IS = Readout()
Recompute = bool | Literal["all", "offload"]


class Decoder(nn.Module):
    embed: nn.Embedding
    head: nn.Linear
    layers: Iterable[nn.Module]
    """Each is shared out as one, and computed again as one."""
    readout = AS_IT_IS
    pieces: Mapping[str, Sequence[str]] | None = None
    """The tensors of a folder that each of this decoder's is made of, one below the other, where its code is not ours
    and ranks are to read their rows."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.notes: list[str] = []
        """What a run should be told of how it is loaded and computed."""
        self.routes = RouteLayout.of(shape)
        """How it is written which experts a token went through; None where there are none to choose from."""

    @abstractmethod
    def forward(self, tokens_T: Tensor, positions_T: Tensor, attend: Attend, choose: Choose = likeliest) -> Tensor:
        """The hidden state of each token, T × hidden. `logits` turns the ones of interest into logits."""

    def fixed(self) -> dict[str, Tensor]:
        """What belongs to the weights and is not learned, such as the biases by which DeepSeek's router chooses."""
        buffers = dict(self.named_buffers())
        return {name: tensor for name, tensor in self.state_dict().items() if name in buffers}

    def logits(self, hidden: Tensor) -> Tensor:
        return self.readout.of(self.head(hidden))

    def check(self) -> None:
        """Refuse a model that would learn something else, by trying it."""

    @property
    @abstractmethod
    def adaptable(self) -> Iterator[str]:
        """The linear layers that LoRA adapts."""

    @abstractmethod
    def arrange(self, compiled: bool, recompute: Recompute) -> None:
        """Make layers faster or smaller for training without changing what they compute: by compiling them; by not
        keeping what is inside them for the backward pass, but computing it again; with "all" the attention, too;
        with "offload", what came into a layer waits in the machine's memory."""
