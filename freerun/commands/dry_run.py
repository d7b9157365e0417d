"""`freerun train --dry-run`: describe what a run would do, and start nothing."""

from freerun.commands.plan import indented, machines_in_words
from freerun.plan.imagined import machines_to_plan_by
from freerun.run.prepare import Prepared


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
    if machines:
        waits = f"the run waits {config.cluster.wait_s:g} s for them at {config.cluster.listen}, and plans again"
        lines += indented("machines", [*machines_in_words(plan.placement), waits])
    if config.evaluate.every:
        lines.append(f"           evaluator: an engine of its own, every {config.evaluate.every} steps")
    if note := prepared.held_out_warning:
        lines.append(f"note       {note}")
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
