"""The judge `code`: runs the program in an answer against its task's tests, in a sandbox.

An answer that fails, crashes, hangs or misbehaves earns 0, with reason OK and a detail. One with no program in it earns
0 with reason UNPARSEABLE. Only a task without usable tests and a machine without a sandbox are failures of the judge.
"""

import os
import shutil
import signal
import time
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import msgspec

from freerun.core import ConfigError, RewardError, Task
from freerun.rewards.base import Judged, JudgeReason
from freerun.rewards.code.programs import AnswerProgram, find_program, prompt_program, unfinished_functions
from freerun.rewards.code.testcases import AssertTests, CallTests, InputOutputTests, check_tests, find_tests
from freerun.rewards.plain import question
from freerun.sandbox.base import Ending, FunctionTests, Limits, ScriptResult
from freerun.sandbox.inside.testrunner import is_close
from freerun.sandbox.sandbox import Sandbox

MAX_ANSWER_CHARS = 1_000_000
"""No sensible program is longer, and reading one would slow down its judge."""
MAX_EXTRA_OUTPUT_BYTES = 100_000
"""How much longer than expected an output may be and still be compared: it is held in the judge's own memory."""


class Language(NamedTuple):
    file: str
    requires: str
    """The executable that must be installed."""
    command: tuple[str, ...]


LANGUAGES = {
    "bash": Language("main.sh", "bash", ("bash", "main.sh")),
    "c": Language("main.c", "gcc", ("sh", "-c", "gcc -O2 -o main main.c -lm && exec ./main")),
    "cpp": Language("main.cpp", "g++", ("sh", "-c", "g++ -O2 -o main main.cpp && exec ./main")),
    "javascript": Language("main.js", "node", ("node", "main.js")),
    "lua": Language("main.lua", "lua", ("lua", "main.lua")),
    "perl": Language("main.pl", "perl", ("perl", "main.pl")),
    "php": Language("main.php", "php", ("php", "main.php")),
    "ruby": Language("main.rb", "ruby", ("ruby", "main.rb")),
}
"""The languages besides Python, for tests by standard input and output. A task names one in `extra["language"]`."""


class Score(NamedTuple):
    passed: int
    total: int
    detail: str = ""
    reason: JudgeReason = JudgeReason.OK


