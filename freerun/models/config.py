"""Which model."""

from freerun.core.section import Section, knob


class ModelConfig(Section):
    path: str = knob(
        ...,
        "A Hugging Face model folder (config.json, safetensors, tokenizer); or ORG/NAME, or ORG/NAME@REVISION, of the "
        "hub.",
        min_length=1,
    )
