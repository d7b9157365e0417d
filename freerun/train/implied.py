"""What an objective implies for the settings that the user left alone. Importable without torch."""

from collections.abc import Mapping
from typing import Any

from freerun.train.losses import find_objective

DEFAULT_OBJECTIVE = "decoupled_ppo"
NOT_WITHIN_GROUPS = ("batch", "gae", "none")
"""Advantages that do not compare an answer with the others of its group."""


def implied(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their dotted keys; `given` are those that the user set, in the same form."""
    name = given.get("train.objective", DEFAULT_OBJECTIVE)
    if not isinstance(name, str):  # a mistake, which is told when all is checked
        return {}
    implies = dict(find_objective(name).implies)
    settled = implies | dict(given)
    if settled.get("train.proximal") == "behavior":  # corrections go by π_proximal / π_behavior, which is 1 then
        implies["train.corrections"] = []
    if settled.get("train.advantages") in NOT_WITHIN_GROUPS:  # groups of equal rewards do teach then
        implies.pop("control.drop_no_signal", None)
    return {key: value for key, value in implies.items() if not _is_given(key, given)}


def _is_given(key: str, given: Mapping[str, Any]) -> bool:
    """Whether it is set itself, or a section that holds it, or something in it."""
    return any(key == other or key.startswith(f"{other}.") or other.startswith(f"{key}.") for other in given)
