"""The judge `math`: does the final answer of a text equal the reference answer, by value rather than by spelling?

`extract.py` finds the answer, `notation.py` normalizes how it is written, `compare.py` compares it with the reference.
Every answer gets a verdict: one that would take too much work to compute is worth 0, and costs milliseconds.
"""

from functools import lru_cache

from freerun.core import RewardError, Task
from freerun.rewards.base import Judged, JudgeReason
from freerun.rewards.math import compare, fallback
from freerun.rewards.math.compound import TooManyItems
from freerun.rewards.math.evaluate import TooExpensive, work_budget
from freerun.rewards.math.extract import MAX_ANSWER_CHARS, TooLong, final_answer, is_prose
from freerun.rewards.math.notation import normalize, without_spaces
from freerun.rewards.math.tokens import Unreadable
from freerun.rewards.plain import reference


def math(task: Task, text: str) -> Judged:
    """1 if the final answer of the text equals that of the reference."""
    expected, sentence = _expected_answer(reference(task))
    if not expected:
        raise RewardError(f"task {task.id}: there is no answer in its reference {task.answer!r:.100}")
    work_budget.refill()
    fallback.time_budget.refill()
    try:
        found = final_answer(text)
        if found is None:
            return Judged(0.0, JudgeReason.UNPARSEABLE, "no answer found in the text")
        answer = normalize(found)
        if compare.same(answer, expected) or (sentence and without_spaces(answer.replace("$", "")) == sentence):
            return Judged(1.0)
        return Judged(0.0, detail=f"the answer was read as {found!r:.100}, and is {expected!r:.100}")
    except TooLong:
        return Judged(0.0, JudgeReason.UNPARSEABLE, f"an answer of more than {MAX_ANSWER_CHARS} characters")
    except RecursionError:
        return Judged(0.0, JudgeReason.UNPARSEABLE, "an expression with too many terms")
    except (TooManyItems, Unreadable, TooExpensive) as error:
        return Judged(0.0, JudgeReason.UNPARSEABLE, str(error))


@lru_cache(maxsize=1024)
def _expected_answer(answer: str) -> tuple[str, str]:
    """The answer in a reference; and the whole reference if it is a sentence, because an answer may repeat it.

    GSM8K ends a worked solution with ####, MATH with a box. Any other reference is itself the answer.
    """
    is_solution = "####" in answer or "\\boxed" in answer
    if is_solution or (is_prose(answer) and ("$" in answer or "answer" in answer.lower())):
        sentence = "" if is_solution else without_spaces(normalize(answer).replace("$", ""))
        return normalize(final_answer(answer) or answer), sentence
    return normalize(answer), ""


def warm_up() -> None:
    """Fill the caches of the libraries used, which takes a second, so that workers forked later have them filled."""
    fallback.warm_up()
    for answer in (r"\frac{\sqrt{2}}{2}+\pi", "x^2-1", "10 cm", "(1,2)"):
        compare.same(answer, "x+1")
