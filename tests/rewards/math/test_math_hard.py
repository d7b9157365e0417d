"""What nobody could compute gets a verdict all the same, and soon: a policy must not learn to provoke judgements that
end without one."""

from collections.abc import Iterator
from itertools import product

import pytest

from freerun.commands.judge import Answer, judge_all
from freerun.core import Task
from freerun.rewards.base import Judged, JudgeReason
from freerun.rewards.config import RewardConfig
from freerun.rewards.math import math
from freerun.rewards.service import JudgeService

REFERENCES = ["72", "x^2+1", r"2\sqrt{3}", "(1,2)"]


def judged(reference: str, answer: str) -> Judged:
    return math(Task("t", "", [], reference), rf"\boxed{{{answer}}}")


def hard() -> Iterator[str]:
    for some_of in (powers, factorials, polynomials, functions, deep, long, beyond_our_reader):
        yield from some_of()


def powers() -> Iterator[str]:
    bases = ["9", "2", "1.0000001", "x", "(x+1)", "(a+b+c)", "e", r"\pi", "(-3)", r"\frac{7}{5}"]
    exponents = [
        "9^9",
        "9^{9^9}",
        "9^{9^{9^9}}",
        "100000000",
        "5000",
        "400",
        "-1000000000",
        "10^{10^{10}}",
        "x^{x^{x}}",
    ]
    for base, exponent in product(bases, [*exponents, "1000!"]):
        yield f"{base}^{{{exponent}}}"


def factorials() -> Iterator[str]:
    for n in ["50", "170", "1000", "5000", "20000", "100000", "10^7", "10^{100}", "x", "n", "100!", "(2x)"]:
        yield from (f"{n}!", f"({n})!!", f"(({n})!)!")
        yield from (rf"\binom{{{n}}}{{{k}}}" for k in ["2", "50", "5000", "n", "x", "10^6", f"{n}/2"])


def polynomials() -> Iterator[str]:
    for p, q in product([40, 400, 4000, 40000], repeat=2):
        yield from (f"(x+1)^{{{p}}}(x-1)^{{{q}}}", f"(x+y)^{{{p}}}-(x-y)^{{{q}}}", f"((x+1)^{{{p}}})^{{{q}}}")
        yield from (rf"\sqrt[{p}]{{x^{{{q}}}+1}}", rf"\frac{{x^{{{p}}}-1}}{{x^{{{q}}}-1}}")


def functions() -> Iterator[str]:
    for name in ["sin", "cos", "tan", "exp", "ln", "arctan", "sinh", "log"]:
        for argument in ["10^{1000}", "9^{9^9}", "x^{1000}", "1000!", "10^{10^{100}}", "e^{e^{e^{e}}}"]:
            yield from (rf"\{name}({argument})", rf"\{name}^{{1000}}({argument})", rf"\{name}({argument})+x^{{400}}")


def deep() -> Iterator[str]:
    around = [("(", "x+1", ")"), (r"\frac{", "1", "}{2}"), (r"\sqrt{", "2", "}"), (r"\sin(", "x", ")")]
    around += [
        ("|", "x", "|"),
        ("2^", "2", ""),
        ("-", "5", ""),
        (r"\{1,", "2", r"\}"),
        ("(1,", "2", ")"),
        ("{", "5", "}"),
    ]
    around += [("", "5", "!"), ("", "5", "%"), (r"\log_{", "2", "}8"), ("{", "", ""), ("x^{", "2", "}")]
    for (before, inside, after), depth in product(around, [5, 20, 40, 59, 61, 100, 300, 3000]):
        yield before * depth + inside + after * depth


def long() -> Iterator[str]:
    parts = ["x+", "1,", "7", "1=", "x<", r"(1,2)\cup", "a", r"\sqrt{2}+", r"\frac{1}{2}+", " ", "x_", r"\pm1", "1:"]
    parts += [r"x^{100}\cdot ", r"\binom{x}{5000}+", r"\sin(x^{1000})+", r"(x+1)^{400}\cdot ", r"\text{", "5 or ", "w "]
    for part, times in product(parts, [20, 45, 90, 200, 300, 900, 5_000, 100_000]):
        yield part * times + "2"


