"""The `rewards` section: who judges answers, in how many processes, and for how long."""

from freerun.core.section import Section, knob


class RewardConfig(Section):
    judge: str = knob(
        "exact", "exact, number, math or reasoning-gym; or your own: path/to/file.py:function, given (task, text)."
    )
    workers: int = knob(1, "How many processes judge at the same time.", ge=1)
    timeout_s: float = knob(10.0, "A judgement that takes longer is killed and its sample not trained on.", gt=0)
    give_up_after: int = knob(32, "End the run when so many judgements in a row have failed.", ge=1)
