"""Settings that were called something else once, or are none any more: a line that says what to write instead.

Nothing here is still accepted. The table serves whoever has an old file, or the folder of an old run.
"""

NOW = {
    "control.rest_solved": "control.skip_solved",
    "data.seed": "data.options.seed",
    "engine.threads": "resources.threads",
    "held_out.seed": "held_out.options.seed",
    "sft.batch_size": "control.groups_per_step",
    "rollout.options": "rollout.kind: {name: FILE.py:NAME, its options}",
    "sft.check_every": "evaluate.every",
    "sft.steps": "control.steps",
    "train.behavior_cap": "train.corrections: [{name: token, cap: …}]",
    "train.clip_high": "train.clip.high",
    "train.clip_low": "train.clip.low",
    "train.critic_lr": "train.critic.lr",
    "train.dual_clip": "train.clip.dual",
    "train.entropy_coef": "train.entropy.coef",
    "train.entropy_floor": "train.entropy.floor",
    "train.gae_lambda": "train.critic.lam",
    "train.gamma": "train.critic.gamma",
    "train.geometric_range": "train.corrections: [{name: geometric, low: …, high: …}]",
    "train.icepop_range": "train.corrections: [{name: icepop, low: …, high: …}]",
    "train.kl": "train.kl.estimator",
    "train.kl_coef": "train.kl.coef",
    "train.kl_in": "train.kl.apply_to",
    "train.lora_alpha": "train.lora.alpha",
    "train.lora_rank": "train.lora.rank",
    "train.max_distance": "train.corrections: [{name: distance, most: …}]",
    "train.offload_optimizer": "train.optimizer_state: offload",
    "train.overlong_tokens": "train.overlong_share, a share of rollout.max_new_tokens",
    "train.threads": "resources.threads",
    "train.value_clip": "train.critic.clip",
}
"""Old key → what it is called now. An old key that is a section now is old only where it has a plain value."""

GONE = {
    "control.give_up_after": "a run ends after 200 groups in a row that failed or taught nothing",
    "control.patience_s": "whoever waits longer than a minute says what for",
    "control.retries": "a group that the engine fails is run again twice",
    "engine.block_tokens": "a block of the cache has 16 tokens on a CPU, 64 on a GPU",
    "engine.burst": "up to 4 tokens are decoded before the host looks at them",
    "engine.device": "engines run on a GPU if there is one; CUDA_VISIBLE_DEVICES= hides it",
    "engine.step_tokens": "a forward pass has up to 2,048 tokens on a CPU, 8,192 on a GPU",
    "reward.give_up_after": "a run ends after 32 judgements in a row that failed",
    "reward.retries": "a judgement whose process died, or that a remote judge failed, is made once more",
    "rollout.ignore_eos": "answers end with the model's end token",
    "train.compile": "layers are compiled on a GPU from 50M parameters on; TORCH_COMPILE_DISABLE=1 turns it off",
    "train.device": "the trainer runs on a GPU if there is one; CUDA_VISIBLE_DEVICES= hides it",
    "train.overlong_penalty": "an answer of the full length loses 1; for another weight use the judge overlong",
}
"""Old key → what happens without it."""


def in_new_words(key: str) -> str | None:
    """The line for an old key, None for any other."""
    if key in NOW:
        return f"{key} is now {NOW[key]}"
    if key in GONE:
        return f"{key} is no longer a setting: {GONE[key]}"
    return None
