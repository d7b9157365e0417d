"""`--dry-run` of `freerun train`, `sft` and `dpo`: describe what a run would do, try what it needs, start nothing."""

from freerun.commands.plan import describe_plan, indented, machines_in_words
from freerun.commands.trial import Trial, try_run
from freerun.config.text import Origins
from freerun.config.tree import RunConfig
from freerun.core import FreerunError
from freerun.plan.imagined import machines_to_plan_by
from freerun.plan.placement import RunKind
from freerun.run.notes import notes_of
from freerun.run.prepare import Prepared


async def dry_run(config: RunConfig, origins: Origins, command: str = "train") -> Trial:
    """What the run would do is in `works`, before what was tried; what would fail in `fails`."""
    kind = RunKind(command)
    trial = await try_run(config, origins, kind)
    if trial.prepared is not None:
        prepared = trial.prepared
        told = trial.attempt(lambda: describe_lesson(prepared, kind) if kind.supervised else describe(prepared))
    else:  # the model is not here, or the data cannot be read
        told = _plan_if_any(config)
    trial.works[:0] = [told] if told else []
    return trial


def _plan_if_any(config: RunConfig) -> str | None:
    """What keeps it from being made has been told."""
    try:
        return describe_plan(config)
    except FreerunError:
        return None


def describe_lesson(prepared: Prepared, kind: RunKind) -> str:
    config, shape, num_tasks = prepared.config, prepared.shape, len(prepared.tasks)
    machines = None if config.launcher == "local" else machines_to_plan_by(config)
    evaluates = kind is RunKind.SFT and config.sft.until is not None
    plan = prepared.plan(kind, evaluates=evaluates, machines=machines)
    what = "pairs" if kind is RunKind.DPO else "answers"
    batch, steps, train = config.control.groups_per_step, config.control.steps, plan.train
    ranks = f"{train.ranks} ranks of " if train.ranks > 1 else ""
    until = f", or until pass@1 is {config.sft.until:g} on held_out" if evaluates else ""
    lines = [
        f"model      {config.model.path}: {shape.family}, {shape.num_parameters / 1e6:.2f}M parameters",
        f"data       {num_tasks} {what} to learn from {config.data.source}",
        f"processes  trainer: {ranks}{plan.threads} thread(s), {train.dtype} on {train.device}, AdamW at {train.lr:g}",
        f"steps      {steps} of {batch} {what}, that is {steps * batch / num_tasks:.1f} passes over the data{until}",
    ]
    if kind is RunKind.DPO:
        lines.append(f"objective  DPO, β {config.dpo.beta:g}; the model as it is now is the reference, worked out once")
        if prepared.held_out:
            every = config.evaluate.every or 50
            lines.append(f"evaluates  {len(prepared.held_out)} pairs of held_out every {every} steps")
    return "\n".join(lines + [f"memory     {line}" for line in str(plan.memory).splitlines()])


def describe(prepared: Prepared) -> str:
    """Machines that are yet to join are imagined."""
    config, shape, num_tasks = prepared.config, prepared.shape, len(prepared.tasks)
    machines = None if config.launcher == "local" else machines_to_plan_by(config)
    plan = prepared.plan(evaluates=bool(config.evaluate.every), machines=machines)
    control, rollout, engine, train = config.control, config.rollout, plan.engine, plan.train
    batch, eta = config.batch_samples, control.max_staleness
    steps = control.steps
    if control.epochs is not None:
        steps = min(steps, -(-control.epochs * num_tasks // control.groups_per_step))
    cache = f"{engine.cache_tokens:,} tokens" if engine.cache_tokens else "what fits"
    ranks = f"{train.ranks} ranks of " if train.ranks > 1 else ""
    lines = [
        f"model      {config.model.path}: {shape.family}, {shape.num_parameters / 1e6:.2f}M parameters",
        f"data       {num_tasks} tasks from {config.data.source}",
        "processes  controller (this one)",
        f"           {len(plan.engines)} engine(s): {plan.threads} thread(s), {engine.dtype} on {engine.device}, "
        f"{engine.max_running} answers at a time, cache: {cache}",
        f"           trainer: {ranks}{plan.threads} thread(s), {train.dtype} on {train.device}, {train.objective}, "
        f"AdamW at {train.lr:g}",
        f"           {plan.reward.processes} reward worker(s): {config.reward.in_words}, {config.reward.timeout_s:g} s",
    ]
    where = f"{train.dtype} on {train.device}"
    lines += [f"           {reader.process}: a process of its own, {where}" for reader in plan.readers]
    if config.train.teacher_url:
        lines.append(f"           teacher: at {config.train.teacher_url}")
    if machines:
        waits = f"the run waits {config.cluster.wait_s:g} s for them at {config.cluster.listen}, and plans again"
        lines += indented("machines", [*machines_in_words(plan.placement), waits])
    if config.evaluate.every:
        lines.append(f"           evaluator: an engine of its own, every {config.evaluate.every} steps")
    lines += [f"note       {note}" for note in notes_of(prepared)]
    lines += [
        f"batch      {control.groups_per_step} groups × {rollout.group_size} samples = {batch} samples a step, "
        f"in {config.train.minibatches} minibatch(es) of about {batch // config.train.minibatches}",
        f"steps      {steps}, that is {steps * control.groups_per_step / max(num_tasks, 1):.1f} passes over the data",
        f"staleness  at most {eta} version(s) for every trained token; at the bound: {control.when_stale}",
        f"           so at most (η + 1) · B = {(eta + 1) * batch} samples are running or waiting at any time"
        + ("; generation and training take turns" if eta == 0 else ""),
    ]
    memory = [f"memory     {line}" for line in str(plan.memory).splitlines()]
    return "\n".join(lines + memory)
