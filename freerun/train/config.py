"""The trainer's settings. Defaults follow the paper where it names a value.

What the objective implies is filled in when a `TrainConfig` is made, so that every field has its value, and whoever
reads one need not ask which objective it is. Importable without torch.
"""

from math import inf
from typing import Any, Literal, Self

from pydantic import field_validator, model_validator

from freerun.core.section import Section, by_dotted_key, knob, with_key
from freerun.machine.device import Device
from freerun.train.corrections import Correction, DistanceMask, TokenWeight
from freerun.train.implied import DEFAULT_OBJECTIVE, NOT_WITHIN_GROUPS, implied
from freerun.train.losses import find_objective
from freerun.train.objective import Clip


class ClipConfig(Section):
    low: float = knob(0.2, "How far a ratio of probabilities may fall below 1 before it is clipped.", gt=0, le=1)
    high: float = knob(0.2, "How far a ratio of probabilities may rise above 1 before it is clipped.", gt=0)
    dual: float | None = knob(
        None,
        "Where the advantage is negative, a ratio above this counts as this, as in dual-clip PPO; 3 is usual, empty "
        "leaves it free.",
        gt=1,
    )

    @property
    def bounds(self) -> Clip:
        return Clip(self.low, self.high, inf if self.dual is None else self.dual)


class KlConfig(Section):
    coef: float = knob(0.0, "Weight of the KL divergence from the first model; 0 holds no copy of that model.", ge=0)
    estimator: Literal["k1", "k2", "k3"] = knob("k3", "How the divergence is estimated from the sampled tokens.")
    apply_to: Literal["loss", "reward"] = knob("loss", "Whether it is added to the loss or taken from the reward.")

    @model_validator(mode="after")
    def _k1_has_no_gradient(self) -> Self:
        if self.coef and self.estimator == "k1" and self.apply_to == "loss":
            raise ValueError(
                "k1 in the loss teaches nothing; set train.kl.apply_to=reward, or train.kl.estimator=k2 or k3"
            )
        return self


class EntropyConfig(Section):
    coef: float = knob(0.0, "Weight of the policy's entropy, which the loss then rewards.", ge=0)
    floor: float | None = knob(
        None,
        "The weight falls with the entropy of the step before, to 0 at this many nats per token: answers stay "
        "different and entropy cannot run away. Empty: the weight is constant.",
        gt=0,
    )

    def coef_after(self, entropy: float) -> float:
        """The weight in a step after one of that entropy."""
        if self.floor is None:
            return self.coef
        return self.coef * max(0.0, 1.0 - entropy / self.floor)


class CriticConfig(Section):
    lr: float = knob(1e-5, "The critic's learning rate.", gt=0, allow_inf_nan=False)
    gamma: float = knob(1.0, "What a reward is worth one token later, to the critic.", gt=0, le=1)
    lam: float = knob(1.0, "The λ of GAE: how far an estimate looks ahead; 1 to the end of the answer.", ge=0, le=1)
    clip: float = knob(0.2, "How far the critic's values may move within a step.", gt=0)


class LoraConfig(Section):
    rank: int = knob(0, "Train a LoRA adapter of this rank instead of the weights; 0 trains the weights.", ge=0)
    alpha: float | None = knob(None, "The adapter is scaled by alpha / rank; empty: twice the rank.", gt=0)

    bits: Literal[16, 8, 4] = knob(
        16,
        "Bits that each number of the layers below the adapter takes, in trainer and engine; they are of the type that "
        "is computed in at 16, and rounded below.",
    )

    @property
    def effective_alpha(self) -> float:
        """Alpha, whether it was set or not; 0 without an adapter."""
        return (self.alpha or 2.0 * self.rank) if self.rank else 0.0


