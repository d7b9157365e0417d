"""transformers' own modelling code as a decoder: for every architecture whose tokens meet in its attention alone.

Its attention is ours (`AttentionInterface`): packed in the trainer, paged in the engine. So sequences in a row need no
padding, and an engine shares prompts, stamps versions and swaps weights as with our own code. What an architecture does
besides, a state that runs through the row, say, or positions that it counts itself, would leak from one sequence into
the next: `check_packing` finds that out before anything is learned.

The model is never in training mode: dropout would make engine and trainer compute different things.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AutoModelForCausalLM, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface
from transformers.utils import logging

from freerun.core import ConfigError
from freerun.models.attention import PackedAttention
from freerun.models.borrowed_compiled import compile_layers, left_out
from freerun.models.borrowed_routers import follow_routers
from freerun.models.borrowed_shape import config_of
from freerun.models.decoder import Attend, Choose, Decoder, Reading, Readout, Recompute, likeliest
from freerun.models.shape import Backend, Shape, shape_of

_NAME = "freerun"
_MEANT = ("position_bias", "relative_attention_bias", "alibi")
"""What attention may be given that ours does not know."""
_LENGTHS = (5, 23, 14)


class _Told:
    """What the tokens of a pass may look at, and which experts they go through: the model's layers find it here, for
    not all models hand on what they are given besides."""

    attend: Attend | None = None
    choose: Choose | None = None

    @contextmanager
    def telling(self, attend: Attend | None, choose: Choose | None) -> Iterator[None]:
        before = self.attend, self.choose
        self.attend, self.choose = attend, choose
        try:
            yield
        finally:
            self.attend, self.choose = before


class BorrowedDecoder(Decoder):
    def __init__(self, model: PreTrainedModel, shape: Shape) -> None:
        super().__init__(shape)
        self.model = model.eval()
        parts = {"embed": model.get_input_embeddings(), "head": model.get_output_embeddings()}
        lists = [part for part in model.modules() if isinstance(part, nn.ModuleList) and len(part) == shape.layers]
        if not lists or not all(isinstance(part, nn.Module) for part in parts.values()):
            raise ConfigError(f"{shape.family} models have no embedding, layers and head that Freerun knows")
        self.__dict__ |= parts | {"layers": list(lists[0])}  # they are the model's: no second name for their weights
        self.readout = readout_of(model.config)
        self._told = _Told()
        for part in model.modules():
            part.__dict__["freerun_told"] = self._told
        self.routes = follow_routers(model, shape.hidden, self._told)

    def train(self, mode: bool = True) -> "BorrowedDecoder":
        super().train(mode)
        self.model.eval()
        return self

    def forward(self, tokens_T: Tensor, positions_T: Tensor, attend: Attend, choose: Choose = likeliest) -> Tensor:
        with self._told.telling(attend, choose):
            base = self.model.base_model
            hidden: Tensor = base(input_ids=tokens_T[None], position_ids=positions_T[None], use_cache=False)[0][0]
        return hidden

    @property
    def adaptable(self) -> Iterator[str]:
        inside = {id(part) for layer in self.layers for part in layer.modules()}
        return (name for name, part in self.named_modules() if isinstance(part, nn.Linear) and id(part) in inside)

    def check(self) -> None:
        check_packing(self)

    def arrange(self, compiled: bool, recompute: Recompute) -> None:
        """Compile what lies around a layer's attention and experts; do not keep what is inside layers for the backward
        pass."""
        if compiled:
            AttentionInterface.register(_NAME, left_out(_attention))
            compile_layers(list(self.layers), self.notes)
        for layer in self.layers if recompute else ():
            layer.forward = partial(self._recomputed, layer.forward)

    def _recomputed(self, forward: Callable[..., Any], *given: Any, **more: Any) -> Any:
        """In the backward pass, what was told in the forward pass is told again."""
        attend, choose = self._told.attend, self._told.choose

        def again(*given: Any, **more: Any) -> Any:
            with self._told.telling(attend, choose):
                return forward(*given, **more)

        return checkpoint(again, *given, use_reentrant=False, **more)


def readout_of(config: Any) -> Readout:
    """How logits are made, by the names under which architectures have it."""
    scale = getattr(config, "logit_scale", None) or 1 / (getattr(config, "logits_scaling", None) or 1)
    return Readout(float(scale), getattr(config, "final_logit_softcapping", None))


def load_borrowed(folder: Path, shape: Shape, dtype: torch.dtype, device: str) -> BorrowedDecoder:
    model = _quietly(partial(_read, folder, shape), shape, dtype)
    decoder = BorrowedDecoder(model.to(device), shape)
    check_packing(decoder)
    return decoder


def _read(folder: Path, shape: Shape, **how: Any) -> PreTrainedModel:
    """What the files lack, or have in another shape, transformers would make up."""
    trust = {"trust_remote_code": True} if shape.remote else {}
    model, told = AutoModelForCausalLM.from_pretrained(
        folder, local_files_only=True, output_loading_info=True, ignore_mismatched_sizes=True, **trust, **how
    )
    found: PreTrainedModel = model
    if missing := sorted(told["missing_keys"]):
        raise ConfigError(f"model.path: {folder} holds no tensor {missing[0]}; its config.json wants it")
    if odd := sorted(told["mismatched_keys"]):
        name, stored, wanted = odd[0]
        raise ConfigError(
            f"model.path: {folder}: {name} has shape {list(stored)}, and config.json asks for {list(wanted)}"
        )
    return found


def random_borrowed(shape: Shape, seed: int = 0, dtype: torch.dtype = torch.float32) -> BorrowedDecoder:
    """Weights as the architecture begins with them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return made_borrowed(shape, dtype)


