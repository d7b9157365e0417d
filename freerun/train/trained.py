"""A module that learns: its precision, its shards, its optimizer. And one that does not.

The optimizer always owns float32 weights (or wider, if they came wider). On a CPU the module computes with those. On
one GPU it computes in bf16, on a copy that follows them; gradients are summed in float32 as they come out of the
backward pass. On several ranks FSDP2 does all that, and each rank owns a share. So there is one loss, to rounding.
"""

import warnings
from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from freerun.core import TrainerError
from freerun.models.adapter import is_adapted, is_of_adapter, is_scale
from freerun.train.config import ResolvedTrainConfig
from freerun.train.lora import merged
from freerun.train.needs import moment_bytes
from freerun.train.optimizer import AdamW, EightBitAdamW, OffloadedAdamW
from freerun.train.ranks import Ranks, full_tensor, own
from freerun.train.shares import decoder_of, share_out

warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")  # of what nobody changes in place


class Trained:
    """`folder` has the weights of a module whose decoder has none yet: on several ranks, each reads its share."""

    def __init__(
        self,
        module: nn.Module,
        config: ResolvedTrainConfig,
        ranks: Ranks,
        lr_scale: float = 1.0,
        folder: Path | None = None,
    ) -> None:
        self._config, self._ranks, self._lr_scale = config, ranks, lr_scale
        weight = next(module.parameters())
        low = config.low_precision
        self._dtype = torch.bfloat16 if low else weight.dtype
        self._owner = module.train()
        self.module = self._owner
        if ranks.size > 1:
            share_out(module, ranks, low, folder)
        elif low:
            self.module = _compute_copy(module)
        decoder = decoder_of(self.module)
        decoder.arrange(config.compile, config.recompute)
        pairs = list(zip(self._owner.parameters(), self.module.parameters(), strict=True))
        self.parameters = [mine for mine, _ in pairs if mine.requires_grad]
        """The optimizer's."""
        self._copies = [copy for mine, copy in pairs if mine.requires_grad and copy is not mine]
        """What the module computes with, of each, where that is something else."""
        self._optimizer = _optimizer(self.parameters, config)

    def __call__(self, *args: Any) -> Any:
        return _compute(self.module, self._ranks, *args)

    @property
    def bytes_to_come(self) -> int:
        """What the first step will add to this device's memory: gradient, moments, and one more to spare."""
        each = 4 + moment_bytes(self._config) + 4
        return int(each * sum(own(parameter).numel() for parameter in self.parameters))

    def clip(self, kept_share: float = 1.0) -> float:
        """Make the gradient ready for `apply`; its norm before it was clipped. Refused if it is not finite.

        `kept_share` is how much of the loss's weight was not masked: what is left counts as if it were all.
        """
        if kept_share < 1.0:
            torch._foreach_mul_([p.grad for p in self.parameters if p.grad is not None], 1 / kept_share)
        norm = full_tensor(torch.nn.utils.clip_grad_norm_(self.parameters, self._config.clip_grad))
        if not torch.isfinite(norm):
            raise TrainerError("the gradient is not finite; lower train.lr, or look at the rewards for huge values")
        return norm.item()

    def apply(self, lr: float) -> None:
        """One optimizer step by the gradient, which is gone then."""
        for group in self._optimizer.param_groups:
            group["lr"] = lr * self._lr_scale
        self._optimizer.step()
        self.forget_gradients()
        if self._copies:
            torch._foreach_copy_([copy.data for copy in self._copies], [mine.data for mine in self.parameters])

    def forget_gradients(self) -> None:
        """Also what memory that ran out in the middle of a backward pass left in the copies."""
        self._optimizer.zero_grad(set_to_none=True)
        for copy in self._copies:
            copy.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """The decoder's weights as the module computes with them, unsharded, under the plain decoder's names. On
        several ranks every one has to ask, and only the first gets them, in the host's memory."""
        if self._ranks.size == 1:
            return dict(self._unsharded())
        return {name: tensor.cpu() for name, tensor in self._unsharded() if self._ranks.is_first}

    def base(self) -> dict[str, Tensor]:
        """Below an adapter: the weights, as the module computes with them. They stay where they are."""
        named = decoder_of(self.module).named_parameters()
        return {name: parameter.detach() for name, parameter in named if not is_of_adapter(name)}

    def part(self, adapter_alone: bool = False) -> Iterator[tuple[str, Tensor]]:
        """Those of `tensors`, or of the adapter's own, that this rank is to publish; all ranks' parts together are all
        of them.

        Every rank has to go through its part to the end: with each step all of them gather one tensor, and the one that
        has had the fewest bytes so far keeps it.
        """
        kept_bytes = [0] * self._ranks.size
        for name, tensor in self._adapter() if adapter_alone else self._unsharded():
            keeper = kept_bytes.index(min(kept_bytes))
            kept_bytes[keeper] += tensor.nbytes
            if keeper == self._ranks.rank:
                yield name, tensor

    def _unsharded(self) -> Iterator[tuple[str, Tensor]]:
        """One after another, so that no more than one is in a GPU's memory at a time."""
        decoder = decoder_of(self.module)
        if is_adapted(decoder):
            yield from ((name, tensor.to(self._dtype)) for name, tensor in merged(decoder))
        else:
            yield from ((name, full_tensor(p.detach().to(self._dtype))) for name, p in decoder.named_parameters())

    def _adapter(self) -> Iterator[tuple[str, Tensor]]:
        named = decoder_of(self.module).named_parameters()
        return ((name, full_tensor(p.detach().to(self._dtype))) for name, p in named if is_of_adapter(name))

    def state(self) -> dict[str, Any]:
        """Weights and the optimizer's state by parameter name: live tensors, or this rank's share of them. Of weights
        below an adapter the model's folder has all that there is to know.

        An optimizer that has not stepped yet is given an empty state first: load into one, do not save one. It is what
        torch's `get_state_dict` would give, which imports the compiler.
        """
        if not self._optimizer.state:
            self._step_nowhere()
        names: dict[Tensor, str] = {parameter: name for name, parameter in self._owner.named_parameters()}
        moments = {names[parameter]: state for parameter, state in self._optimizer.state.items()}
        model = self._owner.state_dict()
        if is_adapted(decoder_of(self._owner)):
            frozen = {name for name, p in self._owner.named_parameters(remove_duplicate=False) if not p.requires_grad}
            model = {name: tensor for name, tensor in model.items() if name not in frozen}
        return {"model": model, "optimizer": moments}

    def _step_nowhere(self) -> None:
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        for group in self._optimizer.param_groups:
            group["lr"] = 0.0
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Any]) -> None:
        """In place: every tensor stays on the device that it is on."""
        live = self.state()
        for name, tensor in live["model"].items():
            tensor.copy_(state["model"][name])
        for name, tensors in live["optimizer"].items():
            for key, tensor in tensors.items():
                tensor.copy_(state["optimizer"][name][key])
        if self.module is not self._owner:
            for mine, copy in zip(self._owner.parameters(), self.module.parameters(), strict=True):
                if copy is not mine:
                    copy.copy_(mine)


