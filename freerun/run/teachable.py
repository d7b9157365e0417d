"""Whether a teacher can teach this policy: found before anything starts."""

from typing import Any

from freerun.core import ConfigError
from freerun.models.hub import find_model
from freerun.models.shape import read_shape
from freerun.models.tokenizer import fingerprint, load_tokenizer
from freerun.models.weight_files import check_weights


def check_teacher(name: str | None, tokenizer: Any, longest: int) -> None:
    """Refuse a model, a folder or on the hub, that cannot teach a policy of that tokenizer, before anything starts.
    What is wrong with a server is found when it is asked."""
    if name is None:
        return
    try:
        folder = find_model(name).folder
        shape = read_shape(folder)
        check_weights(folder, shape)
        theirs = load_tokenizer(folder)
    except ConfigError as error:
        raise ConfigError(f"train.teacher: {error.message.removeprefix('model.path: ')}") from None
    if fingerprint(theirs) != fingerprint(tokenizer):
        raise ConfigError(
            f"train.teacher: {folder} has another tokenizer ({len(theirs.get_vocab())} tokens) than model.path "
            f"({len(tokenizer.get_vocab())}): a teacher must have the same tokens"
        )
    if longest > shape.max_positions:
        raise ConfigError(
            f"train.teacher: {folder} has {shape.max_positions} positions, and prompts with their answers have up "
            f"to {longest} tokens: lower rollout.max_new_tokens, or choose another teacher"
        )