def empty_borrowed(shape: Shape) -> BorrowedDecoder:
    """On the meta device: no weights."""
    with torch.device("meta"):
        return made_borrowed(shape)


def made_borrowed(shape: Shape, dtype: torch.dtype = torch.float32) -> BorrowedDecoder:
    """A model that transformers makes from its configuration, with weights from no folder."""
    trust = {"trust_remote_code": True} if shape.remote else {}
    make = partial(AutoModelForCausalLM.from_config, config_of(shape.raw, shape.remote), **trust)
    return BorrowedDecoder(_quietly(make, shape, dtype), shape)


def _quietly(make: Any, shape: Shape, dtype: torch.dtype) -> PreTrainedModel:
    """Freerun's attention for it; no progress bars in a process whose output somebody reads."""
    experts = {"experts_implementation": "eager"} if dtype == torch.float64 else {}  # grouped products have no float64
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        model: PreTrainedModel = make(dtype=dtype, attn_implementation=_NAME, **experts)
    except (ValueError, ImportError, OSError, AttributeError, TypeError, KeyError, RuntimeError) as error:
        said = " ".join(str(error).split())[:160]
        raise ConfigError(f"transformers cannot make this {shape.family} model: {said}") from None
    return model


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """transformers' side: one row of tokens, heads before tokens."""
    odd = [name for name in _MEANT if others.get(name) is not None]
    if odd or not getattr(module, "is_causal", True) or is_causal is False:
        kind = f"with {odd[0]}" if odd else "that is not causal"
        raise ConfigError(f"{type(module).__name__} has an attention {kind}, which Freerun cannot compute")
    rows = [x[0].transpose(0, 1) for x in (query, key, value)]
    reading = Reading(scaling, sliding_window, softcap, s_aux)
    return module.freerun_told.attend(module.layer_idx, *rows, reading)[None], None


def _no_mask(*_: Any, **__: Any) -> None:
    return None


AttentionInterface.register(_NAME, _attention)
AttentionMaskInterface.register(_NAME, _no_mask)


@torch.no_grad()
def check_packing(decoder: BorrowedDecoder) -> None:
    """Three sequences in a row must give the logits that transformers gives each alone, by its own attention; and other
    tokens in one of them must change nothing in the others."""
    family, model = decoder.shape.family, decoder.model
    kinds = set(getattr(model.config, "layer_types", None) or ())
    if odd := sorted(kinds - {"full_attention", "sliding_attention"}):
        raise ConfigError(f"{family} models have layers of {odd[0]}, in which sequences in a row see each other")
    device, generator = decoder.embed.weight.device, torch.Generator().manual_seed(0)
    least, most = 3, decoder.shape.vocab_size
    sequences = [torch.randint(least, most, (length,), generator=generator).to(device) for length in _LENGTHS]
    other = [(sequences[0] + 1 - least) % (most - least) + least, *sequences[1:]]
    packed, changed = _packed_logits(decoder, sequences), _packed_logits(decoder, other)
    model.set_attn_implementation("eager")
    try:
        alone = [model(input_ids=tokens[None], use_cache=False).logits[0].float() for tokens in sequences]
    finally:
        model.set_attn_implementation(_NAME)
    spread = torch.cat(alone).std().item() or 1.0
    allowed = spread * (0.2 if decoder.embed.weight.dtype in (torch.bfloat16, torch.float16) else 1e-3)
    if _farthest(packed[1:], changed[1:]) > allowed:
        raise ConfigError(f"{family} models cannot be trained packed: a sequence in a row changes what follows it")
    if (distance := _farthest(packed, alone)) > allowed:
        raise ConfigError(
            f"{family} models cannot be trained packed: logits differ by {distance:.2g} from each sequence's alone"
        )


def _packed_logits(decoder: Decoder, sequences: list[Tensor]) -> list[Tensor]:
    device, lengths = sequences[0].device, [len(tokens) for tokens in sequences]
    positions = torch.cat([torch.arange(length) for length in lengths]).to(device)
    hidden = decoder(torch.cat(sequences), positions, PackedAttention(lengths, device))
    return list(torch.split(decoder.logits(hidden).float(), lengths))


def _farthest(some: list[Tensor], others: list[Tensor]) -> float:
    return max((a - b).abs().max().item() for a, b in zip(some, others, strict=True))


def to_checkpoint(tensors: Mapping[str, Tensor], shape: Shape) -> dict[str, Tensor]:
    """A borrowed decoder's tensors under the names, and in the pieces, in which folders have them."""
    from transformers.core_model_loading import revert_weight_conversion

    inside = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    reverted: dict[str, Tensor] = revert_weight_conversion(_skeleton(json.dumps(shape.raw), shape.remote), inside)
    return reverted


@lru_cache(maxsize=2)
def _skeleton(config: str, remote: str | None) -> PreTrainedModel:
    """The model without weights, kept: each version that is written asks for it."""
    folder, backend = (Path(remote), "remote") if remote else (None, "transformers")
    return empty_borrowed(shape_of(json.loads(config), backend=cast(Backend, backend), folder=folder)).model
