"""A run while it runs: a panel on a terminal, one line a step in a log (and one about its agents, if it has some).

`view(...)` picks the one that fits the console. Both are observers, which never raise for what they are told. The
panel redraws at most `REFRESHES_PER_S` times a second, from a thread of
rich's: the methods here only store.
"""

import math
import re
import textwrap
import time
from collections import deque

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from freerun.core import Version
from freerun.core.observer import Observer
from freerun.core.records import AgentRecord, StepRecord
from freerun.core.reports import Evaluation
from freerun.observe.figures import count, duration, number, reasons, share

REFRESHES_PER_S = 4
PLAIN_COLUMNS = 120
SPARK_COLUMNS = 24
PROCESS_LINES = 16


def view(run_name: str, total_steps: int, bound: int | None, console: Console | None = None) -> Observer:
    """An observer that shows the run from now on. `bound` is the staleness no trained token exceeds, in versions; None
    where the run has no bound."""
    console = console or Console()
    if console.is_terminal and not console.is_dumb_terminal:
        return TerminalView(run_name, total_steps, bound, console)
    return PlainView(run_name, total_steps, bound, console)


class Pace:
    """How long the rest takes, from the last steps (early ones include loading and compiling)."""

    def __init__(self, total_steps: int) -> None:
        self._total_steps = total_steps
        self._recent_s: deque[float] = deque(maxlen=20)

    def step(self, record: StepRecord) -> None:
        self._recent_s.append(record.step_s)

    def left_s(self, steps_done: int) -> float:
        if not self._recent_s:
            return math.nan
        return max(self._total_steps - steps_done, 0) * sum(self._recent_s) / len(self._recent_s)


class PlainView(Observer):
    """Lines for a log file: no control codes, at most 120 columns, one line a step."""

    def __init__(self, run_name: str, total_steps: int, bound: int | None, console: Console) -> None:
        self._run_name = run_name
        self._total_steps = total_steps
        self._bound = bound
        self._console = console
        self._pace = Pace(total_steps)
        self._phrases: set[tuple[str, str]] = set()
        self._stepped = False
        self._say(f"freerun: run {self._run_name}, {self._total_steps} steps, {_bound_in_words(self._bound)}")
        self._say(
            "  reward: mean of samples trained on (all: of all judged); stale: versions from sampling to training"
        )
        self._say("  cut: answers cut off by the length limit; idle: share of time engines/trainer had nothing to do")

    def doing(self, process: str, what: str) -> None:
        """Said only until the first step, when a reader has nothing else, each phrase once whatever its numbers."""
        phrase = (process, re.sub(r"\d+", "", what))
        if what != "idle" and not self._stepped and phrase not in self._phrases:
            self._phrases.add(phrase)
            self._say(f"{process}: {what}")

    def step(self, record: StepRecord) -> None:
        self._stepped = True
        self._pace.step(record)
        most = f"/{self._bound}" if self._bound is not None else ""
        width = len(str(self._total_steps))
        essential = [
            f"step {record.step:>{width}}/{self._total_steps}",
            f"reward {number(record.reward_mean)} (all {number(record.reward_mean_all)})",
            f"stale {record.staleness_mean:.1f} max {record.staleness_max}{most}",
            f"{count(record.tokens_per_s):>5} tok/s",
            f"cut {share(record.truncated_share):>3}",
        ]
        where_it_fits = [
            f"idle {share(record.engine_idle_share)}/{share(record.trainer_idle_share)}",
            f"left {duration(self._pace.left_s(record.step))}",
            *([f"dropped {sum(record.dropped.values())}"] if any(record.dropped.values()) else []),
        ]
        for part in where_it_fits:
            if len("  ".join([*essential, part])) <= PLAIN_COLUMNS:
                essential.append(part)
        self._say("  ".join(essential))
        if record.agents:
            self._say("  agents: " + "  ".join(_agent_facts(record, record.agents)))

    def evaluated(self, version: Version, evaluation: Evaluation) -> None:
        self._say(f"eval at step {version}: {_eval_in_words(evaluation)}, {evaluation.tasks} tasks")

    def note(self, text: str) -> None:
        for line in textwrap.wrap(f"note: {text}", PLAIN_COLUMNS, subsequent_indent="      "):
            self._say(line)

    def _say(self, line: str) -> None:
        self._console.out(_printable(line), highlight=False)


