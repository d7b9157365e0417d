"""`freerun plan`: what a run would do on machines that one need not have. Reads no data and no weights."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby

from freerun.config.load import config_of
from freerun.config.preset import preset_notes, refuse_unmade
from freerun.config.tree import RunConfig
from freerun.machine.device import choose_device
from freerun.machine.machines import Machine
from freerun.models.published import shape_to_plan_by
from freerun.models.shape import Shape
from freerun.plan.fitting import Fitting, fit
from freerun.plan.imagined import gpu_gib_of, gpus_a_machine, imagined_machines, machines_to_plan_by
from freerun.plan.lengths import Lengths, lengths_of
from freerun.plan.memory import MemoryPlan
from freerun.plan.placement import Placement
from freerun.plan.update import adapter_of, plan_way, update_in_words


def describe_plan(
    config: RunConfig, machines: int | None = None, gpus: int | None = None, gpu_gib: float | None = None
) -> str:
    """On that many machines of that many GPUs each; what is not given is as the configuration says."""
    there = machines_to_plan_by(config)
    if machines is not None or gpus is not None or gpu_gib is not None:
        machines = machines or config.resources.machines
        gpus = gpus_a_machine(config) if gpus is None else gpus
        there = imagined_machines(machines, gpus, gpu_gib or gpu_gib_of(config))
        launcher = "nodes" if machines > 1 and config.launcher == "local" else config.launcher
        changes = {"launcher": launcher, "resources__machines": machines, "resources__gpus": machines * gpus or None}
        config, _ = config_of(config, **changes)
    refuse_unmade(config.preset, config.model.path)
    shape, is_published = shape_to_plan_by(config.model.path)
    lengths = lengths_of(config, [], shape)
    evaluated = config.engine.max_running if config.evaluate.every else 0
    fitting = fit(config, shape, lengths, evaluated, there)
    return "\n".join(_lines(config, shape, is_published, lengths, fitting))


def _lines(config: RunConfig, shape: Shape, is_published: bool, lengths: Lengths, fitting: Fitting) -> Iterator[str]:
    known = ", by its published shape: the model is not here" if is_published else ""
    if config.preset:
        yield f"preset     {config.preset}"
    size = f"{in_billions(shape.num_parameters)} parameters"
    if shape.experts:
        size += f", {in_billions(shape.active_parameters)} of them for a token ({shape.experts.per_token} of "
        size += f"{shape.experts.count} experts a layer)"
    yield f"model      {config.model.path}: {shape.family}, {size}{known}"
    yield from indented("machines", machines_in_words(fitting.placement))
    if fitting.plan:
        yield from indented("memory", memory_in_words(fitting.plan.memory))
    device = choose_device(bool(fitting.placement.gpus))
    engine = config.engine.on(device)
    way, adapter = plan_way(config, fitting.placement, engine, device), adapter_of(config, fitting.placement, engine)
    yield from indented("weights", update_in_words(way, shape, fitting.placement, adapter))
    yield (
        f"batch      {config.control.groups_per_step} groups × {config.rollout.group_size} samples = "
        f"{config.batch_samples:,} a step, in {config.train.minibatches} minibatch(es); sequences of up to "
        f"{lengths.sequence:,} tokens; η {config.control.max_staleness}"
    )
    if fitting.plan:
        yield "fits       yes"
    else:
        yield from indented("fits", [f"no: {fitting.why_not}", *fitting.would])
    for note in preset_notes(config.preset) if config.preset else []:
        yield f"note       {note}"


def indented(name: str, lines: Iterable[str]) -> Iterator[str]:
    """The name before the first line, and blanks before the others."""
    for index, line in enumerate(lines):
        yield f"{name if index == 0 else '':11}{line}"


def in_billions(parameters: int) -> str:
    return f"{parameters / 1e9:.2f}B" if parameters >= 1e9 else f"{parameters / 1e6:.2f}M"


def machines_in_words(placement: Placement) -> Iterator[str]:
    """How many there are, and who runs on each; neighbours that are alike share a line."""
    machines, gpus = placement.machines, len(placement.gpus)
    generating = len({gpu for place in placement.generating for gpu in place.gpus})
    training = len({gpu for place in placement.ranks for gpu in place.gpus})
    idle = gpus - len({gpu for place in (*placement.generating, *placement.ranks) for gpu in place.gpus})
    split = f", {generating} generate and {training} train" + (f", {idle} are not used" if idle else "")
    yield f"{len(machines)}, with {gpus} GPU(s){split if gpus else ''}"
    for what, alike in groupby(machines, lambda machine: (_hardware(machine), _roles(placement, machine))):
        names = [machine.name for machine in alike]
        those = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}, each"
        yield f"{those} ({what[0]}): {what[1]}"


def _hardware(machine: Machine) -> str:
    kinds = Counter(map(str, machine.gpus))
    gpus = ", ".join(f"{count} × {kind}" for kind, count in kinds.items())
    return gpus or "no GPU"


def _roles(placement: Placement, machine: Machine) -> str:
    engines = [place for place in placement.engines if place.machine == machine.name]
    over = f" over {len(engines[0].gpus)} GPUs" if engines and len(engines[0].gpus) > 1 else ""
    ranks = sum(place.machine == machine.name for place in placement.ranks)
    readers = sum(place.machine == machine.name for place in placement.readers)
    evaluates = placement.evaluator is not None and placement.evaluator.machine == machine.name
    roles = [
        f"{len(engines)} engine(s){over}" if engines else "",
        "the evaluator" if evaluates else "",
        f"{ranks} trainer rank(s)" if ranks else "",
        f"{readers} model(s) that only read" if readers else "",
    ]
    return ", ".join(filter(None, roles)) or "nothing"


def memory_in_words(memory: MemoryPlan) -> Iterator[str]:
    """What each GPU holds; those that hold the same share a line."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for gpu in range(len(memory.placement.gpus)):
        here = [share for share in memory.shares if share.need.gpu == gpu]
        held = tuple(
            f"{share.need.name.split()[0]} {share.bytes / 2**30:.1f} GiB ({share.need.what})" for share in here
        )
        if held:
            alike.setdefault((*held, f"of {memory.placement.gpus[gpu].total / 2**30:.1f} GiB"), []).append(gpu)
    for held, gpus in alike.items():
        *processes, total = held
        yield f"{len(gpus)} GPU(s), such as GPU {gpus[0]}: {'; '.join(processes)} {total}"
