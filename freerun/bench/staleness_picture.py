"""The pictures of `freerun bench staleness`, as SVG that follows the reader's light or dark scheme.

`picture` has reward against η: a line through the means, a bar of a standard deviation either way, a dot a seed. η is
spaced evenly, whatever its values. `curves` has reward as it rises: a line through the means, a band of a deviation.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor
from statistics import fmean, stdev

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 56, 500, 48, 304
"""The plotted area; names of the lines stand to the right of it."""
APART = 14
"""The least distance between two names."""
COLOURS = 5
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 } .title { font-weight: 600 } .quiet { fill: #59636e }
.back { fill: #ffffff } .grid { stroke: #d1d9e0 } .line { fill: none; stroke-width: 2 } .seed { fill-opacity: 0.55 }
.spread { stroke-width: 1.5; stroke-opacity: 0.7 } .band { fill-opacity: 0.13 }
.s0 { stroke: #bc4c00 } .f0 { fill: #bc4c00 } .s1 { stroke: #0969da } .f1 { fill: #0969da }
.s2 { stroke: #1a7f37 } .f2 { fill: #1a7f37 } .s3 { stroke: #8250df } .f3 { fill: #8250df }
.s4 { stroke: #9a6700 } .f4 { fill: #9a6700 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .quiet { fill: #9198a1 } .back { fill: #0d1117 } .grid { stroke: #3d444d }
.s0 { stroke: #f0883e } .f0 { fill: #f0883e } .s1 { stroke: #58a6ff } .f1 { fill: #58a6ff }
.s2 { stroke: #3fb950 } .f2 { fill: #3fb950 } .s3 { stroke: #a371f7 } .f3 { fill: #a371f7 }
.s4 { stroke: #d29922 } .f4 { fill: #d29922 }
}"""


@dataclass(frozen=True)
class Line:
    name: str
    rewards: list[list[float]]
    """For each η, one a seed; none where there is no run."""


@dataclass(frozen=True)
class Curve:
    name: str
    at: list[float]
    rewards: list[list[float]]
    """At each of these, one a seed."""


@dataclass(frozen=True)
class Axis:
    """Rewards, from low to high, with a line at each tick."""

    low: float
    high: float
    tick: float

    @classmethod
    def of(cls, rewards: Sequence[float]) -> "Axis":
        """Round numbers around all of them, within 0 and 1 where they are."""
        lowest, highest = min(rewards), max(rewards)
        tick = next((one for one in (0.01, 0.02, 0.05, 0.1, 0.2) if (highest - lowest) / one <= 6), 0.2)
        low, high = floor(lowest / tick + 1e-9) * tick, ceil(highest / tick - 1e-9) * tick
        return cls(low, high if high > low else low + tick, tick)

    @property
    def ticks(self) -> list[float]:
        return [self.low + count * self.tick for count in range(round((self.high - self.low) / self.tick) + 1)]

    def y(self, reward: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * (reward - self.low) / (self.high - self.low), 1)


def picture(etas: list[int], lines: list[Line], title: str) -> str:
    """At most as many lines as there are colours. Those without a run are left out."""
    axis = Axis.of([reward for line in lines for seeds in line.rewards for reward in seeds])
    parts = [*_frame(title, axis), *_eta_axis(etas)]
    for index, line in enumerate(lines):
        parts += _line(index, line, axis, len(lines))
    parts += _names([(axis.y(fmean(ends[-1])), name) for name, ends in _ends(lines)], [line.name for line in lines])
    return "\n".join([*parts, "</svg>\n"])


