"""How much of a GPU's memory each process gets, decided before anything is loaded, so that none finds it full.

How many tokens an engine's cache then holds, and how many the trainer takes in a pass, is found when they have loaded
their weights (`engines/embedded/memory.py`, `train/budget.py`): only then is it known what is really free.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from freerun.core import ConfigError
from freerun.engines.config import ResolvedEngineConfig
from freerun.engines.embedded import memory
from freerun.machine.machines import LOCAL
from freerun.models.shape import AdapterShape, Shape, fp8_bytes
from freerun.plan.lengths import Lengths
from freerun.plan.placement import EVALUATOR, Place, Placement, engine_name, rank_name
from freerun.plan.readers import Reader
from freerun.train import needs
from freerun.train.config import ResolvedTrainConfig

_CONTEXT = 2**30
"""What CUDA and its libraries take in each process, whatever it does."""
_SPARE = 0.02
"""The share of a GPU's memory that is left for whoever else uses it."""
_KEPT = 2**30
"""What allocators and kernels keep in each process, at most, and half as much for rounding up; of GPUs that are
smaller, or to be taken less of, a 16th."""
_THEIR_WORK = 6 * 2**30
"""What vLLM and SGLang take beside weights and cache: CUDA graphs, workspaces, two buckets of new weights."""


@dataclass(frozen=True)
class Need:
    """Bytes of one GPU that a process cannot do without, and bytes beyond which it gains nothing."""

    name: str
    gpu: int
    """Numbered through all machines."""
    least: int
    most: int
    what: str
    """What it uses them for."""


@dataclass(frozen=True)
class MemoryShare:
    need: Need
    bytes: int


@dataclass(frozen=True)
class MemoryPlan:
    placement: Placement
    shares: list[MemoryShare]

    def share(self, name: str) -> float | None:
        """The share of its GPU's memory that the process of this name gets, the smallest where it has several GPUs;
        None for one that has no GPU."""
        gpus = self.placement.gpus
        return min((one.bytes / gpus[one.need.gpu].total for one in self.shares if one.need.name == name), default=None)

    def taken(self, gpu: int) -> int:
        """Bytes of that GPU that the run will have taken when caches and passes are as large as they may be."""
        here = [share for share in self.shares if share.need.gpu == gpu]
        return sum(share.bytes for share in here) + _CONTEXT * (len(here) + _visitors(self.placement)[gpu])

    def __str__(self) -> str:
        lines = []
        for index in range(len(self.placement.gpus)):
            here = [share for share in self.shares if share.need.gpu == index]
            processes = "; ".join(f"{share.need.name} {_gib(share.bytes)} ({share.need.what})" for share in here)
            if here:
                lines.append(f"{gpu_in_words(self.placement, index)}: {processes}")
        return "\n".join(lines)


def gpu_in_words(placement: Placement, index: int) -> str:
    """Its number, what it is, and which machine it is in where there are several."""
    machine = f"{placement.machine_of[index].name}: " if len(placement.machines) > 1 else ""
    return f"{machine}GPU {index} ({placement.gpus[index]})"


