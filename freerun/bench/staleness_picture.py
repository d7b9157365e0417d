"""The picture of `freerun bench staleness`: reward against η, a line through the means, a dot a seed.

An SVG that follows the reader's light or dark scheme. η is spaced evenly, whatever its values.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from math import floor
from statistics import fmean

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 56, 500, 48, 304
"""The plotted area; names of the lines stand to the right of it."""
APART = 14
"""The least distance between two names."""
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 } .title { font-weight: 600 } .quiet { fill: #59636e }
.back { fill: #ffffff } .grid { stroke: #d1d9e0 } .line { fill: none; stroke-width: 2 } .seed { fill-opacity: 0.55 }
.s0 { stroke: #bc4c00 } .f0 { fill: #bc4c00 } .s1 { stroke: #0969da } .f1 { fill: #0969da }
.s2 { stroke: #1a7f37 } .f2 { fill: #1a7f37 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .quiet { fill: #9198a1 } .back { fill: #0d1117 } .grid { stroke: #3d444d }
.s0 { stroke: #f0883e } .f0 { fill: #f0883e } .s1 { stroke: #58a6ff } .f1 { fill: #58a6ff }
.s2 { stroke: #3fb950 } .f2 { fill: #3fb950 }
}"""


@dataclass(frozen=True)
class Line:
    name: str
    rewards: list[list[float]]
    """For each η, one a seed."""


def picture(etas: list[int], lines: list[Line], title: str) -> str:
    """At most three lines: there are as many colours."""
    lowest = min(reward for line in lines for seeds in line.rewards for reward in seeds)
    low = max(floor(lowest * 10) / 10, 0.0) if lowest < 1 else 0.9
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<rect class="back" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text class="title" x="{LEFT}" y="26">{escape(title)}</text>',
        *_axes(etas, low),
    ]
    for index, line in enumerate(lines):
        parts += _line(index, line, len(etas), low)
    parts += _names(lines, low)
    return "\n".join([*parts, "</svg>\n"])


def _axes(etas: list[int], low: float) -> Iterator[str]:
    tick = 0.1 if low >= 0.5 else 0.2
    for count in range(round(1 / tick) + 1):
        reward = count * tick
        if reward >= low - 1e-9:
            y = _y(reward, low)
            yield f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y}" y2="{y}"/>'
            yield f'<text class="quiet" x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{reward:.1f}</text>'
    for place, eta in enumerate(etas):
        x = _x(place, len(etas))
        yield f'<text class="quiet" x="{x}" y="{BOTTOM + 20}" text-anchor="middle">{eta}</text>'
    middle = (LEFT + RIGHT) / 2
    yield f'<text x="{middle}" y="{BOTTOM + 42}" text-anchor="middle">η: age of the data, in versions</text>'


def _line(index: int, line: Line, count: int, low: float) -> Iterator[str]:
    """Lines stand a little apart, so that dots of equal reward can be told from each other."""
    aside = 8 * index - 8
    means = [(_x(place, count) + aside, _y(fmean(seeds), low)) for place, seeds in enumerate(line.rewards)]
    yield f'<polyline class="line s{index}" points="{" ".join(f"{x},{y}" for x, y in means)}"/>'
    for (x, _), seeds in zip(means, line.rewards, strict=True):
        for reward in seeds:
            yield f'<circle class="seed f{index}" cx="{x}" cy="{_y(reward, low)}" r="3.5"/>'


def _names(lines: list[Line], low: float) -> Iterator[str]:
    """Each at the end of its line, but never on each other."""
    last = -float(HEIGHT)
    for y, index in sorted((_y(fmean(line.rewards[-1]), low), index) for index, line in enumerate(lines)):
        last = max(y, last + APART)
        yield f'<text class="f{index}" x="{RIGHT + 12}" y="{last + 4}">{escape(lines[index].name)}</text>'


def _x(place: int, count: int) -> float:
    return round(LEFT + (RIGHT - LEFT) * (place + 0.5) / count, 1)


def _y(reward: float, low: float) -> float:
    return round(BOTTOM - (BOTTOM - TOP) * (reward - low) / (1 - low), 1)
