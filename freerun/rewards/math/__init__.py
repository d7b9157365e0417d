"""The judge `math`: is the final answer of a text equal to the reference, by value and not by spelling?

`extract.py` finds the answer, `notation.py` brings it to one way of writing, `compare.py` compares it with the
reference. Every answer gets a verdict: what cannot be computed in bounded work is worth 0, and costs milliseconds.
"""

from functools import lru_cache

from freerun.core import RewardError, Task
from freerun.rewards.base import Judged, JudgeReason
from freerun.rewards.math import compare, library
from freerun.rewards.math.computing import Hard, budget
from freerun.rewards.math.extract import LONGEST, TooLong, final_answer, is_prose
from freerun.rewards.math.notation import plain, spelled
from freerun.rewards.math.shapes import TooMany
from freerun.rewards.math.tokens import Unreadable
from freerun.rewards.plain import reference


def math(task: Task, text: str) -> Judged:
    """1 if the final answer of the text equals that of the reference."""
    right, whole = _right_answer(reference(task))
    if not right:
        raise RewardError(f"task {task.id}: there is no answer in its reference {task.answer!r:.100}")
    budget.refill()
    library.clock.refill()
    try:
        found = final_answer(text)
        if found is None:
            return Judged(0.0, JudgeReason.UNPARSEABLE, "no answer found in the text")
        answer = plain(found)
        if compare.same(answer, right) or (whole and spelled(answer.replace("$", "")) == whole):
            return Judged(1.0)
        return Judged(0.0, detail=f"the answer was read as {found!r:.100}, and is {right!r:.100}")
    except TooLong:
        return Judged(0.0, JudgeReason.UNPARSEABLE, f"an answer of more than {LONGEST} characters")
    except RecursionError:
        return Judged(0.0, JudgeReason.UNPARSEABLE, "an expression of too many parts")
    except (TooMany, Unreadable, Hard) as error:
        return Judged(0.0, JudgeReason.UNPARSEABLE, str(error))


@lru_cache(maxsize=1024)
def _right_answer(answer: str) -> tuple[str, str]:
    """GSM8K ends a worked solution with ####, MATH with a box; any other reference is the answer as it stands. Of a
    sentence that is read as its formula, also the whole: who gives the same sentence is right."""
    worked_out = "####" in answer or "\\boxed" in answer
    if worked_out or (is_prose(answer) and ("$" in answer or "answer" in answer.lower())):
        return plain(final_answer(answer) or answer), "" if worked_out else spelled(plain(answer).replace("$", ""))
    return plain(answer), ""


def warm_up() -> None:
    """Fill the tables of its libraries, which takes a second: workers, forked later, then have them already."""
    library.warm_up()
    for answer in (r"\frac{\sqrt{2}}{2}+\pi", "x^2-1", "10 cm", "(1,2)"):
        compare.same(answer, "x+1")
