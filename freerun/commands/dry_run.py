"""What a run will do, said before it does it: `freerun train --dry-run`."""

from freerun.run.assignment import judging, plan
from freerun.run.prepare import Prepared


def describe(prepared: Prepared) -> str:
    config, shape, num_tasks = prepared.config, prepared.shape, len(prepared.tasks)
    control, rollout, engine = config.control, config.rollout, config.engine
    placement, memory_plan = plan(prepared, evaluates=bool(config.evaluate.every))
    judges = judging(config, len(placement.engines) + bool(config.evaluate.every), len(placement.ranks))
    batch, eta = config.batch_samples, control.max_staleness
    steps = control.steps
    if control.epochs is not None:
        steps = min(steps, -(-control.epochs * num_tasks // control.groups_per_step))
    cache = f"{engine.cache_tokens:,} tokens" if engine.cache_tokens else "what fits"
    ranks = f"{config.train.ranks} ranks of " if config.train.ranks > 1 else ""
    lines = [
        f"model      {config.model.path}: {shape.family}, {shape.num_parameters / 1e6:.2f}M parameters",
        f"data       {num_tasks} tasks from {config.data.source}",
        "processes  controller (this one)",
        f"           {len(placement.engines)} engine(s): {config.resources.threads} thread(s), {engine.dtype}, "
        f"{engine.max_running} answers at a time, cache: {cache}",
        f"           trainer: {ranks}{config.resources.threads} thread(s), {config.train.objective}, AdamW at "
        f"{config.train.lr:g}",
        f"           {judges.processes} reward worker(s): {config.reward.in_words}, {config.reward.timeout_s:g} s",
    ]
    if config.evaluate.every:
        lines.append(f"           evaluator: an engine of its own, every {config.evaluate.every} steps")
    if note := prepared.held_out_overlap:
        lines.append(f"note       {note}")
    lines += [
        f"batch      {control.groups_per_step} groups × {rollout.group_size} samples = {batch} samples a step, "
        f"in {config.train.minibatches} minibatch(es) of about {batch // config.train.minibatches}",
        f"steps      {steps}, that is {steps * control.groups_per_step / max(num_tasks, 1):.1f} passes over the data",
        f"staleness  at most {eta} version(s) for every trained token; at the bound: {control.when_stale}",
        f"           so at most (η + 1) · B = {(eta + 1) * batch} samples are running or waiting at any time"
        + ("; generation and training take turns" if eta == 0 else ""),
    ]
    memory = [f"memory     {line}" for line in str(memory_plan).splitlines()]
    return "\n".join(lines + memory)
