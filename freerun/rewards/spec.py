"""What `reward.judge` may say: the name of a judge, a judge with its options, or a list of such, added up by weight.

    judge: math
    judge: {name: model, base_url: http://localhost:8000/v1, model: qwen3-8b, timeout_s: 30}
    judge: [math, {name: format, weight: 0.2, tags: [think, answer]}, my_rewards.py:kindness]

Promises parts, or one line that says what is wrong. Knows no judge: which there are is in `judges.py`.
"""

from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Annotated, Any

import msgspec

from freerun.core import ConfigError

JudgeSetting = str | dict[str, Any] | list[Any]
"""As it stands in the file."""


@dataclass(frozen=True, slots=True)
class JudgeSpec:
    """One judge of a reward. What else the user wrote beside these keys are the judge's own options."""

    name: str
    weight: float = 1.0
    """The reward is the sum of the parts' rewards, each times its weight."""
    workers: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Processes for this part alone; without, it shares those of the other parts."""
    timeout_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """A deadline for this part alone; without, it shares that of the other parts."""
    cache: bool | None = None
    """Whether a verdict is given again for the same task and text; without, a model's is."""
    options: dict[str, Any] = field(default_factory=dict)


OWN_KEYS = tuple(own.name for own in fields(JudgeSpec) if own.name != "options")


def parse_judge(judge: JudgeSetting) -> list[JudgeSpec]:
    if isinstance(judge, list):
        if not judge:
            raise ConfigError("reward.judge is an empty list: name a judge, such as math")
        return [_part(one) for one in judge]
    return [_part(judge)]


def typed(judge: Any) -> Any:
    """One judge as it was written, but with numbers for numbers: YAML reads 1e-3 as a text."""
    part = _part(judge)
    return (
        {key: getattr(part, key) if key in OWN_KEYS else value for key, value in judge.items()}
        if isinstance(judge, dict)
        else judge
    )


def _part(judge: Any) -> JudgeSpec:
    if isinstance(judge, str) and judge:
        return JudgeSpec(judge)
    if not isinstance(judge, dict) or not isinstance(judge.get("name"), str):
        raise ConfigError(
            f"reward.judge: {judge!r:.80} is neither a judge nor {{name: JUDGE, weight: …, its options}}, nor a list "
            "of such"
        )
    own = {key: value for key, value in judge.items() if key in OWN_KEYS}
    options = {str(key): value for key, value in judge.items() if key not in OWN_KEYS}
    part: JudgeSpec = convert({**own, "options": options}, JudgeSpec, judge["name"])
    if not isfinite(part.weight):
        raise ConfigError(f"the judge {part.name}: weight must be a finite number, not {part.weight}")
    return part


def convert(values: dict[str, Any], kind: type[Any], judge: str) -> Any:
    """A dataclass of these values, numbers in quotes included; its complaint in one line."""
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        what, _, where = str(error).replace("`", "").partition(" - at $.")
        raise ConfigError(f"the judge {judge}: {where + ': ' if where else ''}{what}") from None
