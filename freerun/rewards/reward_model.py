"""The judge `reward_model`: its options, and what is wrong with a folder that is to be one. No torch: the model itself
runs in a process of its own (`model_pool.py`), to which all judging by it goes."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from freerun.core import RewardError, Task
from freerun.core.text import did_you_mean
from freerun.models.hub import cached_model, find_model

_CLASSIFIER = "ForSequenceClassification"


@dataclass(frozen=True)
class RewardModel:
    """The logit that a sequence classifier gives to the conversation."""

    path: str
    """A Hugging Face folder, or ORG/NAME of the hub."""
    label: str | int | None = None
    """Whose logit counts, where the model has several labels: a name or a number."""
    labels: dict[str, float] = field(default_factory=dict)
    """Or several labels with weights: the reward is the weighted sum of their logits."""

    def __post_init__(self) -> None:
        if self.label is not None and self.labels:
            raise ValueError("has both label and labels: keep one")
        if (found := cached_model(self.path)) is not None:
            self.weights(label_names(found.folder))

    def __call__(self, task: Task, text: str) -> float:
        raise RewardError("a reward model judges in a process of its own")

    @property
    def folder(self) -> Path:
        """Downloaded from the hub if need be."""
        return find_model(self.path).folder

    def weights(self, names: list[str]) -> list[float]:
        """What each label's logit counts."""
        if not self.labels and self.label is None:
            if len(names) > 1:
                raise ValueError(f"{self.path} has the labels {', '.join(names)}: choose by label or labels")
            return [1.0]
        chosen: dict[str | int, float] = {self.label or 0: 1.0}
        if self.labels:
            chosen = dict(self.labels.items())
        weights = [0.0] * len(names)
        for label, weight in chosen.items():
            weights[_place(label, names, self.path)] = weight
        return weights


def _place(label: str | int, names: list[str], path: str) -> int:
    if label in names:
        return names.index(str(label))
    if str(label).isdecimal() and int(label) < len(names):
        return int(label)
    raise ValueError(f"{path} has no label {label!r}; it has {', '.join(names)}{did_you_mean(str(label), names)}")


def label_names(folder: Path) -> list[str]:
    """By its config.json; refuses a folder that is no classifier."""
    raw = read_config(folder)
    kinds = raw.get("architectures")
    kind = kinds[0] if isinstance(kinds, list) and kinds else "none"
    if _CLASSIFIER not in str(kind):
        raise ValueError(
            f"{folder} is no sequence classifier (its config.json names {kind}): give a reward model, whose "
            f"architecture is a …{_CLASSIFIER}"
        )
    names = raw.get("id2label")
    if isinstance(names, dict) and names:
        return [str(names[key]) for key in sorted(names, key=int)]
    count = raw.get("num_labels", 2)
    return [f"LABEL_{number}" for number in range(count if isinstance(count, int) else 2)]


def read_config(folder: Path) -> dict[str, Any]:
    try:
        raw = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        raise ValueError(f"path: {folder} is no model's folder: it has no config.json that can be read") from None
    if not isinstance(raw, dict):
        raise ValueError(f"path: {folder}/config.json is no JSON object")
    return raw
