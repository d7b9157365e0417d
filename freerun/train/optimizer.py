"""AdamW as torch computes it, without torch's compiler; one whose moments are of 8 bits; and one whose moments are in
the machine's memory.

torch marks an optimizer's methods as not to be compiled, and imports its compiler to do so, which takes a second and 60
MB. Nobody compiles an optimizer here, so the methods are taken without that wrapper.
"""

from collections.abc import Callable
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from freerun.train.moments import Adam, Moments, empty_moments, has_blocks, take_step
from freerun.train.ranks import own


class AdamW(torch.optim.AdamW):
    add_param_group = unwrap(torch.optim.AdamW.add_param_group)
    zero_grad = unwrap(torch.optim.AdamW.zero_grad)
    state_dict = unwrap(torch.optim.AdamW.state_dict)
    load_state_dict = unwrap(torch.optim.AdamW.load_state_dict)
    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))


class EightBitAdamW(AdamW):
    """Moments of matrices are of 8 bits (`moments.py`), all others as usual: 2 bytes a weight instead of 8. A matrix's
    gradient is gone as soon as it is used."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and has_blocks(parameter.shape):
                    self._step_one(parameter, own(parameter.grad), group)
                    parameter.grad = None
        super().step()

    def _step_one(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            empty = empty_moments(own(parameter))
            state |= {name: _shared_as(parameter, part) for name, part in zip(EIGHT_BIT_MOMENTS, empty, strict=True)}
        state["step"] += 1
        moments = Moments(*(own(state[name]) for name in EIGHT_BIT_MOMENTS))
        adam = Adam(group["lr"], group["weight_decay"], group["betas"], group["eps"], int(state["step"]))
        take_step(own(parameter), gradient, moments, adam)


EIGHT_BIT_MOMENTS = ("exp_avg_codes", "exp_avg_scale", "exp_avg_sq_codes", "exp_avg_sq_scale")
"""What a checkpoint calls them: not by torch's names, for what is saved in one way must not be taken for the other."""


class OffloadedAdamW(AdamW):
    """Moments are in the machine's memory, and the step is taken there, one tensor after another: its weights and
    gradient come over, and the weights go back. A GPU is spared 8 of the 16 bytes that a weight takes otherwise, for 12
    bytes a weight over its bus in each optimizer step."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_one(parameter, own(parameter.grad).cpu(), group)

    def _step_one(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state |= {"step": torch.zeros(()), "exp_avg": _zeros(parameter), "exp_avg_sq": _zeros(parameter)}
        weight = own(parameter)
        stepped = weight.cpu()
        adamw(
            *([stepped], [gradient], [own(state["exp_avg"])], [own(state["exp_avg_sq"])], [], [state["step"]]),
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
        if stepped is not weight:
            weight.copy_(stepped)


def _shared_as(parameter: Tensor, part: Tensor) -> Tensor:
    """This rank's rows of something, shared out as the parameter is, where it is."""
    spec = getattr(parameter, "_spec", None)
    if spec is None:
        return part
    from torch.distributed.tensor import DTensor  # slow to import, and of no use to one rank

    shape = torch.Size((*parameter.shape[:-1], part.shape[-1]))
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(part, spec.mesh, spec.placements, run_check=False, shape=shape, stride=stride)


def _zeros(parameter: Tensor) -> Tensor:
    """In the machine's memory, of this rank's share and with its place among the ranks, where it has one."""
    zeros = torch.zeros_like(own(parameter), device="cpu")
    spec = getattr(parameter, "_spec", None)
    if spec is None:
        return zeros
    from torch.distributed.tensor import DTensor  # slow to import, and of no use to one rank

    # `from_local` would bring it to the ranks' device
    return DTensor(zeros, spec, requires_grad=False)  # type: ignore[no-untyped-call]