@dataclass(frozen=True)
class Demand:
    """What a run's need of memory follows from."""

    shape: Shape
    lengths: Lengths
    engine: ResolvedEngineConfig
    train: ResolvedTrainConfig
    evaluated: int
    """Answers that the evaluator is asked for at a time; 0 without one."""
    engine_share: float | None = None
    """The share of a GPU that the user gives each engine; None: what it needs."""
    published_on_gpu: bool = True
    """Whether new versions lie in the trainer's GPU until engines have them."""
    adapter: AdapterShape | None = None
    """What versions are of, where engines compute with an adapter."""
    lending: tuple[int, ...] = ()
    """The GPU on which engines have their base from the trainer."""
    in_place: tuple[int, ...] = ()
    """The GPU on which engines read new versions where the trainer has put them."""
    cap: int | None = None
    """Bytes of each GPU that the run may take, at most."""
    readers: tuple[Reader, ...] = ()
    """Models that only read."""

    @property
    def version_bytes(self) -> int:
        """One version, as engines have it."""
        numbers = self.adapter.num_parameters(self.shape) if self.adapter else self.shape.num_parameters
        return numbers * self.engine_size

    def kept(self, placement: Placement) -> int:
        """What allocators and kernels keep in each process."""
        return min(_KEPT, *(min(gpu.total, self.cap or gpu.total) // 16 for gpu in placement.gpus))

    @property
    def engine_weights(self) -> int:
        """Bytes of all that an engine computes with."""
        if self.engine.weights == "fp8":
            return fp8_bytes(self.shape, self.engine_size)
        return self.shape.num_parameters * self.engine_size

    @property
    def engine_size(self) -> int:
        """Bytes of a number in the engine: in its cache, and in weights as they come."""
        return 4 if self.engine.dtype == "float32" else 2


def with_readers(demand: Demand, placement: Placement, usable: Sequence[int]) -> Placement:
    """Each of them on the GPU that has most left beside what others cannot do without; where there are no GPUs, on the
    trainer's machine, which waits for them most."""
    if not demand.readers:
        return placement
    if not usable:
        at = [*placement.ranks, *placement.generating, Place(LOCAL)][0].machine
        return replace(placement, readers=[Place(at) for _ in demand.readers])
    left = {gpu: placement.gpus[gpu].free for gpu in usable}
    for need in _needs(demand, placement):
        left[need.gpu] = left.get(need.gpu, 0) - need.least
    places = []
    for reader in demand.readers:
        gpu = max(usable, key=left.__getitem__)
        left[gpu] -= reader.least
        places.append(Place(placement.machine_of[gpu].name, (gpu,)))
    return replace(placement, readers=places)


def plan_memory(demand: Demand, placement: Placement) -> MemoryPlan:
    """Every process gets what it needs; the rest is divided in proportion to what each can use."""
    _check_machines(demand, placement)
    shares: list[MemoryShare] = []
    by_gpu: dict[int, list[Need]] = {}
    for need in _needs(demand, placement):
        by_gpu.setdefault(need.gpu, []).append(need)
    visitors = _visitors(placement)
    for index, here in sorted(by_gpu.items()):
        gpu = placement.gpus[index]
        ours = min(gpu.free - int(_SPARE * gpu.total), demand.cap or gpu.total)
        free = ours - _CONTEXT * (len(here) + visitors[index])
        left = free - sum(need.least for need in here)
        if left < 0:
            raise ConfigError(_refusal(gpu_in_words(placement, index), here, free))
        wanted = sum(need.most - need.least for need in here)
        scale = min(1.0, left / wanted) if wanted else 0.0
        shares += [MemoryShare(need, need.least + int(scale * (need.most - need.least))) for need in here]
    return MemoryPlan(placement, shares)


def _visitors(placement: Placement) -> Counter[int]:
    """How many processes of other GPUs fetch weights from each."""
    return Counter(gpu for place in placement.generating for gpu in set(placement.engine_sees(place)) - set(place.gpus))


def _needs(demand: Demand, placement: Placement) -> Iterator[Need]:
    shape, train, longest = demand.shape, demand.train, demand.lengths.sequence
    per_token = needs.bytes_per_token(shape, train)
    in_a_pass = train.micro_batch_tokens or max(needs.PASS_TOKENS, longest)
    for rank, place in enumerate(placement.ranks):
        publishes = rank == 0 and demand.published_on_gpu
        for gpu in place.gpus:
            published = 2 * demand.version_bytes if publishes else 0
            kept = demand.kept(placement)
            standing = needs.standing_bytes(shape, train, len(placement.training), kept) + published + kept // 2
            most, least = max(in_a_pass, longest), longest if train.micro_batch_tokens is None else in_a_pass
            what = f"{_gib(standing)} for weights and optimizer, then passes of up to {most:,} tokens"
            yield Need(rank_name(rank), gpu, standing + least * per_token, standing + most * per_token, what)
    for index, place in enumerate(placement.engines):
        yield from _engine(engine_name(index), place, placement, demand, demand.engine.max_running)
    if placement.evaluator:
        answers = min(demand.evaluated, demand.engine.max_running)
        yield from _engine(EVALUATOR, placement.evaluator, placement, demand, answers)
    for reader, place in zip(demand.readers, placement.readers, strict=False):  # where they have places already
        yield from (Need(reader.name, gpu, reader.least, reader.most, reader.what) for gpu in place.gpus)


def _check_machines(demand: Demand, placement: Placement) -> None:
    """Refuse what is to be in a machine's own memory where that is too small."""
    each = needs.offloaded_bytes(demand.shape, demand.train, len(placement.training) or 1)
    for machine in placement.machines:
        needed = each * sum(rank.machine == machine.name for rank in placement.ranks)
        if needed > machine.memory:
            raise ConfigError(
                f"{machine.name} has {_gib(machine.memory)} of memory, and "
                f"{' and '.join(_offloading(demand.train))} needs {_gib(needed)} of it: unset it, or train on more "
                "machines"
            )


def _offloading(train: ResolvedTrainConfig) -> Iterator[str]:
    if train.optimizer_state == "offload" and not train.lora.rank:
        yield "train.optimizer_state=offload"
    if train.recompute == "offload":
        yield "train.recompute=offload"


def _engine(name: str, place: Place, placement: Placement, demand: Demand, answers: int) -> Iterator[Need]:
    """An engine that decodes so many answers together, on each of its GPUs, over which its weights and its cache are
    spread."""
    shape, engine, size = demand.shape, demand.engine, demand.engine_size
    longest = memory.cache_for(demand.lengths.sequence, engine.block_tokens, engine.burst)
    most = engine.cache_tokens or answers * longest
    least = engine.cache_tokens or max(2 * longest, most // 16)
    for gpu in place.gpus:
        if demand.engine_share is not None:
            given = int(demand.engine_share * placement.gpus[gpu].total)
            yield Need(name, gpu, given, given, "engine.memory_share")
            continue
        borrows = bool(demand.lending) and place.gpus == demand.lending
        weights = 0 if borrows else demand.engine_weights // len(place.gpus)
        if demand.adapter:
            weights = (0 if borrows else demand.adapter.base_bytes(shape, size)) + demand.version_bytes
        standing = weights + _work(demand, place) + demand.kept(placement) // 2
        per_token = memory.bytes_per_token(shape, size) // min(len(place.gpus), shape.kv_heads)
        held = "work, beside the trainer's weights," if borrows else "weights and work,"
        what = f"{_gib(standing)} for {held} then a cache of up to {most:,} tokens"
        yield Need(name, gpu, standing + least * per_token, standing + most * per_token, what)


def _work(demand: Demand, place: Place) -> int:
    """What an engine takes of each of its GPUs beside weights and cache."""
    if demand.engine.kind == "embedded":
        engine = demand.engine.model_copy(
            update={"fetched_in_place": bool(place.gpus) and place.gpus == demand.in_place}
        )
        return memory.working_bytes(demand.shape, demand.engine_size, engine, demand.version_bytes)
    return _THEIR_WORK


def _refusal(gpu: str, here: list[Need], free: int) -> str:
    asked = ", ".join(f"{need.name} {_gib(need.least)}" for need in here)
    return (
        f"{gpu} has {_gib(max(free, 0))} to give, and the least that is needed is {asked}; lower "
        "rollout.max_new_tokens, engine.max_running or train.micro_batch_tokens, set train.recompute=true or "
        "train.lora.rank=16, or choose a smaller model"
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
