"""The loop's own knobs."""

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
    retries: int = knob(2, "How often a group is run again when the engine fails it, before it is dropped.", ge=0)
    give_up_after: int = knob(200, "Stop the run when this many groups in a row were dropped.", ge=1)
    patience_s: float = knob(60.0, "Whoever waits longer than this says what for.", gt=0)

    def bound(self) -> Bound:
        return {"wait": Wait, "mask": Mask, "drop": Drop}[self.when_stale](self.max_staleness)
