"""The processes that train together, on one machine or on several. One alone is the same thing with nobody to talk to.

Ranks are in teams: those of a team compute the same micro-batches, each its part of every sequence
(`train.context_parallel`, `context.py`), and teams have different ones. Team 0 is the first so many ranks, and so on,
which is on one machine where ranks are placed machine by machine. The weights are shared out among all ranks; with
`train.shard: machine` among those of each machine, and machines hold copies (HSDP).
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Literal, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from freerun.core import ConfigError, FreerunError
from freerun.machine.machines import LOCAL, LOOPBACK
from freerun.train.context import ONE, Context
from freerun.train.rendezvous import PATIENCE, meet

T = TypeVar("T")
_IDLE = timedelta(days=30)
"""How long the next request may take to come: generation takes its time."""


class Ranks:
    """Sums over all teams, and what the first rank has to say. Everybody has to call the same methods in turn."""

    mesh: DeviceMesh | None = None
    """Over which the weights are shared out: all ranks, or machines × ranks of a machine."""
    aside: dist.ProcessGroup | None = None
    """For what is done beside training, on another thread: two threads would confuse each other's messages."""

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        device: str = "cpu",
        machine: str = LOCAL,
        shard: Literal["all", "machine"] = "all",
        context: int = 1,
    ) -> None:
        if size % context:
            raise ConfigError(f"train.ranks={size} is not a multiple of train.context_parallel={context}")
        self.rank, self.size, self.device = rank, size, device
        self.machines = [machine]
        """Each rank's: ranks tell each other when they have met."""
        self.context = ONE
        self.num_teams, self.team = size // context, rank // context
        if size > 1:
            self.aside = dist.new_group(backend="gloo", timeout=PATIENCE)
            self._requests = dist.new_group(backend="gloo", timeout=_IDLE)
            self.machines = self.everyones(machine)
            self.mesh = _mesh(device, self.machines if shard == "machine" else [LOCAL] * size)
        if context > 1:
            teams = init_device_mesh(device, (self.num_teams, context), mesh_dim_names=("team", "context"))
            self.context = Context(context, rank % context, teams.get_group("context"))

    @classmethod
    def join(
        cls,
        rank: int,
        size: int,
        rendezvous: str,
        device: str,
        host: str = LOOPBACK,
        machine: str = LOCAL,
        shard: Literal["all", "machine"] = "all",
        context: int = 1,
    ) -> "Ranks":
        """Wait for the others (`rendezvous.py` says at what URL). `host` is the address at which other ranks reach this
        one, `machine` what notes and errors call where it is. On a GPU each rank sees one, its own."""
        if size > 1:
            meet(rank, size, rendezvous, device, host)
        return cls(rank, size, device, machine, shard, context)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def sharing(self) -> int:
        """How many ranks share one copy of the weights."""
        return self.mesh.shape[-1] if self.mesh else 1

    def sum(self, values: Tensor) -> Tensor:
        """Over teams: all ranks of a team have the same values."""
        if self.size > 1:
            if self.context.position:
                values.zero_()  # one of each team counts; and all ranks have the result of one sum, equal in every bit
            dist.all_reduce(values)
        return values

    def max(self, values: Tensor) -> Tensor:
        """Over all ranks."""
        if self.size > 1:
            dist.all_reduce(values, dist.ReduceOp.MAX)
        return values

    def say(self, message: T | None) -> T:
        """The first rank's message, for all."""
        box = [message]
        if self.size > 1:
            dist.broadcast_object_list(box, src=0, group=self._requests, device=torch.device("cpu"))
        return cast(T, box[0])

    def everyones(self, message: T) -> list[T]:
        """What each rank has to say, by rank."""
        box: list[T | None] = [message] * self.size
        if self.size > 1:
            dist.all_gather_object(box, message, group=self._requests)
        return cast(list[T], box)

    def for_first(self, message: T) -> list[T]:
        """What each team has to say, by team, for the first rank; for the others nothing."""
        if self.size == 1:
            return [message]
        box: list[T | None] | None = [None] * self.size if self.is_first else None
        dist.gather_object(message if not self.context.position else None, box, dst=0, group=self._requests)
        return cast(list[T], (box or [])[:: self.context.size])

    def by_first(self, work: Callable[[], T]) -> T:
        """What the first rank alone does, and what came of it for all: the result, or the error."""
        outcome: T | FreerunError | None = None
        if self.is_first:
            try:
                outcome = work()
            except FreerunError as error:
                outcome = error
        said = self.say(outcome)
        if isinstance(said, FreerunError):
            raise said
        return cast(T, said)

    def each(self, work: Callable[[], T]) -> list[T]:
        """What every rank does by itself, and what came of it for all: the results in the order of ranks, or the first
        error."""
        outcome: T | FreerunError
        try:
            outcome = work()
        except FreerunError as error:
            outcome = error
        outcomes = self.everyones(outcome)
        for one in outcomes:
            if isinstance(one, FreerunError):
                raise one
        return cast(list[T], outcomes)


ALONE = Ranks()


def _mesh(device: str, machines: list[str]) -> DeviceMesh:
    """All ranks in a row, or where they are on several of these machines, a row for each of them."""
    rows = [[rank for rank, at in enumerate(machines) if at == machine] for machine in dict.fromkeys(machines)]
    if len({len(row) for row in rows}) > 1:
        counts = ", ".join(f"{len(row)} on {machines[row[0]]}" for row in rows)
        raise ConfigError(f"train.shard=machine needs as many ranks on each machine ({counts}): set train.shard=all")
    if len(rows) == 1:
        return init_device_mesh(device, (len(machines),))
    return DeviceMesh(device, rows, mesh_dim_names=("machine", "rank"))


def full_tensor(tensor: Tensor) -> Tensor:
    """The entire tensor, where this rank has a share of it. All ranks have to call this.

    A share is a DTensor. It is recognized by its methods: the class takes half a second to import, and a trainer of one
    rank never needs it.
    """
    gather: Callable[[], Tensor] | None = getattr(tensor, "full_tensor", None)
    return gather() if gather else tensor


def own(tensor: Tensor) -> Tensor:
    """This rank's share, where it has one."""
    local: Callable[[], Tensor] | None = getattr(tensor, "to_local", None)
    return local() if local else tensor
