"""Which model."""

from freerun.core.section import Section, knob
from freerun.models.shape import Backend


class ModelConfig(Section):
    path: str = knob(
        ...,
        "A Hugging Face model folder (config.json, safetensors, tokenizer); or ORG/NAME, or ORG/NAME@REVISION, of the "
        "hub.",
        min_length=1,
    )
    backend: Backend = knob(
        "auto",
        "Whose code computes the model: Freerun's own, which is faster, or transformers'; auto: Freerun's for "
        "architectures that it has.",
    )
