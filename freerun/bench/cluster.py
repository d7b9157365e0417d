"""`freerun bench cluster`: the demo's task on several machines, against the same on one, and with cables that are cut.

Machines are network namespaces (`namespaces.py`), and the commands are the user's (`cluster_run.py`). Three parts:

1. The demo learns on one machine and on three: the controller's, an engine's and the trainer's. Tokens trained a
   second are compared, those of the seconds in which both are at it, and the staleness bound must hold on both.
2. On four machines, two of them with engines, the cable of an engine's is cut in the middle of the run, and mended once
   the run has noticed. The run goes on; the engine comes back with the newest version.
3. The cable of the trainer's machine is cut: the run ends with that cause, nothing of it is left on any machine, and it
   is resumed. Cut again with `cluster.trainer_lost: wait`, it goes on by itself once the cable is mended.

In the end the run's own events say whether each task was trained on, and none twice.
"""

import asyncio
import json
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.resources import as_file, files
from pathlib import Path

from rich.console import Console

from freerun.bench.cluster_cut import ORPHANS_S, Cuts, cut_cables
from freerun.bench.cluster_run import MachineRun, finished, freerun, runs_in
from freerun.bench.namespaces import MachineNamespace, machines, unavailable
from freerun.bench.run_log import RunLog
from freerun.commands.demo import LETTERS, WARM_UP, demo_config, write_tasks
from freerun.models.tiny import make_model
from freerun.observe.folder import RunFolder, iter_lines
from freerun.observe.records import read_evals, read_steps
from freerun.run.prepare import prepare_sft
from freerun.run.supervised import sft


@dataclass(frozen=True)
class Learned:
    """How a whole run went."""

    before: float
    after: float
    """Reward on the held-out tasks: the share that is right."""
    stalest: int
    """In versions."""
    tokens_per_s: float
    """Trained on."""

    @classmethod
    def of(cls, run: Path, tokens_per_s: float) -> "Learned":
        folder = RunFolder(run)
        steps, evaluations = read_steps(folder.metrics), read_evals(folder.evals)
        stalest = max(step.staleness_max for step in steps)
        return cls(evaluations[0].pass_at_1, evaluations[-1].pass_at_1, stalest, tokens_per_s)


@dataclass(frozen=True)
class Pace:
    """When a run's steps ended, by this machine's clock, and how many tokens each trained on."""

    steps: Sequence[tuple[float, int]]

    @classmethod
    def of(cls, log: Path) -> "Pace":
        return cls([(line["at_s"], line["tokens"]) for line in iter_lines(log) if "step" in line])

    def beside(self, other: "Pace") -> "Pace":
        """The steps that were done while the other one was at it, too."""
        begin_s, end_s = max(self.steps[0][0], other.steps[0][0]), min(self.steps[-1][0], other.steps[-1][0])
        return Pace([(at_s, tokens) for at_s, tokens in self.steps if begin_s <= at_s <= end_s])

    @property
    def tokens_per_s(self) -> float:
        """From the end of the first step to that of the last."""
        took_s = self.steps[-1][0] - self.steps[0][0]
        return sum(tokens for _, tokens in self.steps[1:]) / took_s


async def bench_cluster(steps: int | None, seed: int, in_turn: bool, json_only: bool) -> None:
    console = Console(stderr=json_only, highlight=False)
    if why := unavailable():
        console.print(f"cluster: skipped, this {why}")
        return
    made = await _warmed_up(Path("runs"), seed, console)
    settings = [str(made / "run.yaml"), f"seed={seed}"]
    local, apart = await _learn(made, settings, steps, in_turn, console)
    with console.status("cables are cut"):
        cut = await cut_cables(made, settings)
    bound = demo_config(made, seed)[0].control.max_staleness
    ratio = apart.tokens_per_s / local.tokens_per_s
    _show(local, apart, cut, bound, console)
    record = {"bench": "cluster", "bound": bound, "in_turn": in_turn, "ratio": ratio}
    print(json.dumps(record | {"local": asdict(local), "apart": asdict(apart), "cut": asdict(cut)}))
    console.print(
        f"cluster: reward {apart.before:.2f} -> {apart.after:.2f} on 3 machines, {ratio:.2f} of local tokens/s, cut "
        f"noticed after {cut.engine.noticed_s:.1f} s, {cut.audit.lost} lost, {cut.audit.twice} twice",
        soft_wrap=True,
    )


