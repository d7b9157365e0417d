"""What a learner works with: the policy, and where the configuration asks for them, a critic and a reference."""

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import torch

from freerun.models.decoder import Decoder
from freerun.train.config import ResolvedTrainConfig
from freerun.train.how_sampled import ALL, HowSampled
from freerun.train.lora import attach
from freerun.train.models import CriticModel, PolicyModel
from freerun.train.needs import refuse_uneven_heads
from freerun.train.ranks import Ranks
from freerun.train.trained import Frozen, Trained, copy_in


@dataclass(frozen=True)
class Models:
    policy: Trained
    critic: Trained | None
    """Learns what to expect, for `train.advantages: gae`."""
    reference: Frozen | None
    """The model that training began with, for `train.kl`."""


def assemble(
    decoder: Decoder,
    config: ResolvedTrainConfig,
    ranks: Ranks,
    temperature: float,
    seed: int,
    folder: Path | None,
    how: HowSampled = ALL,
) -> Models:
    """All from one decoder, which becomes the policy's; `folder` has the weights of one that is on the meta device. In
    mixtures of experts critic and reference choose theirs themselves: what the engine chose was the policy's."""
    refuse_uneven_heads(decoder.shape, ranks.context.size)
    start = decoder.embed.weight.dtype
    low = torch.bfloat16 if config.low_precision else start
    if config.lora.rank and ranks.size == 1:
        decoder.requires_grad_(False)  # so that a reference has no weights of its own
    reference, critic = None, None
    if config.kl.coef:
        reference = Frozen(copy_in(PolicyModel(decoder, temperature), low), ranks, folder)
    if config.advantages == "gae":
        critic = Trained(
            CriticModel(deepcopy(decoder).requires_grad_()), config, ranks, config.critic.lr / config.lr, folder
        )
    if config.lora.rank:
        learns_in = torch.promote_types(start, torch.float32)
        attach(decoder, config.lora.rank, config.lora.effective_alpha, seed=seed, dtype=learns_in)
    policy = Trained(PolicyModel(decoder, temperature, how, config.replay_router), config, ranks, folder=folder)
    return Models(policy, critic, reference)
