"""A pytest plugin: one line at the end of the tests says what this machine lacks, how to get it, and what did not run.

A skip's reason says "needs WHAT" or "needs WHAT: HOW TO GET IT". Tests that are skipped one by one count as tests, a
file that is skipped as a whole counts as a file.
"""

import re
from collections import Counter
from typing import Any

import pytest

_NEEDS = re.compile(r"(?:.*\b)?needs (?P<what>[^:(]+?)(?: \(.*\))?(?:: (?P<how>.*))?", re.DOTALL)
_FILES = "skipped_files"


class Lacking:
    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        """Why a file was skipped, by its name."""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.files[report.nodeid] = reason_of(report)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A worker of pytest-xdist tells whoever started it, who sees no file that was skipped."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_FILES] = self.files

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.files |= getattr(node, "workeroutput", {}).get(_FILES, {})

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        tests = [report for report in terminalreporter.stats.get("skipped", []) if report.nodeid not in self.files]
        if tests or self.files:
            line = lacks(Counter(map(reason_of, tests)), Counter(self.files.values()))
            terminalreporter.write_line(line, yellow=True)


def lacks(tests: Counter[str], files: Counter[str]) -> str:
    """The line, from how many tests and files were skipped for each reason."""
    found: dict[str, list[int]] = {}
    for place, counted in enumerate((tests, files)):
        for reason, count in counted.items():
            found.setdefault(_lack(reason), [0, 0])[place] += count
    every = [f"{lack} ({_counted(*counts)})" for lack, counts in found.items()]
    return f"not run here, for lack of: {'; '.join(every)}"


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    where = report.longrepr
    return str(where[2] if isinstance(where, tuple) else where).removeprefix("Skipped: ")


def _lack(reason: str) -> str:
    if not (needs := _NEEDS.fullmatch(reason)):
        return reason
    return f"{needs['what']}, which `{needs['how']}` brings" if needs["how"] else needs["what"]


def _counted(tests: int, files: int) -> str:
    return " and ".join(f"{n} {noun}{'s' if n > 1 else ''}" for n, noun in ((tests, "test"), (files, "file")) if n)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Lacking(), "lacking")
