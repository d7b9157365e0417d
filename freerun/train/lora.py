"""LoRA in training: an adapter on the decoder (`models/adapter.py`), and only that is trained.

Our own engines compute with the adapter, and are given it alone; `merged` is for all who compute without. For everybody
else `save_adapter` writes an ordinary peft adapter, the shared A repeated and B cut by rows.
"""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from freerun.core import ConfigError
from freerun.core.files import atomic_folder
from freerun.models.adapter import adapt, adapted_layers, is_of_adapter, is_scale
from freerun.models.checkpoint import hugging_face_names, taken_apart
from freerun.models.decoder import Decoder
from freerun.models.shape import AdapterShape
from freerun.train.ranks import full_tensor


def attach(
    decoder: Decoder,
    rank: int,
    alpha: float,
    targets: Sequence[str] | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Adapt these layers (by default all that can be) in place, freeze everything else. B starts at zero: outputs stay
    the same.

    `dtype` is the adapter's own, whatever the base's: bf16 would round the steps of a small learning rate away.
    """
    known = list(dict.fromkeys(name.rpartition(".")[2] for name in decoder.adaptable))
    chosen = known if targets is None else list(targets)
    if not chosen or not set(chosen) <= set(known):
        raise ConfigError(f"LoRA can adapt {', '.join(known)}; it was asked for {', '.join(chosen) or 'nothing'}")
    decoder.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)  # A is drawn on the CPU, wherever the base lies

    def drawn(base: nn.Linear) -> Tensor:
        bound = 1 / math.sqrt(base.in_features)  # what a linear layer's weights start with
        lora_a = torch.empty(rank, base.in_features).uniform_(-bound, bound, generator=generator)
        device = "cpu" if base.weight.is_meta else base.weight.device  # the adapter has its values from the start
        return lora_a.to(device, dtype)

    adapt(decoder, AdapterShape(rank, alpha), drawn, chosen, dropout)


@torch.no_grad()
def merged(decoder: Decoder) -> Iterator[tuple[str, Tensor]]:
    """The weights of the plain decoder that computes the same, by its names, in the base's type; one after another, so
    that no more than one is unsharded at a time.

    The sums are new tensors, the rest are the live ones. Adding B·A in place and subtracting it again would drift.
    Where ranks have shares, every one has to ask.
    """
    adapted = {f"{name}.weight": layer for name, layer in adapted_layers(decoder)}
    for name, parameter in decoder.named_parameters():
        if is_of_adapter(name) or is_scale(name):
            continue
        base = full_tensor(parameter.detach())
        if layer := adapted.get(name):
            dtype = decoder.embed.weight.dtype
            precise = torch.promote_types(dtype, torch.float32)
            a, b = (full_tensor(factor.detach()).to(precise) for factor in (layer.lora_a, layer.lora_b))
            base = layer.wide_weight(base, precise).addmm(b, a, alpha=layer.alpha / layer.rank).to(dtype)
        yield name, base


def adapter_state(decoder: Decoder) -> dict[str, Tensor]:
    """What is trained, under the adapted decoder's names: the live tensors, for `load_state_dict(…, strict=False)`."""
    return {name: parameter.detach() for name, parameter in decoder.named_parameters() if parameter.requires_grad}


def save_adapter(decoder: Decoder, folder: Path, base: str, writes: bool = True) -> None:
    """Write an ordinary peft adapter for the Hugging Face model `base`; the folder appears complete or not at all.

    Where ranks have shares, every one has to take part, and one `writes`.
    """
    tensors = _hugging_face(decoder)
    if not writes:
        return
    with atomic_folder(folder) as unfinished:
        save_file(tensors, unfinished / "adapter_model.safetensors", metadata={"format": "pt"})
        (unfinished / "adapter_config.json").write_text(json.dumps(_config(decoder, base), indent=2) + "\n")


def load_adapter(decoder: Decoder, folder: Path) -> None:
    """What `save_adapter` wrote, into a decoder attached the same way: all of it, or a ConfigError and nothing."""
    tensors = _read(decoder, folder)
    for name, _, _ in _adapted(decoder):
        first, *others = (tensors[f"{place}.lora_A.weight"] for place in _places(name))
        if not all(torch.equal(first, other) for other in others):
            parts = ", ".join(place.split(".")[-1] for place in _places(name))
            raise ConfigError(f"{folder}: {parts} must share one lora_A here; merge this adapter into its base instead")
    for name, a, b in _adapted(decoder):
        a.copy_(tensors[f"{_places(name)[0]}.lora_A.weight"])
        b.copy_(torch.cat([tensors[f"{place}.lora_B.weight"] for place in _places(name)]))


def _read(decoder: Decoder, folder: Path) -> dict[str, Tensor]:
    """An adapter's tensors, when they and its configuration are such as this decoder's would be."""
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        if not (folder / file).is_file():
            raise ConfigError(f"{folder} has no {file}; give the folder of a peft adapter")
    ours, theirs = _config(decoder, ""), json.loads((folder / "adapter_config.json").read_text())
    for key in ("peft_type", "r", "lora_alpha", "use_rslora", "alpha_pattern"):
        if (has := theirs.get(key, want := ours[key])) != want:
            raise ConfigError(f"{folder}: {key} is {has} there and {want} in this run; make them equal")
    tensors = load_file(folder / "adapter_model.safetensors")
    found, wanted = ({(name, *t.shape) for name, t in d.items()} for d in (tensors, _hugging_face(decoder)))
    if odd := sorted(found ^ wanted)[:1]:
        verb = "holds" if odd[0] in found else "lacks"
        raise ConfigError(f"{folder} {verb} {odd[0]}; use the model and the targets it was made for")
    return tensors


def _hugging_face(decoder: Decoder) -> dict[str, Tensor]:
    """The adapter under peft's names for the Hugging Face model, fused layers taken apart."""
    tensors: dict[str, Tensor] = {}
    for name, a, b in _adapted(decoder):
        for place, (_, rows) in zip(_places(name), taken_apart(f"{name}.weight", b, decoder.shape), strict=True):
            tensors[f"{place}.lora_A.weight"] = a.cpu().clone()  # safetensors refuses one tensor under two names
            tensors[f"{place}.lora_B.weight"] = rows.cpu()
    return tensors


def _places(name: str) -> list[str]:
    """Where a peft adapter for the Hugging Face model keeps what adapts this layer of ours."""
    return [f"base_model.model.{part.removesuffix('.weight')}" for part in hugging_face_names(f"{name}.weight")]


def _adapted(decoder: Decoder) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Each adapted layer's name, A and B."""
    for name, layer in adapted_layers(decoder):
        yield name, full_tensor(layer.lora_a.detach()), full_tensor(layer.lora_b.detach())


def _config(decoder: Decoder, base: str) -> dict[str, Any]:
    """What peft, and whoever reads its adapters, asks in `adapter_config.json`."""
    layers = dict(adapted_layers(decoder))
    one = next(iter(layers.values()))
    parts = {place.split(".")[-1] for name in layers for place in _places(name)}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": one.rank,
        "lora_alpha": int(one.alpha) if float(one.alpha).is_integer() else one.alpha,  # peft calls it an integer
        "lora_dropout": one.dropout,
        "target_modules": sorted(parts),
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "rank_pattern": {},
        "alpha_pattern": {},
        "modules_to_save": None,
        "inference_mode": True,
    }