class TerminalView(Observer):
    """One panel, redrawn in place; notes scroll by above it, and the last state stays when the run ends."""

    def __init__(self, run_name: str, total_steps: int, bound: int | None, console: Console) -> None:
        self._run_name = run_name
        self._total_steps = total_steps
        self._bound = bound
        self._console = console
        self._pace = Pace(total_steps)
        self._began_s = time.monotonic()
        self._ended_s: float | None = None
        self._stepped_s = self._began_s
        self._rewards: list[float] = []
        self._last: StepRecord | None = None
        self._evals: list[tuple[Version, Evaluation]] = []
        self._doing: dict[str, str] = {}
        self._live = Live(console=console, get_renderable=self.render, refresh_per_second=REFRESHES_PER_S)

    def doing(self, process: str, what: str) -> None:
        self._doing[process] = _printable(what)
        self._live.start()

    def step(self, record: StepRecord) -> None:
        self._pace.step(record)
        self._rewards.append(record.reward_mean_all)
        self._stepped_s = time.monotonic()
        self._last = record

    def evaluated(self, version: Version, evaluation: Evaluation) -> None:
        self._evals.append((version, evaluation))

    def note(self, text: str) -> None:
        self._console.print(Text(f"• {_printable(text)}", style="yellow"))

    def close(self) -> None:
        if self._live.is_started:
            self._ended_s = time.monotonic()
            self._live.stop()

    def render(self) -> RenderableType:
        body = Group(self._progress(), Text(), self._facts(), Text(), self._processes())
        subtitle = Text("Ctrl-C ends the run cleanly", style="dim") if self._ended_s is None else None
        title = Text.assemble(("freerun ", "bold"), (self._run_name, "cyan"))
        return Panel(body, title=title, title_align="left", subtitle=subtitle, subtitle_align="right", padding=(1, 2))

    def _progress(self) -> RenderableType:
        done = self._last.step if self._last else 0
        now_s = self._ended_s or time.monotonic()
        left_s = self._pace.left_s(done) - (now_s - self._stepped_s)
        words = Text.assemble(
            (f"{done}/{self._total_steps}", "bold"), " steps   ", ("ran ", "dim"), duration(now_s - self._began_s)
        )
        if self._ended_s is None and math.isfinite(left_s) and done < self._total_steps:
            words.append("   left ", "dim").append(duration(max(left_s, 0.0)))
        row = Table.grid(padding=(0, 2), expand=True)
        row.add_column(ratio=1)
        row.add_column(no_wrap=True)
        row.add_row(ProgressBar(total=max(self._total_steps, 1), completed=done, complete_style="cyan"), words)
        return row

    def _facts(self) -> RenderableType:
        if self._last is None:
            return Text(
                "No step yet. The engines generate answers, the reward judges them, and the first training step "
                f"starts when a batch is full. From then on: {_bound_in_words(self._bound)}.",
                style="dim",
            )
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for label, fact in self._rows(self._last):
            table.add_row(label, fact)
        return table

    def _rows(self, r: StepRecord) -> list[tuple[str, Text]]:
        over = self._bound is not None and r.staleness_max > self._bound
        allowed = f" of {self._bound} allowed" if self._bound is not None else ", no bound"
        rows = [
            (
                "reward",
                Text.assemble(
                    (sparkline(self._rewards), "cyan"),
                    ("  " + number(r.reward_mean_all), "bold"),
                    (" all judged · ", "dim"),
                    number(r.reward_mean),
                    (" trained on", "dim"),
                ),
            ),
            ("answers", _facts(f"{count(r.answer_tokens_mean)} tokens", f"{share(r.truncated_share)} cut off")),
            (
                "staleness",
                Text.assemble(
                    f"mean {r.staleness_mean:.1f}",
                    (" · ", "dim"),
                    (f"max {r.staleness_max}{allowed}", "bold red" if over else ""),
                    (" versions", "dim"),
                ),
            ),
            ("speed", _facts(f"{count(r.tokens_per_s)} tokens/s trained", f"{duration(r.step_s)} a step")),
            (
                "idle",
                _facts(
                    f"engines {share(r.engine_idle_share)}",
                    f"trainer {share(r.trainer_idle_share)}",
                    f"weight swap {r.update_pause_s:.2f}s",
                ),
            ),
        ]
        if self._evals:
            (_, first), (version, last) = self._evals[0], self._evals[-1]
            rows.insert(1, ("eval", Text(f"{_eval_in_words(last, first)} at step {version}", style="green")))
        if r.agents:
            rows.append(("agents", _facts(*_agent_facts(r, r.agents))))
        if any(r.dropped.values()):
            rows.append(("dropped", Text(f"{reasons(r.dropped)} (groups)", style="yellow")))
        if r.solved:
            rows.append(("solved", Text(f"{count(r.solved)} tasks, which are asked less often")))
        if any(r.judge_failures.values()):
            rows.append(("not judged", Text(f"{reasons(r.judge_failures)} (samples)", style="yellow")))
        if unparseable := r.judgements.get("unparseable"):
            rows.append(("unparseable", Text(f"{count(unparseable)} samples in which the judge could read nothing")))
        return rows

    def _processes(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis")
        processes = list(self._doing.items())
        for process, what in processes[:PROCESS_LINES]:
            table.add_row(Text(process), Text(what))
        if len(processes) > PROCESS_LINES:
            table.add_row(f"and {len(processes) - PROCESS_LINES} more")
        return table


def sparkline(values: list[float], columns: int = SPARK_COLUMNS) -> str:
    """The whole history in at most `columns` blocks, each the mean of its part; gaps where nothing is known."""
    size = max(math.ceil(len(values) / columns), 1)
    parts = [[v for v in values[i : i + size] if math.isfinite(v)] for i in range(0, len(values), size)]
    unit = max((abs(v) for part in parts for v in part), default=1.0) or 1.0  # no sum of huge values is too large then
    means = [sum(v / unit for v in part) / len(part) if part else None for part in parts]
    known = [m for m in means if m is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    blocks = "▁▂▃▄▅▆▇█"
    span = high - low or 1.0
    return "".join(" " if m is None else blocks[round((m - low) / span * (len(blocks) - 1))] for m in means)


def _printable(text: str) -> str:
    """On one line and without control codes: notes may quote a log or an answer."""
    return "".join(c if c.isprintable() else " " for c in text)


def _facts(*facts: str) -> Text:
    return Text(" · ").join(Text(fact) for fact in facts)


def _agent_facts(record: StepRecord, agents: AgentRecord) -> list[str]:
    """Most important first. Reasons are in the report and in metrics.jsonl: here they would need a second line."""
    failed = sum(agents.failures.values())
    return [
        f"{count(sum(agents.sessions.values()))} sessions",
        *([f"{count(failed)} failed"] if failed else []),
        f"{count(agents.turns_mean)} turns",
        f"{share(agents.fork_share)} forks",
        f"{share(record.cache_hit_share)} in cache",
    ]


def _bound_in_words(bound: int | None) -> str:
    if bound is None:
        return "no bound on staleness"
    if bound == 0:
        return "generation and training take turns (staleness 0)"
    return f"no token trained on more than {bound} version{'s' if bound > 1 else ''} after it was sampled"


def _eval_in_words(record: Evaluation, first: Evaluation | None = None) -> str:
    since = f"{number(first.pass_at_1)} → " if first and first is not record else ""
    words = f"pass@1 {since}{number(record.pass_at_1)} [{number(record.low)}, {number(record.high)}]"
    return words + (f", pass@{record.k} {number(record.pass_at_k)}" if record.k > 1 else "")
