"""The loop's own knobs."""

from collections.abc import Callable
from typing import Literal

from freerun.control.bound import Bound, Drop, Mask, Wait
from freerun.core.section import Section, knob


class ControlConfig(Section):
    steps: int = knob(100, "Training steps; fewer if `epochs` ends first.", ge=1)
    epochs: int | None = knob(None, "Passes over the data; empty repeats it until `steps` are done.", ge=1)
    groups_per_step: int = knob(32, "Tasks trained on in one step.", ge=1)
    max_staleness: int = knob(4, "How many versions old a trained token may be. 0 is synchronous training.", ge=0)
    when_stale: Literal["wait", "mask", "drop"] = knob(
        "wait", "What gives way at that bound: the trainer waits, old tokens carry no loss, or their group is dropped."
    )
    drop_no_signal: bool = knob(False, "Drop groups whose rewards are all equal, and run others in their place.")
    rest_solved: int = knob(
        0,
        "Passes over the data that a task sits out at most once all its answers have passed (evaluate.pass_reward): "
        "one, and when they pass again, two, four and so on; 0: it is asked in every pass.",
        ge=0,
    )
    retries: int = knob(2, "How often a group is run again when the engine fails it, before it is dropped.", ge=0)
    give_up_after: int = knob(
        200,
        "Stop the run when this many groups in a row failed, or had no signal before anything was trained on; later, a "
        "whole pass over the data without signal ends it.",
        ge=1,
    )
    patience_s: float = knob(60.0, "Whoever waits longer than this says what for.", gt=0)

    def bound(self) -> Bound:
        policies: dict[str, Callable[[int], Bound]] = {"wait": Wait, "mask": Mask, "drop": Drop}
        return policies[self.when_stale](self.max_staleness)


class EvaluateConfig(Section):
    every: int = knob(0, "Evaluate on `held_out` every so many steps, beside generation; 0 never does.", ge=0)
    samples: int = knob(1, "Answers sampled for each held-out task: the k of pass@k.", ge=1)
    temperature: float = knob(1.0, "Sampling temperature of evaluation; 0 takes the likeliest token.", ge=0)
    pass_reward: float = knob(1.0, "An answer passes when its reward is at least this.")


class SftConfig(Section):
    steps: int = knob(1_000, "Most supervised steps.", ge=1)
    batch_size: int = knob(64, "Examples in one supervised step.", ge=1)
    until: float | None = knob(None, "Stop once pass@1 on `held_out` reaches this.", gt=0, le=1)
    check_every: int = knob(50, "How often, in steps, to look whether it has.", ge=1)
