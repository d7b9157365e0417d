"""LoRA on the decoder, through peft: W·x + (alpha / rank)·B·A·x, and only A and B are trained (Hu et al. 2021).

The decoder's fused layers are adapted as they are: q, k and v share one A, and so do gate and up, which makes fewer
adapter parameters than one A for each. Engines know nothing of it: what is published is `merged`. For everybody else
`save_adapter` writes an ordinary peft adapter, the shared A repeated and B cut by rows.
Peft takes seconds to import, so import this file only where LoRA is wanted.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from torch import Tensor

from freerun.core import ConfigError
from freerun.models.checkpoint import PARTS, hugging_face_names, to_hugging_face
from freerun.models.decoder import Decoder
from freerun.train.ranks import full_tensor

TARGETS = ("qkv", "out", "gate_up", "down")
_ADAPTER = "default"


def attach(
    decoder: Decoder,
    rank: int,
    alpha: float,
    targets: Sequence[str] | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Adapt these layers (all `TARGETS`) in place, freeze everything else. B starts at zero: outputs stay the same.

    `dtype` is the adapter's own, whatever the base's: bf16 would round the steps of a small learning rate away.
    """
    chosen = list(TARGETS if targets is None else targets)
    if not chosen or not set(chosen) <= set(TARGETS):
        raise ConfigError(f"LoRA can adapt {', '.join(TARGETS)}; it was asked for {', '.join(chosen) or 'nothing'}")
    alpha = int(alpha) if float(alpha).is_integer() else alpha  # peft's configuration calls it an integer
    config = LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=chosen)
    with torch.random.fork_rng(devices=[]):  # A is drawn on the CPU, wherever the base lies
        torch.default_generator.manual_seed(seed)
        inject_adapter_in_model(config, decoder, _ADAPTER)
    for parameter in decoder.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)


@torch.no_grad()
def merged(decoder: Decoder) -> Iterator[tuple[str, Tensor]]:
    """The weights of the plain decoder that computes the same, by its names, in the base's type; one after another, so
    that no more than one is unsharded at a time.

    The sums are new tensors, the rest are the live ones. Adding B·A in place and subtracting it again would drift.
    Where ranks have shares, every one has to ask.
    """
    adapters = {f"{name}.weight": (a, b) for name, a, b in _adapted(decoder)}
    scaling = _config(decoder).lora_alpha / _config(decoder).r
    for given, parameter in decoder.named_parameters():
        if ".lora_" in given:
            continue
        name, base = given.replace(".base_layer.", "."), full_tensor(parameter.detach())
        if name in adapters:
            precise = torch.promote_types(base.dtype, torch.float32)
            a, b = (factor.to(precise) for factor in adapters[name])
            base = base.to(precise).addmm(b, a, alpha=scaling).to(base.dtype)
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
    unfinished = folder.with_name(folder.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    save_file(tensors, unfinished / "adapter_model.safetensors", metadata={"format": "pt"})
    config = copy(_config(decoder))
    config.base_model_name_or_path = base
    config.target_modules = {part.split(".")[-1] for target in config.target_modules for part in PARTS[target]}
    config.inference_mode = True
    config.save_pretrained(unfinished)
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)


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
    ours, theirs = _config(decoder), json.loads((folder / "adapter_config.json").read_text())
    same = {"peft_type": "LORA", "r": ours.r, "lora_alpha": ours.lora_alpha, "use_rslora": False, "alpha_pattern": {}}
    for key, want in same.items():
        if (has := theirs.get(key, want)) != want:
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
        for place, (_, rows) in zip(_places(name), to_hugging_face({f"{name}.weight": b}, decoder.shape), strict=True):
            tensors[f"{place}.lora_A.weight"] = a.cpu().clone()  # safetensors refuses one tensor under two names
            tensors[f"{place}.lora_B.weight"] = rows.cpu()
    return tensors


def _places(name: str) -> list[str]:
    """Where a peft adapter for the Hugging Face model keeps what adapts this layer of ours."""
    return [f"base_model.model.{part.removesuffix('.weight')}" for part in hugging_face_names(f"{name}.weight")]


def _adapted(decoder: Decoder) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Each adapted layer's plain name, A and B."""
    for name, module in decoder.named_modules():
        if isinstance(module, LoraLayer):
            a, b = (full_tensor(lora[_ADAPTER].weight.detach()) for lora in (module.lora_A, module.lora_B))
            yield name, a, b


def _config(decoder: Decoder) -> Any:
    return cast(Any, decoder).peft_config[_ADAPTER]  # where peft leaves it
