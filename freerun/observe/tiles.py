"""The key figures of a run: what stands at the top of its page."""

from dataclasses import dataclass

from freerun.core.records import AgentRecord
from freerun.observe.advice import FAILED_SHARE
from freerun.observe.figures import MISSING, count, duration, number, reasons, share
from freerun.observe.records import EvalRecord
from freerun.observe.summary import Summary


@dataclass(frozen=True)
class Tile:
    """A key figure: what it is, the figure, and what it needs to be understood."""

    label: str
    value: str
    note: str = ""
    tone: str = ""
    """"good" or "bad" where the figure is a verdict."""


def tiles(summary: Summary, evals: list[EvalRecord], bound: int | None) -> list[Tile]:
    if not summary.steps:
        return [_eval_tile(evals)] if evals else []
    steps = Tile("Training steps", f"{summary.steps}", f"in {duration(summary.duration_s)}")
    speed = Tile("Trained tokens/s", count(summary.tokens_per_s), f"{count(summary.tokens_trained)} tokens in all")
    if summary.loss:
        return [_loss_tile(summary), steps, speed, *([_eval_tile(evals)] if evals else [])]
    return [
        _reward_tile(summary),
        _eval_tile(evals),
        steps,
        speed,
        _overlap_tile(summary),
        _staleness_tile(summary, bound),
        _dropped_tile(summary),
        Tile("Answers cut off", share(summary.truncated_share), "by the length limit, in the last steps"),
        *(_agent_tiles(summary, summary.agents) if summary.agents else []),
    ]


def overlap_in_words(summary: Summary) -> str:
    busy = summary.overlap
    if busy is None:
        return "No generation or training was recorded."
    if busy.engine_s == 0:
        return f"The trainer was busy for {share(busy.trainer_s / (busy.wall_s or 1))} of {duration(busy.wall_s)}."
    return (
        f"Engines and trainer were busy at the same time for {duration(busy.both_s)} of {duration(busy.wall_s)}: "
        f"{share(busy.share)}. An engine was busy for {share(busy.engine_s / (busy.wall_s or 1))} of the time, "
        f"the trainer for {share(busy.trainer_s / (busy.wall_s or 1))}. In a synchronous run the two take turns, "
        "and the overlap is 0%."
    )


def _dropped_tile(summary: Summary) -> Tile:
    dropped = sum(summary.dropped.values())
    unjudged = f"samples not judged: {reasons(summary.judge_failures)}" if any(summary.judge_failures.values()) else ""
    said = "; ".join(filter(None, [reasons(summary.dropped), unjudged]))
    return Tile("Dropped groups", f"{dropped}", said or "none lost")


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


def _ends(window: int) -> str:
    return "first and last step" if window == 1 else f"means of first and last {window} steps"


def _reward_tile(summary: Summary) -> Tile:
    reward = summary.reward
    if reward is None:
        return Tile("Reward", MISSING, "no sample was judged")
    if reward.window == 0:
        return Tile("Reward", number(reward.first), "all judged answers")
    tone = "good" if reward.moved and reward.last > reward.first else ""
    return Tile("Reward, all answers", f"{number(reward.first)} → {number(reward.last)}", _ends(reward.window), tone)


def _loss_tile(summary: Summary) -> Tile:
    loss = summary.loss
    assert loss
    if loss.window == 0:
        return Tile("Loss", number(loss.first), "of the only step")
    tone = "good" if loss.moved and loss.last < loss.first else ""
    return Tile("Loss", f"{number(loss.first)} → {number(loss.last)}", _ends(loss.window), tone)


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