def curves(lines: list[Curve], title: str, what: str) -> str:
    """Reward against `what`."""
    axis = Axis.of([value for line in lines for seeds in line.rewards for value in _spread(seeds)])
    last = max(line.at[-1] for line in lines)
    parts = _frame(title, axis)
    for share in range(5):
        x, text = _along(share / 4), f"{last * share / 4:.3g}"
        parts.append(f'<text class="quiet" x="{x}" y="{BOTTOM + 20}" text-anchor="middle">{text}</text>')
    parts.append(_below(what))
    for index, line in enumerate(lines):
        xs = [_along(at / last) for at in line.at]
        spreads = [_spread(seeds) for seeds in line.rewards]
        up = [f"{x},{axis.y(low)}" for x, (low, _, _) in zip(xs, spreads, strict=True)]
        down = [f"{x},{axis.y(high)}" for x, (_, _, high) in zip(xs, spreads, strict=True)]
        means = [f"{x},{axis.y(mean)}" for x, (_, mean, _) in zip(xs, spreads, strict=True)]
        parts.append(f'<polygon class="band f{index}" points="{" ".join([*up, *reversed(down)])}"/>')
        parts.append(f'<polyline class="line s{index}" points="{" ".join(means)}"/>')
    ends = [(axis.y(fmean(line.rewards[-1])), line.name) for line in lines]
    parts += _names(ends, [line.name for line in lines])
    return "\n".join([*parts, "</svg>\n"])


def _frame(title: str, axis: Axis) -> list[str]:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<rect class="back" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text class="title" x="{LEFT}" y="26">{escape(title)}</text>',
    ]
    decimals = 1 if axis.tick >= 0.1 else 2
    for reward in axis.ticks:
        y = axis.y(reward)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(
            f'<text class="quiet" x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{abs(reward):.{decimals}f}</text>'
            if reward >= -1e-9
            else f'<text class="quiet" x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{reward:.{decimals}f}</text>'
        )
    return parts


def _eta_axis(etas: list[int]) -> Iterator[str]:
    for place, eta in enumerate(etas):
        x = _along((place + 0.5) / len(etas))
        yield f'<text class="quiet" x="{x}" y="{BOTTOM + 20}" text-anchor="middle">{eta}</text>'
    yield _below("η: age of the data, in versions")


def _below(text: str) -> str:
    return f'<text x="{(LEFT + RIGHT) / 2}" y="{BOTTOM + 42}" text-anchor="middle">{escape(text)}</text>'


def _line(index: int, line: Line, axis: Axis, lines: int) -> Iterator[str]:
    """Lines stand a little apart, so that dots of equal reward can be told from each other."""
    aside, count = 8 * (index - (lines - 1) / 2), len(line.rewards)
    there = [(_along((place + 0.5) / count) + aside, seeds) for place, seeds in enumerate(line.rewards) if seeds]
    points = " ".join(f"{x:.1f},{axis.y(fmean(seeds))}" for x, seeds in there)
    yield f'<polyline class="line s{index}" points="{points}"/>'
    for x, seeds in there:
        low, _, high = (min(max(value, axis.low), axis.high) for value in _spread(seeds))
        yield f'<line class="spread s{index}" x1="{x:.1f}" x2="{x:.1f}" y1="{axis.y(low)}" y2="{axis.y(high)}"/>'
        for reward in seeds:
            yield f'<circle class="seed f{index}" cx="{x:.1f}" cy="{axis.y(reward)}" r="3.5"/>'


def _ends(lines: list[Line]) -> Iterator[tuple[str, list[list[float]]]]:
    for line in lines:
        if there := [seeds for seeds in line.rewards if seeds]:
            yield line.name, there


def _names(ends: list[tuple[float, str]], order: list[str]) -> Iterator[str]:
    """Each at the end of its line, but never on each other."""
    last = -float(HEIGHT)
    for y, name in sorted(ends):
        last = max(y, last + APART)
        yield f'<text class="f{order.index(name)}" x="{RIGHT + 12}" y="{last + 4}">{escape(name)}</text>'


def _spread(seeds: list[float]) -> tuple[float, float, float]:
    """The mean, and a standard deviation either way."""
    mean, deviation = fmean(seeds), stdev(seeds) if len(seeds) > 1 else 0.0
    return mean - deviation, mean, mean + deviation


def _along(share: float) -> float:
    return round(LEFT + (RIGHT - LEFT) * share, 1)
