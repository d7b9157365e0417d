"""Which model a checkpoint belongs to: whatever decides what its weights compute, as plain data in `control.json`.

The weights themselves would often fit another model: a Qwen3's fit a Llama of the same sizes, which has no norms of
queries and keys and computes something else.
"""

from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec

from freerun.config.tree import RunConfig
from freerun.core import ConfigError
from freerun.models.shape import Shape
from freerun.models.tokenizer import fingerprint

_NOT_COMPUTED = ("raw", "max_positions", "eos_token_ids", "counted", "remote")
_NOT_OF_THE_MODEL = ("dtype", "torch_dtype", "transformers_version", "_name_or_path", "use_cache", "architectures")
"""Keys of a `config.json` that change nothing that is computed."""
_TOKENIZER, _CRITIC = "tokenizer", "critic"


def identity(config: RunConfig, shape: Shape, tokenizer: Any) -> dict[str, Any]:
    computed = {field.name: getattr(shape, field.name) for field in fields(Shape) if field.name not in _NOT_COMPUTED}
    train, critic = config.train, config.train.advantages == "gae"
    lora = {"lora.rank": train.lora.rank, "lora.alpha": train.lora.effective_alpha}
    lora |= {"lora.bits": train.lora.bits} if train.lora.rank else {}
    described = computed | {"qk_norm": shape.qk_norm, _TOKENIZER: fingerprint(tokenizer), _CRITIC: critic} | lora
    if shape.backend == "transformers":  # its code reads more of the configuration than we know of
        described |= {f"config.{key}": value for key, value in shape.raw.items() if key not in _NOT_OF_THE_MODEL}
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(described))
    return plain


def refuse_another_model(checkpoint: Path, made_of: dict[str, Any], now: dict[str, Any], model: str) -> None:
    """Names what was recorded and is different now. A checkpoint may have a critic that is no longer wanted."""
    odd = [key for key in made_of if key in now and made_of[key] != now[key] and not (key == _CRITIC and made_of[key])]
    if not odd:
        return
    if odd == [_CRITIC]:
        raise ConfigError(f"{checkpoint} has no critic, so train.advantages=gae cannot be resumed from it: unset it")
    if set(odd) <= {"lora.rank", "lora.alpha", "lora.bits"}:
        was = " and ".join(f"train.{key}={made_of[key]:g}" for key in odd)
        raise ConfigError(f"{checkpoint} was trained with {was}, and can only go on so: leave that as it was")
    named = [f"{key} {made_of[key]} there and {now[key]} here" for key in odd if key not in (_TOKENIZER, _CRITIC)]
    said = ", ".join(named[:3]) or "its tokenizer knows other tokens"
    raise ConfigError(f"{checkpoint} is of another model than {model} ({said}): set model.path to the run's own model")