@dataclass(frozen=True)
class Code:
    """The judge with its options. The limits apply to all tests of an answer together."""

    fraction: bool = False
    """The reward is the fraction of tests that pass, instead of 1 if all pass and 0 otherwise."""
    cpu_s: Annotated[float, msgspec.Meta(gt=0)] = 6.0
    wall_s: Annotated[float, msgspec.Meta(gt=0)] = 8.0
    """Keep it below the judge's `timeout_s`, so that a program that hangs earns 0 instead of failing the judgement."""
    memory_mb: Annotated[int, msgspec.Meta(ge=64)] = 512

    def check(self, timeout_s: float) -> None:
        """Refuse a deadline that programs may outlast, and a machine on which no sandbox starts."""
        if self.wall_s >= timeout_s:
            raise ConfigError(
                f"the judge code gives programs {self.wall_s:g} s, but is itself killed after {timeout_s:g} s: raise "
                f"timeout_s above {self.wall_s:g}, or lower the judge's wall_s, as in {{name: code, wall_s: "
                f"{0.8 * timeout_s:g}}}"
            )
        with Sandbox():
            pass

    def check_task(self, task: Task) -> None:
        """RewardError for a task whose tests cannot be run or would let every answer pass."""
        tests = find_tests(task)
        check_tests(task, tests, prompt_program(question(task)))

    def __call__(self, task: Task, text: str) -> Judged:
        score = self._score(task, text)
        reward = score.passed / score.total if self.fraction else float(score.passed == score.total)
        return Judged(reward, score.reason, score.detail)

    @property
    def _limits(self) -> Limits:
        return Limits(cpu_s=self.cpu_s, wall_s=self.wall_s, memory_mb=self.memory_mb)

    def _score(self, task: Task, text: str) -> Score:
        tests = find_tests(task)
        prompt = prompt_program(question(task))
        check_tests(task, tests, prompt)
        total = len(tests.cases)
        if len(text) > MAX_ANSWER_CHARS:
            return Score(0, total, f"an answer of {len(text):,} characters")
        name = str(task.extra.get("language", "python")).lower()
        if name != "python" and (name not in LANGUAGES or not isinstance(tests, InputOutputTests)):
            raise RewardError(f"task {task.id}: programs in {name} cannot be tested like this")
        if isinstance(tests, InputOutputTests):
            program = find_program(text, name)
            if program.sources:
                return self._run_scripts(program, tests, LANGUAGES.get(name))
        else:
            program = find_program(text, entry=tests.entry or "", prompt=prompt)
            if program.sources:
                return self._test_functions(program, tests, prompt)
        return Score(0, total, "there is no program in the answer", JudgeReason.UNPARSEABLE)

    def _test_functions(self, program: AnswerProgram, tests: AssertTests | CallTests, prompt: str) -> Score:
        if isinstance(tests, AssertTests):
            defines = None if tests.entry else tests.defines
            program_names = [*unfinished_functions(prompt), *([defines] if defines else [])]
            spec = FunctionTests(tests.entry, defines, program_names, prompt, setup=tests.setup, tests=tests.cases)
        else:
            spec = FunctionTests(tests.entry, header=prompt, calls=tests.cases)
        result = _sandbox().run_tests(program.sources, spec, self._limits)
        total = len(tests.cases)
        if result.unreadable:
            return _unreadable(program, total, result.unreadable)
        passed = sum(result.results)
        if passed == total and not result.finished:
            passed = 0  # the tests did not reach the end that would have confirmed it
        detail = result.detail
        if result.ending is not Ending.EXITED:
            ending = _describe_ending(result.ending, result.exit_code, self._limits)
            detail = f"{detail}: {ending}".removeprefix(": ")
        return Score(passed, total, detail or ("" if result.finished else "its tests did not reach their end"))

    def _run_scripts(self, program: AnswerProgram, tests: InputOutputTests, language: Language | None) -> Score:
        """Run the program anew for each test."""
        if language is not None and shutil.which(language.requires) is None:
            raise RewardError(f"judging this task needs {language.requires}, which is not installed")
        command, file = (language.command, language.file) if language else ((), "main.py")
        limits, passed, detail, total = self._limits, 0, "", len(tests.cases)
        for number, (given, expected) in enumerate(tests.cases, 1):
            began = time.monotonic()
            stdin = given.encode(errors="replace")
            result = _sandbox().run_script(program.sources, stdin, limits, command=command, file=file)
            if result.unreadable:
                return _unreadable(program, total, result.unreadable)
            mistake = self._find_mistake(result, expected)
            passed += not mistake
            detail = detail or (mistake and f"test {number} of {total}: {mistake}")
            used_s = time.monotonic() - began
            limits = replace(limits, cpu_s=limits.cpu_s - result.cpu_s, wall_s=limits.wall_s - used_s)
            out_of_time = result.ending in (Ending.CPU, Ending.WALL) or min(limits.cpu_s, limits.wall_s) <= 0
            if out_of_time or (mistake and not self.fraction):
                break
        return Score(passed, total, detail or ("" if passed == total else "it ran out of time"))

    def _find_mistake(self, result: ScriptResult, expected: str) -> str:
        """What is wrong with a script's result; "" if it exited normally and printed what was expected."""
        if result.ending is not Ending.EXITED or result.exit_code != 0:
            last_line = result.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            return f"{_describe_ending(result.ending, result.exit_code, self._limits)} {last_line[:300]}".strip()
        if len(result.stdout) > 4 * len(expected) + MAX_EXTRA_OUTPUT_BYTES:
            return f"it printed {len(result.stdout):,} bytes"
        printed = result.stdout.decode(errors="replace")
        return "" if same_output(printed, expected) else f"it printed {_short(printed)}, not {_short(expected)}"


_sandboxes: dict[int, Sandbox] = {}


def _sandbox() -> Sandbox:
    """The sandbox of this process; a forked worker must not use its parent's. It ends when its process does."""
    if os.getpid() not in _sandboxes:
        _sandboxes[os.getpid()] = Sandbox()
    return _sandboxes[os.getpid()]


def same_output(printed: str, expected: str) -> bool:
    """Whether the words are the same, however they are spaced. Decimal numbers may differ by a millionth."""
    words, expected_words = printed.split(), expected.split()
    return len(words) == len(expected_words) and all(map(_same_word, words, expected_words))


def _same_word(word: str, expected: str) -> bool:
    if word == expected:
        return True
    if "." not in expected or len(word) > 40:  # whole numbers and words must match exactly
        return False
    try:
        return is_close(float(word), float(expected))
    except ValueError:
        return False


def _unreadable(program: AnswerProgram, total: int, why: str) -> Score:
    reason = JudgeReason.OK if program.fenced else JudgeReason.UNPARSEABLE
    return Score(0, total, f"not valid Python: {why}", reason)


def _describe_ending(ending: Ending, exit_code: int | None, limits: Limits) -> str:
    match ending:
        case Ending.EXITED:
            return f"it ended with exit code {exit_code}"
        case Ending.SIGNAL:
            name = signal.strsignal(-exit_code) if exit_code else None
            return f"it was ended by a signal ({name or exit_code or 'not known'})"
        case Ending.CPU:
            return f"it used more than {limits.cpu_s:g} s of processor time"
        case Ending.WALL:
            return f"it took longer than {limits.wall_s:g} s"
        case Ending.MEMORY:
            return f"it used more than {limits.memory_mb} MB of memory"
        case Ending.OUTPUT:
            return f"it wrote more than {limits.file_mb} MB"


def _short(text: str) -> str:
    text = text.strip()
    return repr(text if len(text) <= 100 else f"{text[:100]}…")
