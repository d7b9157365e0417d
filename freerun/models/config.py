"""Which model."""

from typing import Literal

from freerun.core.section import Section, knob
from freerun.models.shape import Backend


class ModelConfig(Section):
    path: str = knob(
        ...,
        "A Hugging Face model folder (config.json, safetensors, tokenizer); or ORG/NAME, or ORG/NAME@REVISION, of the "
        "hub.",
        min_length=1,
    )
    backend: Literal["auto", "own", "transformers"] = knob(
        "auto",
        "Whose code computes the model: Freerun's own, which is faster, or transformers'; auto: Freerun's for "
        "architectures that it has.",
    )
    trust_remote_code: bool = knob(
        False, "Whether code that the model's folder brings may run, where nobody else has code for that architecture."
    )

    @property
    def code(self) -> Backend:
        """Whose code computes it."""
        return "remote" if self.trust_remote_code and self.backend == "auto" else self.backend