class Frozen:
    """A module that only computes; on several ranks in shares, too."""

    def __init__(self, module: nn.Module, ranks: Ranks, folder: Path | None = None) -> None:
        self._ranks = ranks
        self.module = module.eval().requires_grad_(False)
        if ranks.size > 1:
            share_out(module, ranks, low=False, folder=folder)

    @torch.no_grad()
    def __call__(self, *args: Any) -> Any:
        return _compute(self.module, self._ranks, *args)


def copy_in(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy of a module with its parameters in that precision; those that are, or are of fewer bits, and do not learn,
    exist once. What it has besides, such as the frequencies of rotations, stays precise."""
    frozen = ((name, p) for name, p in module.named_parameters() if not p.requires_grad)
    shared = (p for name, p in frozen if p.dtype == dtype or is_scale(name) or not p.is_floating_point())
    once: dict[int, Any] = {id(p): p for p in shared}
    copy = deepcopy(module, once)
    for parameter in copy.parameters():
        if id(parameter) in once:
            continue
        parameter.data = parameter.data.to(dtype)
    return copy


def _compute_copy(owner: nn.Module) -> nn.Module:
    """A copy in bf16 whose gradients go to the owner. Weights that do not learn exist once, in the copy."""
    copy = copy_in(owner, torch.bfloat16)
    for mine, theirs in zip(owner.parameters(), copy.parameters(), strict=True):
        if mine.requires_grad:
            theirs.register_post_accumulate_grad_hook(partial(_hand_over, mine))  # type: ignore[no-untyped-call]
        else:
            mine.data = theirs.data
    return copy


def _hand_over(owner: nn.Parameter, parameter: Tensor) -> None:
    assert parameter.grad is not None
    if owner.grad is None:
        owner.grad = parameter.grad.to(owner.dtype)
    else:
        owner.grad += parameter.grad
    parameter.grad = None


def _compute(module: nn.Module, ranks: Ranks, *args: Any) -> Any:
    result = module(*args, ranks.context)
    if ranks.size > 1 and not torch.is_grad_enabled():
        cast(Any, module).reshard()  # FSDP2 leaves that to a backward pass, and none will come
    return result


_OPTIMIZERS = {"32bit": AdamW, "8bit": EightBitAdamW, "offload": OffloadedAdamW}


def _optimizer(learning: list[nn.Parameter], config: ResolvedTrainConfig) -> AdamW:
    return _OPTIMIZERS[config.optimizer_state](
        [
            {"params": [p for p in learning if p.dim() > 1], "weight_decay": config.weight_decay},
            {"params": [p for p in learning if p.dim() <= 1], "weight_decay": 0.0},
        ],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        fused=True if learning[0].is_cuda else None,
    )
