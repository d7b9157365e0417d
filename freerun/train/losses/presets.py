"""Every objective by its name, and the one that a configuration asks for. `train.objective=grpo` is all it takes."""

from freerun.train.config import TrainConfig
from freerun.train.losses import cispo, dapo, decoupled_ppo, dr_grpo, grpo, gspo, ppo, reinforce_pp, rloo
from freerun.train.losses.base import Clip, Preset
from freerun.train.losses.corrections import Bounds

PRESETS: dict[str, Preset] = {
    "decoupled_ppo": decoupled_ppo.PRESET,
    "ppo": ppo.PRESET,
    "grpo": grpo.PRESET,
    "dr_grpo": dr_grpo.PRESET,
    "dapo": dapo.PRESET,
    "rloo": rloo.PRESET,
    "reinforce_pp": reinforce_pp.PRESET,
    "gspo": gspo.PRESET,
    "cispo": cispo.PRESET,
}


def resolve(config: TrainConfig) -> Preset:
    """The objective's preset, with what the configuration says otherwise."""
    preset = PRESETS[config.objective]
    return Preset(
        loss=preset.loss,
        clip=Clip(
            preset.clip.low if config.clip_low is None else config.clip_low,
            preset.clip.high if config.clip_high is None else config.clip_high,
            preset.clip.dual if config.dual_clip is None else config.dual_clip,
        ),
        advantages=config.advantages or preset.advantages,
        average=config.average or preset.average,
        proximal=config.proximal or preset.proximal,
        corrections=preset.corrections if config.corrections is None else config.corrections,
    )


def bounds(config: TrainConfig) -> Bounds:
    return Bounds(config.behavior_cap, config.icepop_range, config.geometric_range, config.max_distance)
