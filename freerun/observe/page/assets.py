"""The page's own files, put together: the same script and style for the live page and for the report.

Everything is one script, in this order, so that the report can carry it; uPlot draws the curves (MIT; its licence lies
beside it).
"""

from functools import cache
from importlib import resources

SCRIPTS = (
    *("elements.js", "source.js", "curves.js", "timeline.js", "samples.js"),
    *("charts.js", "run.js", "runs.js", "main.js"),
)


@cache
def script() -> str:
    own = "\n".join(_part(name) for name in SCRIPTS)
    return f'{_part("vendor/uPlot.iife.min.js")}\n(() => {{\n"use strict";\n{own}\n}})();\n'


@cache
def style() -> str:
    return f"{_part('vendor/uPlot.min.css')}\n{_part('page.css')}"


@cache
def live_page() -> str:
    return _part("live.html")


@cache
def report_page() -> str:
    return _part("report.html")


def _part(name: str) -> str:
    return resources.files("freerun.observe").joinpath("page", name).read_text(encoding="utf-8")
