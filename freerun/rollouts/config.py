"""How answers are sampled."""

from typing import Any

from pydantic import field_validator, model_validator

from freerun.core.resolve import Kind
from freerun.core.section import Section, knob
from freerun.engines.base import Sampling

SINGLE_TURN = "single_turn"
ROLLOUTS = Kind("rollout", "Class", "freerun.rollouts", {SINGLE_TURN: "freerun.rollouts.single_turn:SingleTurn"})
NOT_OF_SAMPLING = ("kind", "group_size")


class RolloutConfig(Section):
    kind: str | dict[str, Any] = knob(
        SINGLE_TURN,
        "single_turn, or your own: path/to/file.py:Class or package.module:Class, or {name: path/to/file.py:Class, its "
        "options}; see docs/api.md.",
    )
    group_size: int = knob(8, "Answers sampled for each task; their rewards are compared with each other.", ge=1)
    max_new_tokens: int = knob(256, "Longest answer, in tokens; longer ones are cut and count as truncated.", ge=1)
    temperature: float = knob(1.0, "Sampling temperature; the trainer uses it too.", ge=1e-3)
    top_p: float = knob(1.0, "Sample from the smallest set of tokens with this probability. Below 1 biases training.",
                        gt=0, le=1)  # fmt: skip
    top_k: int = knob(0, "Sample from the k likeliest tokens; 0 keeps all. Other values bias training.", ge=0)
    stop: tuple[str, ...] = knob((), "Strings that end an answer (kept in it), besides the model's own end token.")

    @property
    def name(self) -> str:
        return self.kind if isinstance(self.kind, str) else str(self.kind["name"])

    @property
    def options(self) -> dict[str, Any]:
        """Those of the user's own rollout: the fields of its class."""
        return {} if isinstance(self.kind, str) else {key: self.kind[key] for key in self.kind if key != "name"}

    @field_validator("kind")
    @classmethod
    def _has_a_name(cls, kind: str | dict[str, Any]) -> str | dict[str, Any]:
        if isinstance(kind, dict) and not isinstance(kind.get("name"), str):
            raise ValueError("it must be a name, or {name: FILE.py:NAME, its options}")
        return kind

    @model_validator(mode="after")
    def _no_empty_stop(self) -> "RolloutConfig":
        if "" in self.stop:
            raise ValueError("rollout.stop holds an empty string, which would end every answer at once: remove it")
        return self

    def sampling(self, **changes: object) -> Sampling:
        fields = {name: getattr(self, name) for name in type(self).model_fields if name not in NOT_OF_SAMPLING}
        return Sampling(**(fields | changes))
