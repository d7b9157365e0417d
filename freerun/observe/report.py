"""report.html: one page about a run that needs nothing beside it, neither network nor server.

Consumes the files of a run folder, whichever exist, also those of a run that is still going or was killed. The
headline is plain HTML with the figures in it; the charts are drawn in the browser from data inside the page, by the
scripts of `page/`. Text of samples only ever reaches the page as data and as text nodes, never as markup.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

from freerun.core import FreerunError
from freerun.core.files import write_atomically
from freerun.core.records import AgentRecord
from freerun.core.reports import Span
from freerun.observe.advice import FAILED_SHARE
from freerun.observe.figures import MISSING, count, duration, number, reasons, share
from freerun.observe.folder import RunFolder, writing
from freerun.observe.payload import payload, to_script
from freerun.observe.records import EvalRecord, NoteRecord, read_evals, read_notes, read_steps
from freerun.observe.summary import Summary, outcome, summarise
from freerun.observe.timeline import read_spans

SCRIPTS = ("charts.js", "timeline.js", "samples.js", "report.js")
NOTES = 50


def write_report(folder: RunFolder, bound: int | None) -> Path:
    """Write the page and say where. `bound` is the staleness no trained token may exceed, None without one."""
    steps, evals, spans = read_steps(folder.metrics), read_evals(folder.evals), read_spans(folder.timeline)
    summary = summarise(steps, evals, spans)
    data = payload(summary, steps, evals, spans, folder.samples, bound)
    page = Template(_part("report.html")).substitute(
        title=escape(folder.name),
        outcome=escape(outcome(summary, bound)),
        tiles="\n".join(tile.html for tile in tiles(summary, evals, bound)),
        last_seen=_last_seen(spans) if not steps else "",
        notes=_notes(read_notes(folder.notes)),
        overlap=escape(overlap_in_words(summary)),
        config=_config(folder),
        style=_part("report.css"),
        data=to_script(data),
        script="\n".join(_part(name) for name in SCRIPTS),
    )
    with writing(folder.report):
        write_atomically(folder.report, page)  # whoever has the page open never reads half of it
    return folder.report


@contextmanager
def reported(folder: RunFolder, bound: int | None) -> Iterator[None]:
    """The report is written after the block, however that ends; what it failed with comes first."""
    try:
        yield
    except BaseException:
        with suppress(FreerunError):
            write_report(folder, bound)
        raise
    write_report(folder, bound)


@dataclass(frozen=True)
class Tile:
    """A key figure: what it is, the figure, and what it needs to be understood."""

    label: str
    value: str
    note: str = ""
    tone: str = ""
    """"good" or "bad" where the figure is a verdict."""

    @property
    def html(self) -> str:
        return (
            f'<div class="tile {self.tone}"><dt>{escape(self.label)}</dt>'
            f"<dd>{escape(self.value)}</dd><p>{escape(self.note)}</p></div>"
        )


def tiles(summary: Summary, evals: list[EvalRecord], bound: int | None) -> list[Tile]:
    if not summary.steps:
        return [_eval_tile(evals)] if evals else []
    dropped = sum(summary.dropped.values())
    unjudged = f"samples not judged: {reasons(summary.judge_failures)}" if any(summary.judge_failures.values()) else ""
    return [
        _reward_tile(summary),
        _eval_tile(evals),
        Tile("Training steps", f"{summary.steps}", f"in {duration(summary.duration_s)}"),
        Tile("Trained tokens/s", count(summary.tokens_per_s), f"{count(summary.tokens_trained)} tokens in all"),
        _overlap_tile(summary),
        _staleness_tile(summary, bound),
        Tile(
            "Dropped groups", f"{dropped}", "; ".join(filter(None, [reasons(summary.dropped), unjudged])) or "none lost"
        ),
        Tile("Answers cut off", share(summary.truncated_share), "by the length limit, in the last steps"),
        *(_agent_tiles(summary, summary.agents) if summary.agents else []),
    ]


def _agent_tiles(summary: Summary, agents: AgentRecord) -> list[Tile]:
    """As many as a row has."""
    failed = reasons(agents.failures)
    asked = f"of {count(agents.requests)} requests"
    reread = f"{count(agents.reread_tokens)} tokens read again after updates" if agents.reread_tokens else ""
    return [
        Tile(
            "Agents' sessions",
            count(sum(agents.sessions.values())),
            f"failed: {failed}" if failed else "none failed",
            "bad" if agents.failed_share > FAILED_SHARE else "",
        ),
        Tile(
            "Turns a member", count(agents.turns_mean), f"in {count(agents.branches_mean)} branches, in the last steps"
        ),
        Tile("Forks", share(agents.fork_share), f"{asked}: {reasons(agents.forks)}" if agents.forks else asked),
        Tile(
            "Prompts in cache", share(summary.cache_hit_share), "; ".join(filter(None, ["in the last steps", reread]))
        ),
    ]


def overlap_in_words(summary: Summary) -> str:
    busy = summary.overlap
    if busy is None:
        return "No generation or training was recorded."
    return (
        f"Engines and trainer were busy at the same time for {duration(busy.both_s)} of {duration(busy.wall_s)}: "
        f"{share(busy.share)}. An engine was busy for {share(busy.engine_s / (busy.wall_s or 1))} of the time, "
        f"the trainer for {share(busy.trainer_s / (busy.wall_s or 1))}. In a synchronous run the two take turns, "
        "and the overlap is 0%."
    )


def _reward_tile(summary: Summary) -> Tile:
    reward = summary.reward
    if reward is None:
        return Tile("Reward", MISSING, "no sample was judged")
    if reward.window == 0:
        return Tile("Reward", number(reward.first), "all judged answers")
    ends = "first and last step" if reward.window == 1 else f"means of first and last {reward.window} steps"
    tone = "good" if reward.moved and reward.last > reward.first else ""
    return Tile("Reward, all answers", f"{number(reward.first)} → {number(reward.last)}", ends, tone)


def _eval_tile(evals: list[EvalRecord]) -> Tile:
    if not evals:
        return Tile("Evaluation", MISSING, "none in this run")
    first, last = evals[0], evals[-1]
    value = number(last.pass_at_1) if len(evals) == 1 else f"{number(first.pass_at_1)} → {number(last.pass_at_1)}"
    note = f"last {number(last.low)} to {number(last.high)} (95%), {last.tasks} tasks"
    return Tile("Evaluation, pass@1", value, note, "good" if last.low > first.high else "")


def _overlap_tile(summary: Summary) -> Tile:
    if summary.overlap is None:
        return Tile("Overlap", MISSING, "no timeline")
    return Tile("Overlap", share(summary.overlap.share), "generating and training at once")


def _staleness_tile(summary: Summary, bound: int | None) -> Tile:
    mean = f"mean {summary.staleness_mean:.2f} versions"
    if bound is None:
        return Tile("Staleness, max", f"{summary.staleness_max}", f"{mean}, no bound")
    held = summary.staleness_max <= bound
    note = f"{mean}, bound held" if held else f"{mean}, bound broken"
    return Tile("Staleness, max", f"{summary.staleness_max} of {bound}", note, "good" if held else "bad")


def _last_seen(spans: list[Span]) -> str:
    """For a run without a step: the last thing each process did, and where to look."""
    last = {span.process: span for span in sorted(spans, key=lambda s: s.end_s)}
    rows = "".join(
        f"<li><b>{escape(s.process)}</b> {escape(s.track)}: {escape(s.name)}, "
        f"{duration(s.seconds)}, ended at {duration(s.end_s)}</li>"
        for s in last.values()
    )
    seen = f"<p>The last thing each process recorded:</p><ul>{rows}</ul>" if rows else ""
    return f'<section class="empty">{seen}<p>The reason is most likely in the <code>logs</code> folder.</p></section>'


def _notes(notes: list[NoteRecord]) -> str:
    """The last ones: a failing engine may have said thousands."""
    if not notes:
        return ""
    rows = "".join(f"<li>step {note.step}: {escape(note.text)}</li>" for note in notes[-NOTES:])
    left_out = f" <span>the last {NOTES} of {len(notes)}</span>" if len(notes) > NOTES else ""
    return f'<section id="notes"><h2>Notes{left_out}</h2><ul>{rows}</ul></section>'


def _config(folder: RunFolder) -> str:
    if not folder.config.exists():
        return ""
    text = escape(folder.config.read_text(encoding="utf-8", errors="replace"))
    return f'<details class="config"><summary>Configuration</summary><pre>{text}</pre></details>'


def _part(name: str) -> str:
    return resources.files("freerun.observe").joinpath("page", name).read_text(encoding="utf-8")
