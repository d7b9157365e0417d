"""How many tokens one forward and backward pass may have: what fits the memory that is free for it, found by
trying small."""

import torch

from freerun.core import FinishReason, Sample
from freerun.models.shape import Shape
from freerun.train.packing import pack
from freerun.train.ranks import Ranks
from freerun.train.trained import Trained

ON_A_CPU = 8_192
MOST = 131_072
_PROBES = 2_040, 6_136
"""Such as no width of a model has: torch.compile would take the number of tokens for that width, and compile again."""
_SPARE = 0.85
"""Of what is free: allocators fragment. At 1.5B and lengths of 32 to 8,192 a tenth was too little."""


def micro_batch_budget(policy: Trained, shape: Shape, device: torch.device, ranks: Ranks) -> int:
    """Two passes of different size say what a token costs. The optimizer's moments, not there yet, are set aside."""
    if device.type != "cuda":
        return ON_A_CPU
    (small, small_bytes), (large, large_bytes) = ((tokens, _peak(policy, shape, device, tokens)) for tokens in _PROBES)
    per_token = max((large_bytes - small_bytes) / (large - small), 1.0)
    fixed = small_bytes - per_token * small
    shares = sum(p.numel() for p in policy.parameters) / ranks.size
    later = 4 * shares * 4  # gradient, two moments, and one to spare; float32
    free, total = torch.cuda.mem_get_info(device)
    allowed = torch.cuda.get_per_process_memory_fraction(device) * total - torch.cuda.memory_reserved(device)
    free = min(free, int(allowed))
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    tokens = int(((free + unused) * _SPARE - later - fixed) / per_token)
    fewest = -ranks.max(torch.tensor([-float(tokens)], device=device)).item()
    return int(min(max(fewest, _PROBES[0]), MOST))


@torch.enable_grad()
def _peak(policy: Trained, shape: Shape, device: torch.device, tokens: int) -> int:
    """Bytes that a pass over one sequence of that many tokens takes beyond what was there before it."""
    sample = Sample([1] * tokens, [True] * tokens, [0.0] * tokens, [0] * tokens, FinishReason.STOP)
    micro = pack([sample]).to(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    logprobs_A, _ = policy(micro)
    torch.autograd.backward(logprobs_A.sum() * 0.0)
    policy.forget_gradients()
    return torch.cuda.max_memory_allocated(device) - before
