"""The trainer's knobs. Defaults follow the paper where it names a value."""

from typing import Literal, Self

from pydantic import model_validator

from freerun.core.section import Section, knob
from freerun.machine.device import Device

_PROXIMAL = {"ppo": "behavior", "cispo": "behavior"}
"""Of objectives that do not recompute: what `proximal` is when it is empty."""


class TrainConfig(Section):
    lr: float = knob(2e-5, "Learning rate, constant after warm-up unless decay_steps is set.", gt=0)
    warmup_steps: int = knob(0, "Steps over which the learning rate rises from zero.", ge=0)
    decay_steps: int = knob(0, "Step at which the learning rate, falling evenly, reaches zero; 0 keeps it.", ge=0)
    betas: tuple[float, float] = knob((0.9, 0.95), "Adam's two averages.")
    eps: float = knob(1e-5, "Adam's epsilon.", gt=0)
    weight_decay: float = knob(0.05, "AdamW's weight decay, on matrices only.", ge=0)
    clip_grad: float = knob(1.0, "Largest gradient norm; larger ones are scaled down to it.", gt=0)
    minibatches: int = knob(1, "Optimizer steps a training step takes, each on its share of the batch.", ge=1)
    micro_batch_tokens: int | None = knob(
        None,
        "Most tokens in one forward and backward pass; empty: 8,192 on a CPU, what fits the memory on a GPU.",
        ge=1,
    )
    ranks: int = knob(1, "Processes that train together, each with a share of the weights (FSDP2).", ge=1)
    device: Literal["auto", "cpu", "cuda"] = knob("auto", "Where the trainer runs; auto: on a GPU if there is one.")
    dtype: Literal["auto", "float32", "bfloat16"] = knob(
        "auto", "What it computes in, over float32 weights; auto: bfloat16 on a GPU, float32 on a CPU."
    )
    recompute: bool = knob(False, "Compute activations again in the backward pass instead of keeping them.")
    compile: bool | None = knob(
        None, "Fuse the small operations of a layer by torch.compile; empty: on a GPU, for 50M parameters or more."
    )
    lora_rank: int = knob(0, "Train a LoRA adapter of this rank instead of the weights; 0 trains the weights.", ge=0)
    lora_alpha: float | None = knob(None, "The adapter counts alpha / rank; empty: twice the rank.", gt=0)
    objective: Literal["decoupled_ppo", "ppo", "grpo", "dr_grpo", "dapo", "rloo", "reinforce_pp", "gspo", "cispo"] = (
        knob("decoupled_ppo", "What is learned. It also decides whichever of the knobs below are empty.")
    )
    clip_low: float | None = knob(
        None, "How far a ratio of probabilities may fall below 1 before it is clipped.", gt=0, le=1
    )
    clip_high: float | None = knob(
        None, "How far a ratio of probabilities may rise above 1 before it is clipped.", gt=0
    )
    dual_clip: float | None = knob(
        None,
        "Where the advantage is negative, a ratio above this counts as this, as in dual-clip PPO; 3 is usual, empty "
        "leaves it free.",
        gt=1,
    )
    average: Literal["token", "sequence", "constant"] | None = knob(
        None, "Whether each token counts the same, or each answer, or tokens against the longest answer allowed."
    )
    proximal: Literal["recompute", "interpolate", "behavior"] | None = knob(
        None,
        "The policy that clipping is relative to: the weights before the step (recompute), a guess at them without a "
        "pass of its own (interpolate), or whatever sampled the token (behavior).",
    )
    corrections: tuple[Literal["token", "sequence", "icepop", "geometric", "distance"], ...] | None = knob(
        None,
        "How older tokens are corrected for: a capped weight by token or by sequence, icepop's mask of tokens, a mask "
        "of sequences by the geometric mean of their tokens' ratios, a mask of tokens already pushed far (distance). "
        "Several may be combined.",
    )
    icepop_range: tuple[float, float] = knob((0.5, 5.0), "icepop keeps tokens of this π_proximal / π_behavior.")
    geometric_range: tuple[float, float] = knob(
        (0.8, 1.25), "geometric keeps sequences whose mean π_proximal / π_behavior is within this."
    )
    max_distance: float = knob(0.2, "distance masks what was pushed further than this from where it was.", gt=0)
    kl_coef: float = knob(0.0, "Weight of the KL divergence from the first model; 0 holds no copy of it.", ge=0)
    kl: Literal["k1", "k2", "k3"] = knob("k3", "Which estimate of that divergence.")
    kl_in: Literal["loss", "reward"] = knob("loss", "Whether it is added to the loss or taken from the reward.")
    entropy_coef: float = knob(0.0, "Weight of the policy's entropy, which the loss then rewards.", ge=0)
    entropy_floor: float | None = knob(
        None,
        "That weight falls with the entropy of the step before, to 0 at so many nats a token: answers stay different "
        "and entropy cannot run away. null: the weight is always whole.",
        gt=0,
    )
    overlong_tokens: int = knob(
        0, "Answers lose reward over the last so many tokens before rollout.max_new_tokens; 0 is off.", ge=0
    )
    overlong_penalty: float = knob(1.0, "The reward lost by an answer of the full length.", ge=0)
    skip_truncated: bool = knob(
        False, "Do not train on answers cut off at rollout.max_new_tokens: what is wrong with them may be the limit."
    )
    behavior_cap: float = knob(5.0, "Largest weight of a token for π_proximal / π_behavior.", ge=1)
    advantages: Literal["group", "group_mean", "rloo", "batch", "gae"] | None = knob(
        None,
        "A reward counts against its group's mean, divided by the group's spread (group) or not (group_mean), against "
        "the group's others (rloo), against the whole batch (batch), or against a critic that learns too (gae).",
    )
    critic_lr: float = knob(1e-5, "The critic's learning rate.", gt=0)
    gamma: float = knob(1.0, "What a reward is worth one token later, to the critic.", gt=0, le=1)
    gae_lambda: float = knob(1.0, "How far the critic's estimate reaches: 1 to the end of the answer.", ge=0, le=1)
    value_clip: float = knob(0.2, "How far the critic's values may move within a step.", gt=0)
    save_every: int = knob(0, "Save a checkpoint every so many steps; 0 saves the last one only.", ge=0)
    keep: int = knob(2, "How many checkpoints stay; an older one goes when a newer one is whole.", ge=1)
    threads: int = knob(1, "CPU threads of the trainer process.", ge=1)

    @model_validator(mode="after")
    def _no_contradictions(self) -> Self:
        weights = [name for name in self.corrections or () if name not in ("geometric", "distance")]
        if len(weights) > 1:
            raise ValueError(f"corrections {' and '.join(weights)} each weigh by π_proximal / π_behavior; keep one")
        if self.corrections and (self.proximal or _PROXIMAL.get(self.objective)) == "behavior":
            raise ValueError(
                "corrections go by π_proximal / π_behavior, which is 1 where the proximal policy is the behavior's; "
                "set train.proximal=recompute, or leave them out"
            )
        if self.dual_clip and self.objective == "cispo":
            raise ValueError("dual_clip does nothing with cispo, which cuts every ratio; set train.clip_high")
        if self.kl_coef and self.kl == "k1" and self.kl_in == "loss":
            raise ValueError("k1 in the loss teaches nothing; set train.kl_in=reward, or train.kl=k2 or k3")
        for key, (low, high) in (("icepop_range", self.icepop_range), ("geometric_range", self.geometric_range)):
            if not 0 <= low < 1 < high:
                raise ValueError(f"{key} should lie around 1, such as [0.5, 2.0]")
        return self

    @property
    def compares_within_groups(self) -> bool:
        """Whether an answer's advantage depends on its group: so it is with every objective but REINFORCE++."""
        return self.advantages not in ("batch", "gae") and not (
            self.advantages is None and self.objective == "reinforce_pp"
        )

    def on(self, device: Device, num_parameters: int) -> "ResolvedTrainConfig":
        """With a value for every knob that device and model decide, where it is empty. Compiling takes half a minute:
        it is worth that for a model of some size, on a GPU."""
        gpu = device == "cuda"
        chosen = {
            "device": device,
            "dtype": ("bfloat16" if gpu else "float32") if self.dtype == "auto" else self.dtype,
            "micro_batch_tokens": self.micro_batch_tokens or (None if gpu else 8_192),
            "compile": gpu and num_parameters > 50_000_000 if self.compile is None else self.compile,
        }
        return ResolvedTrainConfig(**(dict(self) | chosen))

    def lr_at(self, step: int) -> float:
        """The learning rate of step 0, 1, 2, …"""
        warm = min(1.0, (step + 1) / max(self.warmup_steps, 1))
        left = max(0.0, 1.0 - step / self.decay_steps) if self.decay_steps else 1.0
        return self.lr * warm * left

    def entropy_coef_at(self, entropy: float) -> float:
        """The bonus's weight in a step after one of that entropy."""
        if self.entropy_floor is None:
            return self.entropy_coef
        return self.entropy_coef * max(0.0, 1.0 - entropy / self.entropy_floor)


class ResolvedTrainConfig(TrainConfig):
    """What the trainer works with. `micro_batch_tokens` may still be empty: how many fit a GPU is found by trying."""

    device: Device
    dtype: Literal["float32", "bfloat16"]
    compile: bool

    @property
    def low_precision(self) -> bool:
        return self.dtype == "bfloat16"
