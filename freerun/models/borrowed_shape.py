"""The sizes of a model whose code is transformers', by its configuration class, which knows every default."""

from typing import Any

from freerun.core import ConfigError


def borrowed_sizes(raw: dict[str, Any], remote: str | None = None) -> dict[str, Any]:
    """Those that a `Shape` is made of."""
    config = config_of(raw, remote)
    try:
        hidden, heads = config.hidden_size, config.num_attention_heads
        return {
            "vocab_size": config.vocab_size,
            "hidden": hidden,
            "layers": config.num_hidden_layers,
            "heads": heads,
            "kv_heads": getattr(config, "num_key_value_heads", None) or heads,
            "head_dim": getattr(config, "head_dim", None) or hidden // heads,
            "ffn": getattr(config, "intermediate_size", None) or 4 * hidden,
            "tied": bool(config.tie_word_embeddings),
            "max_positions": _positions(config),
        }
    except (AttributeError, TypeError) as error:
        raise ConfigError(f"{raw['model_type']} is no model of text alone ({error})") from None


def _positions(config: Any) -> int:
    """Up to where frequencies of rotations are the same for all. Beyond, some depend on the longest sequence that is
    computed at a time, which others in the same row would feel."""
    most: int = getattr(config, "max_position_embeddings", None) or 4096
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope, *(part for part in rope.values() if isinstance(part, dict))]
    if any(kind.get("rope_type") == "longrope" for kind in kinds):
        first = [kind.get("original_max_position_embeddings") for kind in kinds]
        return int(min([most, *(length for length in first if length)]))
    return most


def is_known(raw: dict[str, Any]) -> bool:
    """Whether transformers has code for it."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    family = raw.get("model_type", "")
    return isinstance(family, str) and family in CONFIG_MAPPING


def config_of(raw: dict[str, Any], remote: str | None = None) -> Any:
    """transformers' configuration; by the code of the folder `remote`, where that is given."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING, AutoConfig

    family = raw.get("model_type", "")
    if remote:
        try:
            return AutoConfig.from_pretrained(remote, trust_remote_code=True, local_files_only=True)
        except Exception as error:  # whatever their code does
            said = " ".join(str(error).split())[:160]
            raise ConfigError(f"the folder's own code cannot read this {family} configuration: {said}") from None
    if not is_known(raw):
        from transformers import __version__

        fix = f"take another model, or a newer transformers (this is {__version__})"
        if raw.get("auto_map"):
            fix = (
                "its folder brings code of its own; set model.trust_remote_code=true if you trust it "
                "(--trust-remote-code of `freerun serve`)"
            )
        raise ConfigError(f"model_type {family!r} is not known, neither to Freerun nor to transformers: {fix}")
    try:
        return CONFIG_MAPPING[family].from_dict(dict(raw))
    except Exception as error:  # whatever the class finds wrong
        said = " ".join(str(error).split())[:160]
        raise ConfigError(f"transformers cannot read this {family} configuration: {said}") from None
