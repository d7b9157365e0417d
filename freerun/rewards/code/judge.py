"""The judge of programs: an answer is run against its task's tests, in a sandbox.

An answer that fails, crashes, hangs or misbehaves has earned its 0: reason OK, and a detail. One with no program in it
has too: UNPARSEABLE. Only a task without usable tests, and a machine without a sandbox, are failures of the judging.
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
from freerun.rewards.code.programs import Reading, header, left_open, read
from freerun.rewards.code.testcases import Asserts, Calls, Scripts, check_tests, find_tests
from freerun.rewards.plain import question
from freerun.sandbox.base import Ending, FunctionTests, Limits, ScriptResult
from freerun.sandbox.inside.testrunner import is_close
from freerun.sandbox.sandbox import Sandbox

LONGEST_ANSWER = 1_000_000
"""Characters. No program that a policy writes is as long, and reading one would cost its own judge."""
LONGEST_REST = 100_000
"""Bytes of output beyond what is wanted that are still looked at: the judge's memory is not the program's to fill."""


class Language(NamedTuple):
    file: str
    needs: str
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
"""Besides Python, where installed, for tests by standard input and output. A task names one in `extra["language"]`."""


class Score(NamedTuple):
    passed: int
    total: int
    detail: str = ""
    reason: JudgeReason = JudgeReason.OK


@dataclass(frozen=True)
class Code:
    """The judge with its options. All tests of an answer together have the time."""

    fraction: bool = False
    """The share of tests that are passed, instead of 1 for all of them and else 0."""
    cpu_s: Annotated[float, msgspec.Meta(gt=0)] = 6.0
    wall_s: Annotated[float, msgspec.Meta(gt=0)] = 8.0
    """Keep it below the judge's `timeout_s`: then a program that hangs is worth 0, and not a judgement that failed."""
    memory_mb: Annotated[int, msgspec.Meta(ge=64)] = 512

    def check(self, timeout_s: float) -> None:
        """Refuse a deadline that its programs may outlast; and a machine without a sandbox, by starting one."""
        if self.wall_s >= timeout_s:
            raise ConfigError(
                f"the judge code gives programs {self.wall_s:g} s, and is itself killed after {timeout_s:g} s: raise "
                f"timeout_s above {self.wall_s:g}, or lower the judge's wall_s, as in {{name: code, wall_s: "
                f"{0.8 * timeout_s:g}}}"
            )
        with Sandbox():
            pass

    def check_task(self, task: Task) -> None:
        """Refuse, with RewardError, one whose tests cannot be run or would let every answer pass."""
        tests = find_tests(task)
        check_tests(task, tests, header(question(task)))

    def __call__(self, task: Task, text: str) -> Judged:
        score = self._score(task, text)
        reward = score.passed / score.total if self.fraction else float(score.passed == score.total)
        return Judged(reward, score.reason, score.detail)

    @property
    def _limits(self) -> Limits:
        return Limits(cpu_s=self.cpu_s, wall_s=self.wall_s, memory_mb=self.memory_mb)

    def _score(self, task: Task, text: str) -> Score:
        tests = find_tests(task)
        check_tests(task, tests, header(question(task)))
        total = len(tests.cases)
        if len(text) > LONGEST_ANSWER:
            return Score(0, total, f"an answer of {len(text):,} characters")
        name = str(task.extra.get("language", "python")).lower()
        if name != "python" and (name not in LANGUAGES or not isinstance(tests, Scripts)):
            raise RewardError(f"task {task.id}: programs in {name} cannot be tested like this")
        if isinstance(tests, Scripts):
            reading = read(text, name)
            if reading.sources:
                return self._run_scripts(reading, tests, LANGUAGES.get(name))
        else:
            prompt = header(question(task))
            reading = read(text, entry=tests.entry or "", prompt=prompt)
            if reading.sources:
                return self._examine(reading, tests, prompt)
        return Score(0, total, "there is no program in the answer", JudgeReason.UNPARSEABLE)

    def _examine(self, reading: Reading, tests: Asserts | Calls, prompt: str) -> Score:
        if isinstance(tests, Asserts):
            defines = None if tests.entry else tests.defines
            program_names = [*left_open(prompt), *([defines] if defines else [])]
            spec = FunctionTests(tests.entry, defines, program_names, prompt, setup=tests.setup, tests=tests.cases)
        else:
            spec = FunctionTests(tests.entry, header=prompt, calls=tests.cases)
        examined = _sandbox().run_tests(reading.sources, spec, self._limits)
        total = len(tests.cases)
        if examined.unreadable:
            return _unreadable(reading, total, examined.unreadable)
        passed = sum(examined.results)
        if passed == total and not examined.finished:
            passed = 0  # it did not come to the end that would have confirmed it
        detail = examined.detail
        if examined.ending is not Ending.EXITED:
            detail = f"{detail}: {_why(examined.ending, examined.exit_code, self._limits)}".removeprefix(": ")
        return Score(passed, total, detail or ("" if examined.finished else "its tests did not come to their end"))

    def _run_scripts(self, reading: Reading, tests: Scripts, language: Language | None) -> Score:
        """One run a test, each new from the ground up."""
        if language is not None and shutil.which(language.needs) is None:
            raise RewardError(f"judging this task needs {language.needs}, which is not installed")
        command, file = (language.command, language.file) if language else ((), "main.py")
        left, passed, detail, total = self._limits, 0, "", len(tests.cases)
        for number, (given, wanted) in enumerate(tests.cases, 1):
            began = time.monotonic()
            stdin = given.encode(errors="replace")
            outcome = _sandbox().run_script(reading.sources, stdin, left, command=command, file=file)
            if outcome.unreadable:
                return _unreadable(reading, total, outcome.unreadable)
            wrong = self._what_is_wrong(outcome, wanted)
            passed += not wrong
            detail = detail or (wrong and f"test {number} of {total}: {wrong}")
            used_s = time.monotonic() - began
            left = replace(left, cpu_s=left.cpu_s - outcome.cpu_s, wall_s=left.wall_s - used_s)
            out_of_time = outcome.ending in (Ending.CPU, Ending.WALL) or min(left.cpu_s, left.wall_s) <= 0
            if out_of_time or (wrong and not self.fraction):
                break
        return Score(passed, total, detail or ("" if passed == total else "it ran out of time"))

    def _what_is_wrong(self, outcome: ScriptResult, wanted: str) -> str:
        """Nothing, if it ended well and printed what was wanted."""
        if outcome.ending is not Ending.EXITED or outcome.exit_code != 0:
            last_line = outcome.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            return f"{_why(outcome.ending, outcome.exit_code, self._limits)} {last_line[:300]}".strip()
        if len(outcome.stdout) > 4 * len(wanted) + LONGEST_REST:
            return f"it printed {len(outcome.stdout):,} bytes"
        printed = outcome.stdout.decode(errors="replace")
        return "" if same_output(printed, wanted) else f"it printed {_short(printed)}, not {_short(wanted)}"


_sandboxes: dict[int, Sandbox] = {}


def _sandbox() -> Sandbox:
    """One a process: workers are forks of one another. It ends with its process, however that ends."""
    if os.getpid() not in _sandboxes:
        _sandboxes[os.getpid()] = Sandbox()
    return _sandboxes[os.getpid()]


def same_output(printed: str, wanted: str) -> bool:
    """The same words, however they are spaced; of decimal numbers those that differ by a millionth at most."""
    words, others = printed.split(), wanted.split()
    return len(words) == len(others) and all(map(_same_word, words, others))


def _same_word(word: str, other: str) -> bool:
    if word == other:
        return True
    if "." not in other or len(word) > 40:  # a whole number is exact, and a word is a word
        return False
    try:
        return is_close(float(word), float(other))
    except ValueError:
        return False


def _unreadable(reading: Reading, total: int, why: str) -> Score:
    reason = JudgeReason.OK if reading.fenced else JudgeReason.UNPARSEABLE
    return Score(0, total, f"not valid Python: {why}", reason)


def _why(ending: Ending, exit_code: int | None, limits: Limits) -> str:
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
