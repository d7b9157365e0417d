"""The loop's own knobs."""

from collections.abc import Callable
from typing import ClassVar, Literal

from freerun.control.bound import Bound, Drop, Mask, Wait
from freerun.core.section import Section, knob


class ControlConfig(Section):
    steps: int = knob(100, "Training steps; fewer if `epochs` ends first, or sft.until is reached.", ge=1)
    epochs: int | None = knob(None, "Passes over the data; empty repeats it until `steps` are done.", ge=1)
    groups_per_step: int = knob(32, "Tasks trained on in one step; in supervised training, examples.", ge=1)
    max_staleness: int = knob(4, "How many versions old a trained token may be. 0 is synchronous training.", ge=0)
    when_stale: Literal["wait", "mask", "drop"] = knob(
        "wait", "What gives way at that bound: the trainer waits, old tokens carry no loss, or their group is dropped."
    )
    drop_no_signal: bool = knob(False, "Drop groups whose rewards are all equal, and run others in their place.")
    restarts: int = knob(
        100,
        "How often the trainer may be started again when it dies, from the newest checkpoint; 0: it ends the run.",
        ge=0,
    )
    skip_solved: int = knob(
        0,
        "Most passes over the data that skip a task once all its answers have passed (evaluate.pass_reward): one, and "
        "when they pass again, two, four and so on; 0: it is asked in every pass.",
        ge=0,
    )

    retries: ClassVar[int] = 2
    """How often a group is run again when the engine fails it, before it is dropped."""
    give_up_after: ClassVar[int] = 200
    """The run stops when this many groups in a row failed, or had no signal before anything was trained on; later, an
    entire pass over the data without signal ends it."""
    patience_s: ClassVar[float] = 60.0
    """Whoever waits longer than this says what for."""

    def bound(self) -> Bound:
        policies: dict[str, Callable[[int], Bound]] = {"wait": Wait, "mask": Mask, "drop": Drop}
        return policies[self.when_stale](self.max_staleness)


class EvaluateConfig(Section):
    every: int = knob(0, "Evaluate on `held_out` every so many steps, beside generation; 0 never does.", ge=0)
    samples: int = knob(1, "Answers sampled for each held-out task: the k of pass@k.", ge=1)
    temperature: float = knob(1.0, "Sampling temperature of evaluation; 0 takes the likeliest token.", ge=0)
    pass_reward: float = knob(1.0, "An answer passes when its reward is at least this.")


class DpoConfig(Section):
    beta: float = knob(0.1, "How strongly it is held to the model it begins with: the β of DPO.", gt=0)


class SftConfig(Section):
    until: float | None = knob(
        None,
        "Stop once pass@1 on `held_out` reaches this; it is measured every evaluate.every steps, or 50.",
        gt=0,
        le=1,
    )