def _show(local: Learned, apart: Learned, cut: Cuts, bound: int, console: Console) -> None:
    engine, trainer = cut.engine, cut.trainer
    told = {
        "on one machine": f"reward {local.before:.2f} -> {local.after:.2f}, {local.tokens_per_s:,.0f} tokens/s",
        "on three": f"reward {apart.before:.2f} -> {apart.after:.2f}, {apart.tokens_per_s:,.0f} tokens/s",
        "staleness": f"at most {max(local.stalest, apart.stalest, cut.stalest)} (bound {bound})",
        "an engine's cable": f"noticed after {engine.noticed_s:.1f} s, {engine.steps_meanwhile} steps without it, back "
        f"{engine.back_s:.1f} s after it was mended and {engine.late_s:.1f} s after it could be asked",
        "the trainer's": f"noticed after {trainer.noticed_s:.1f} s, and ended after {trainer.ended_s:.1f} s with "
        f"{trainer.cause!r}",
        "the trainer's, waited for": f"a step {cut.waited_s:.1f} s after it was mended",
        f"left after {ORPHANS_S:.0f} s": str({**engine.left, **trainer.left} or "no process on any machine"),
        "trained groups": f"{cut.audit.trained:,}: {cut.audit.lost} tasks lost, {cut.audit.twice} trained twice",
    }
    for what, said in told.items():
        console.print(f"{what}: {said}", soft_wrap=True, markup=False)


async def _warmed_up(runs: Path, seed: int, console: Console) -> Path:
    """A folder with the demo's tasks, the model that supervised training came to, and a file of settings."""
    made = RunFolder.create(runs, "cluster-start").path.absolute()
    make_model(made / "model", LETTERS + ">", seed)
    write_tasks(made, seed)
    with console.status("a tiny model learns from answers"):
        prepared = prepare_sft(*demo_config(made, seed, *WARM_UP, f"data.source={made / 'sft.jsonl'}"))
        warm = await sft(prepared)
    shutil.copytree(warm.checkpoints / "last", made / "warm")
    with as_file(files("freerun.commands") / "demo.yaml") as file:
        text = file.read_text().replace("runs/demo-start/model", str(made / "warm"))
    (made / "run.yaml").write_text(text.replace("runs/demo-start", str(made)))
    return made


async def _learn(
    made: Path, settings: Sequence[str], steps: int | None, in_turn: bool, console: Console
) -> tuple[Learned, Learned]:
    """On one machine and on three: at the same time, or one after the other."""
    changes = [f"control.steps={steps}", f"train.decay_steps={steps}"] if steps else []
    settings = [*settings, *changes]
    with ExitStack() as stack:
        alone, *places = stack.enter_context(machines("alone", "controller", "engine", "trainer"))
        run, log = MachineRun(places, settings, made, "apart"), made / "local.jsonl"
        stack.enter_context(console.status("the demo learns on one machine, and on three"))
        here, there = _local(alone, made, log, settings), _apart(run)
        if in_turn:
            await here
            await there
        else:
            await asyncio.gather(here, there)
    local, apart = Pace.of(log), Pace.of(run.log)
    if not in_turn:
        local, apart = local.beside(apart), apart.beside(local)
    return Learned.of(runs_in(made) / "local", local.tokens_per_s), Learned.of(run.run, apart.tokens_per_s)


async def _local(machine: MachineNamespace, made: Path, log: Path, settings: Sequence[str]) -> None:
    """With the same observer as the other."""
    printed, where = made / "local.txt", [f"runs={runs_in(made)}", "name=local"]
    async with freerun(machine, "train", *settings, *where, RunLog.setting(log), log=printed) as process:
        await finished(process, printed)


async def _apart(run: MachineRun) -> None:
    async with run, run.train() as process:
        await finished(process, run.printed)