def beyond_our_reader() -> Iterator[str]:
    for hardest in [
        *(r"\sum_{n=1}^{100000000} n^n", r"\prod_{n=1}^{1000000} n", r"\int_0^1 x^x \sin(x^x)^{x} dx", "f(f(f(f(x))))"),
        *(r"\lim_{x\to\infty}(1+1/x)^{x^x}", r"\sum_{k=1}^{n}\binom{n}{k}^{5}", r"\prod_{k=1}^{500}(x+k)", r"\zeta(3)"),
        *(r"\gcd(10^{1000},3^{5000})", r"10^{1000000}\bmod 7", r"\lfloor\pi\cdot10^{5000}\rfloor", "|9^{9^9}-9^{9^9}|"),
        *(r"\begin{pmatrix}1&1\\1&0\end{pmatrix}^{1000000}", "x^5-x+1=0", r"\sin x=x^2+e^x", "x^{100}+y^{100}<1"),
        *(r"\{x\mid x^{100}>2\}", r"x^7-3x^5+2x-1\ge0", r"\Gamma(10^{10})", "i^{i^{i^{i}}}", "i^{1000000000000}"),
        *("0^{0^{0}}", r"\frac{1}{0}", r"\tan\frac{\pi}{2}", r"\ln 0", r"\sqrt{-1}^{\sqrt{-1}}", r"\max(9^{9^9},1)"),
    ]:
        yield from (hardest, f"{hardest}+1", f"1+{hardest}", rf"\frac{{{hardest}}}{{2}}")


async def test_every_hard_answer_is_decided() -> None:
    """Through the service, where a judgement that takes too long would end without a reward."""
    answers = [
        Answer(Task(str(n), "", [], REFERENCES[n % 4]), rf"\boxed{{{answer}}}") for n, answer in enumerate(hard())
    ]
    assert len(answers) > 800
    config = RewardConfig(judge="math", workers=2, timeout_s=10.0)
    async with JudgeService(config, retries=0, give_up_after=1 << 30) as service:
        verdicts = await judge_all(service.judge, answers, at_once=16)
    judgements = list(zip(answers, verdicts, strict=True))
    assert [answer.text[:60] for answer, verdict in judgements if verdict.reward is None] == []
    accepted = [(answer.task.answer, answer.text[:60]) for answer, verdict in judgements if verdict.reward]
    assert accepted == []


@pytest.mark.parametrize("reference", [*powers(), *factorials(), *polynomials()])
def test_hard_references_are_decided(reference: str) -> None:
    """By their build, where nothing else can be done; another answer is another number."""
    assert judged(reference, reference).reward == 1
    assert judged(reference, "71").reward == 0


@pytest.mark.parametrize(
    ("reference", "answer"),
    [
        (r"\binom{x}{50}", r"\frac{x!}{50!(x-50)!}"),
        ("(x+1)^{400}(x-1)^{400}", "(x^2-1)^{400}"),
        ("9^{9^{9^9}}", "9^{9^{387420489}}"),
        ("2^{100000}", "4^{50000}"),
        ("1000!", r"1000\cdot 999!"),
        ("(a+b+c+d+e+f+g+h)^{50}", "(h+a+b+c+d+e+f+g)^{50}"),
    ],
)
def test_hard_ones_in_another_notation(reference: str, answer: str) -> None:
    assert judged(reference, answer).reward == 1


@pytest.mark.parametrize(
    ("reference", "answer"),
    [
        (r"\binom{x}{5000}", r"\binom{x}{5000}+1"),
        ("(x+1)^{400}(x-1)^{400}", "(x^2+1)^{400}"),
        ("2^{2024}", "2^{2024}+1"),
        (r"2^{2024}\pi", r"2^{2024}\pi+1"),
        (r"\sqrt{10^{400}+1}", "10^{200}"),
        ("1000!", "1000!+1"),
        ("5", "9^{9^{9^9}}-9^{9^{9^9}}+5"),
    ],
)
def test_a_small_difference_between_large_numbers(reference: str, answer: str) -> None:
    assert judged(reference, answer).reward == 0


def test_what_cannot_be_computed_says_so() -> None:
    assert judged("72", "9^{9^{9^9}}") == Judged(0.0, JudgeReason.UNPARSEABLE, "a power too large to compute")