class TrainConfig(Section):
    lr: float = knob(
        2e-5, "Learning rate, constant after warm-up unless decay_steps is set.", gt=0, allow_inf_nan=False
    )
    warmup_steps: int = knob(0, "Steps over which the learning rate rises from zero.", ge=0)
    decay_steps: int = knob(0, "Step at which the learning rate, falling evenly, reaches zero; 0 keeps it.", ge=0)
    betas: tuple[float, float] = knob((0.9, 0.95), "Adam's decay rates, of the mean and of the variance.")
    eps: float = knob(1e-5, "Adam's epsilon.", gt=0)
    weight_decay: float = knob(0.05, "AdamW's weight decay, on matrices only.", ge=0)
    clip_grad: float = knob(1.0, "Largest gradient norm; larger ones are scaled down to it.", gt=0)
    minibatches: int = knob(1, "Optimizer steps in one training step, each on its share of the batch.", ge=1)
    micro_batch_tokens: int | None = knob(
        None,
        "Most tokens in one forward and backward pass; empty: 8,192 on a CPU, what fits the memory on a GPU.",
        ge=1,
    )
    ranks: int | None = knob(
        None,
        "Processes that train together, each with a share of the weights (FSDP2); empty: one on each GPU that trains, "
        "or on each machine that does where there are no GPUs.",
        ge=1,
    )
    shard: Literal["all", "machine"] = knob(
        "all",
        "Whether ranks of all machines share the weights out among them, or those of each machine do and machines hold "
        "copies (HSDP): more memory, and less to send.",
    )
    context_parallel: int = knob(
        1,
        "Ranks that share each sequence (Ulysses), for sequences longer than one rank's memory holds; it divides "
        "train.ranks and the model's heads.",
        ge=1,
    )
    optimizer_state: Literal["32bit", "8bit", "offload"] = knob(
        "32bit",
        "How Adam's two moments are kept. 32bit: 8 bytes a weight; 8bit: 2, rounded block by block; offload: none of a "
        "GPU's memory, but 8 of the machine's, where steps are taken then, and slower.",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = knob(
        "auto", "What it computes in, over float32 weights; auto: bfloat16 on a GPU, float32 on a CPU."
    )
    replay_router: bool = knob(
        True,
        "In mixtures of experts each token goes through the experts that it went through in the engine, where that "
        "tells; it then tells for every token, a byte for each layer and expert.",
    )
    recompute: bool | Literal["all", "offload"] = knob(
        False,
        "Compute activations again in the backward pass instead of keeping them; all: those of the attention, too, "
        "for sequences several times as long; offload: and what comes into each layer waits in the machine's memory.",
    )
    objective: str = knob(
        DEFAULT_OBJECTIVE,
        "What is learned: decoupled_ppo, ppo, grpo, dr_grpo, dapo, rloo, reinforce_pp, gspo, cispo, distill, or your "
        "own as FILE.py:NAME. It implies other settings, which hold unless you set them: see docs/objectives.md.",
    )
    advantages: Literal["group", "group_mean", "rloo", "batch", "gae", "none"] = knob(
        "group",
        "A reward counts against its group's mean, divided by the group's spread (group) or not (group_mean), against "
        "the group's others (rloo), against the entire batch (batch), against a critic that learns too (gae), or "
        "not at all (none).",
    )
    teacher: str | None = knob(
        None,
        "Who teaches, for train.objective=distill: a model's folder, or its name on the hub, with the same tokenizer "
        "as model.path; or the URL of a server that gives log-probabilities of prompts, vLLM's or that of `freerun "
        "serve --score`, whose key is FREERUN_TEACHER_KEY.",
    )
    average: Literal["token", "sequence", "constant"] = knob(
        "token", "Whether each token counts the same, or each answer, or tokens against the longest answer allowed."
    )
    proximal: Literal["recompute", "interpolate", "behavior"] = knob(
        "recompute",
        "The policy that clipping is relative to: the weights before the step (recompute), a guess at them without a "
        "pass of its own (interpolate), or whatever sampled the token (behavior).",
    )
    corrections: tuple[Correction, ...] = knob(
        (TokenWeight(), DistanceMask()),
        "How older tokens are corrected for: a capped weight by token or by sequence, icepop's mask of tokens, a mask "
        "of sequences by the geometric mean of their tokens' ratios (geometric), a mask of tokens already pushed far "
        "(distance). Several may be combined, each a name or {name: icepop, low: 0.5, high: 5}.",
    )
    clip: ClipConfig = knob(ClipConfig(), "Where the objective's ratio is clipped.")
    kl: KlConfig = knob(KlConfig(), "What moving away from the first model costs.")
    entropy: EntropyConfig = knob(EntropyConfig(), "A bonus for the policy's entropy.")
    overlong_share: float = knob(
        0.0,
        "Answers lose reward, up to 1, over this last share of rollout.max_new_tokens; 0 is off. The judge overlong "
        "does the same with a weight.",
        ge=0,
        le=1,
    )
    skip_truncated: bool = knob(
        False, "Do not train on answers cut off at rollout.max_new_tokens: what is wrong with them may be the limit."
    )
    critic: CriticConfig = knob(CriticConfig(), "The critic of train.advantages=gae.")
    lora: LoraConfig = knob(LoraConfig(), "An adapter to train instead of the weights.")
    save_every: int | None = knob(
        None, "Save a checkpoint every so many steps; 0 saves the last one only, empty one every ten minutes.", ge=0
    )
    keep: int = knob(2, "How many checkpoints to keep; an older one is deleted once a newer one is complete.", ge=1)

    @model_validator(mode="before")
    @classmethod
    def _fill_in_what_the_objective_implies(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        tree: dict[str, Any] = {"train": values}
        for key, value in implied(dict(by_dotted_key(tree))).items():
            if key.startswith("train."):
                tree = with_key(tree, key, value)
        return tree["train"]

    @field_validator("objective")
    @classmethod
    def _exists(cls, objective: str) -> str:
        find_objective(objective)
        return objective

    @model_validator(mode="after")
    def _no_contradictions(self) -> Self:
        weights = [correction.name for correction in self.corrections if correction.weighs]
        if len(weights) > 1:
            raise ValueError(f"corrections {' and '.join(weights)} each weigh by π_proximal / π_behavior; keep one")
        if self.corrections and self.proximal == "behavior":
            raise ValueError(
                "corrections go by π_proximal / π_behavior, which is 1 where the proximal policy is the behavior's; "
                "set train.proximal=recompute, or leave them out"
            )
        if self.lora.bits < 16 and (not self.lora.rank or self.advantages == "gae"):
            raise ValueError(
                f"train.lora.bits={self.lora.bits} rounds weights that do not learn: set train.lora.rank, and leave "
                "train.advantages=gae, whose critic learns all of them"
            )
        if self.ranks and self.ranks % self.context_parallel:
            fitting = max(self.ranks // self.context_parallel, 1) * self.context_parallel
            raise ValueError(
                f"train.ranks={self.ranks} is no multiple of train.context_parallel={self.context_parallel}, the ranks "
                f"that share each sequence: set train.ranks={fitting}, or lower train.context_parallel"
            )
        taught = find_objective(self.objective).taught
        if taught and not self.teacher:
            raise ValueError(
                f"{self.objective} needs a teacher: set train.teacher to a model's folder or a server's URL"
            )
        if self.teacher and not taught:
            raise ValueError(f"train.teacher does nothing with {self.objective}: set train.objective=distill")
        if self.advantages == "none" and not taught:
            raise ValueError("train.advantages is none, so nothing is learned: choose another, or a teacher")
        mine = dict(by_dotted_key({"train": self.model_dump()}))
        for key, instead in find_objective(self.objective).refuses.items():
            if mine.get(key) != _DEFAULTS.get(key):
                raise ValueError(f"{key} does nothing with {self.objective}: {instead}")
        return self

    @property
    def compares_within_groups(self) -> bool:
        """Whether an answer's advantage depends on the others of its group."""
        return self.advantages not in NOT_WITHIN_GROUPS

    @property
    def teacher_url(self) -> str | None:
        """The URL of the server that teaches, if a server does."""
        return self.teacher if self.teacher and self.teacher.startswith(("http://", "https://")) else None

    @property
    def teacher_folder(self) -> str | None:
        """The folder of the model that teaches, or its name on the hub."""
        return None if self.teacher_url else self.teacher

    def on(
        self, device: Device, num_parameters: int = 0, *, compile: bool | None = None, ranks: int | None = None
    ) -> "ResolvedTrainConfig":
        """With a value for everything that device, model and placement decide: `ranks` is how many there are, unless
        the setting says. Compiling takes half a minute: it is worth that for a model of some size, on a GPU. Benchmarks
        and tests may decide otherwise; for a run there is torch's own TORCH_COMPILE_DISABLE=1."""
        gpu = device == "cuda"
        chosen = {
            "device": device,
            "dtype": ("bfloat16" if gpu else "float32") if self.dtype == "auto" else self.dtype,
            "micro_batch_tokens": self.micro_batch_tokens or (None if gpu else 8_192),
            "compile": gpu and num_parameters > 50_000_000 if compile is None else compile,
            "ranks": self.ranks or ranks or 1,
        }
        return ResolvedTrainConfig(**(dict(self) | chosen))

    def lr_at(self, step: int) -> float:
        """The learning rate of step 0, 1, 2, …"""
        warm = min(1.0, (step + 1) / max(self.warmup_steps, 1))
        left = max(0.0, 1.0 - step / self.decay_steps) if self.decay_steps else 1.0
        return self.lr * warm * left


class ResolvedTrainConfig(TrainConfig):
    """What the trainer works with. `micro_batch_tokens` may still be empty: how many fit a GPU is found by trying."""

    device: Device
    dtype: Literal["float32", "bfloat16"]
    ranks: int
    compile: bool
    """Whether torch.compile fuses the small operations of a layer."""

    @property
    def low_precision(self) -> bool:
        return self.dtype == "bfloat16"

    def on(
        self, device: Device, num_parameters: int = 0, *, compile: bool | None = None, ranks: int | None = None
    ) -> "ResolvedTrainConfig":
        """It is resolved already."""
        return self


_DEFAULTS = dict(by_dotted_key({"train": TrainConfig.model_construct().model_dump()}))
