"""The trainer's knobs. Defaults follow the paper where it names a value."""

from typing import Literal

from freerun.core.section import Section, knob


class TrainConfig(Section):
    lr: float = knob(2e-5, "Learning rate, constant after warm-up unless decay_steps is set.", gt=0)
    warmup_steps: int = knob(0, "Steps over which the learning rate rises from zero.", ge=0)
    decay_steps: int = knob(0, "Step at which the learning rate, falling evenly, reaches zero; 0 keeps it.", ge=0)
    betas: tuple[float, float] = knob((0.9, 0.95), "Adam's two averages.")
    eps: float = knob(1e-5, "Adam's epsilon.", gt=0)
    weight_decay: float = knob(0.05, "AdamW's weight decay, on matrices only.", ge=0)
    clip_grad: float = knob(1.0, "Largest gradient norm; larger ones are scaled down to it.", gt=0)
    minibatches: int = knob(1, "Optimizer steps a training step takes, each on its share of the batch.", ge=1)
    micro_batch_tokens: int = knob(32_768, "Most tokens in one forward and backward pass.", ge=1)
    clip_ratio: float = knob(0.2, "PPO's ε: how far policy and proximal probabilities may part within a step.", gt=0)
    behavior_cap: float = knob(5.0, "Largest weight of a token for π_proximal / π_behavior.", ge=1)
    advantages: Literal["group", "group_mean", "batch"] = knob(
        "group",
        "A reward counts against its group's mean, divided by the group's spread (group) or not (group_mean), or "
        "against the whole batch (batch).",
    )
    save_every: int = knob(0, "Save a checkpoint every so many steps; 0 saves the last one only.", ge=0)
    threads: int = knob(1, "CPU threads of the trainer process.", ge=1)

    def lr_at(self, step: int) -> float:
        """The learning rate of step 0, 1, 2, …"""
        warm = min(1.0, (step + 1) / max(self.warmup_steps, 1))
        left = max(0.0, 1.0 - step / self.decay_steps) if self.decay_steps else 1.0
        return self.lr * warm * left
