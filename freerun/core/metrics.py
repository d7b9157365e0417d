"""Every figure of a training step: its one name, what it shows, and what is healthy.

The page, the loggers, the documentation and the warnings all read this. A figure of a step is named as `figures` names
it: the field of `StepRecord`, with a slash before what a group of figures is taken apart by (`trainer/loss`,
`dropped/too_stale`). A test compares the list with what real runs report.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from freerun.core.records import StepRecord
from freerun.core.reports import Evaluation
from freerun.core.task import Version


@dataclass(frozen=True)
class Metric:
    title: str
    says: str
    """What it shows, in one sentence for someone who has never seen it."""
    healthy: str
    """What a run that goes well looks like."""
    unit: str = ""
    """tokens/s, share (0 to 1), s, nats, versions, …"""
    section: str = "Trainer"
    low: float = -math.inf
    high: float = math.inf
    cause: str = ""
    """Outside of `low` to `high` a note is written, with the likely cause."""


@dataclass(frozen=True)
class Section:
    says: str


SECTIONS = {
    "Learning": Section("Does the policy get better, and does it still have something to learn from?"),
    "Staleness": Section("How old the tokens were when the trainer learned from them."),
    "Drift": Section(
        "How far the policy that sampled the tokens is from the one that is trained, and what that comes from.",
    ),
    "Speed": Section("How fast the run is, and who waits for whom."),
    "Answers": Section("What the answers are like, and what became of them."),
    "Agents": Section("How the sessions of agents go."),
    "Trainer": Section("What the optimizer sees."),
}

METRICS: dict[str, Metric] = {
    # Learning
    "reward_mean_all": Metric(
        "Reward, all judged answers",
        "Mean reward of every answer judged since the step before, those of filtered and dropped groups included.",
        "It rises, and levels off near the best the judge can give.",
        section="Learning",
    ),
    "reward_mean": Metric(
        "Reward, trained on",
        "Mean reward of the answers in the step's batch.",
        "It follows the reward of all answers; with filtering it stays between the extremes instead.",
        section="Learning",
    ),
    "eval/pass_at_1": Metric(
        "Evaluation, pass@1",
        "Probability that one answer to a held-out task is right, with its 95% interval.",
        "It rises with the reward. A reward that rises alone means that the policy exploits the judge.",
        "share",
        "Learning",
    ),
    "eval/pass_at_k": Metric(
        "Evaluation, pass@k",
        "Probability that at least one of k answers to a held-out task is right.",
        "It stays above pass@1. When it falls while pass@1 rises, answers lose their variety.",
        "share",
        "Learning",
    ),
    "eval/low": Metric(
        "Evaluation, lower end", "Lower end of the 95% interval of pass@1.", "It rises.", "share", "Learning"
    ),
    "eval/high": Metric(
        "Evaluation, upper end", "Upper end of the 95% interval of pass@1.", "It rises.", "share", "Learning"
    ),
    "eval/reward_mean": Metric(
        "Evaluation, reward", "Mean reward of the answers to held-out tasks.", "It rises with pass@1.", "", "Learning"
    ),
    "eval/truncated_share": Metric(
        "Evaluation, cut off",
        "Share of the answers to held-out tasks that ran into a length limit.",
        "Below 5%.",
        "share",
        "Learning",
    ),
    "eval/judge_failures": Metric(
        "Evaluation, not judged",
        "Answers to held-out tasks that could not be judged; they count as not passed.",
        "0.",
        "answers",
        "Learning",
    ),
    "eval/tasks": Metric("Evaluation, tasks", "Held-out tasks asked.", "", "tasks", "Learning"),
    "eval/k": Metric("Evaluation, k", "Answers sampled for each task.", "", "answers", "Learning"),
    "eval/step": Metric("Evaluation, step", "Training steps that the evaluated policy has had.", "", "", "Learning"),
    "trainer/signal_share": Metric(
        "Tokens that teach",
        "Share of the trained tokens whose advantage is not zero: answers of a group that were not all equally good.",
        "Well above 10%. Near 0, tasks are too easy or too hard: see control.drop_no_signal and control.skip_solved.",
        "share",
        "Learning",
    ),
    "solved": Metric(
        "Solved tasks",
        "Tasks of which every answer passed when they were last asked (with control.skip_solved).",
        "It grows slowly. When all are solved, nothing is left to learn.",
        "tasks",
        "Learning",
    ),
    "samples": Metric(
        "Answers trained on",
        "Answers (or conversations) in the step's batch that are trained on.",
        "control.groups_per_step × rollout.group_size, less what train.skip_truncated leaves out.",
        "answers",
        "Learning",
    ),
    # Staleness
    "staleness_mean": Metric(
        "Staleness, mean",
        "How many versions the policy had moved on between sampling a token and training on it, mean over tokens.",
        "Near 1 in an asynchronous run. Near the bound, engines are too slow, or too far ahead.",
        "versions",
        "Staleness",
    ),
    "staleness_max": Metric(
        "Staleness, oldest token",
        "The same for the oldest trained token: what control.max_staleness bounds.",
        "Never above the bound.",
        "versions",
        "Staleness",
    ),
    "staleness_histogram/*": Metric(
        "Tokens by staleness",
        "Tokens trained on at that staleness.",
        "Most at 0 or 1, none past the bound.",
        "tokens",
        "Staleness",
    ),
    "trainer/masked_tokens": Metric(
        "Tokens too old to train on",
        "Sampled tokens of the batch that carry no loss because they are past the bound (control.when_stale: mask).",
        "Few. Many mean wasted generation: raise control.max_staleness, or shorten answers.",
        "tokens",
        "Staleness",
    ),
    "trainer/ratio_at_age_*": Metric(
        "Ratio by age",
        "Mean ratio of the policy before the step to the one that sampled the token, for tokens of that staleness.",
        "Close to 1 at every age.",
        "",
        "Staleness",
    ),
    # Drift
    "trainer/drift": Metric(
        "Drift",
        "How far the policy before the step is from what the tokens were sampled from, about their KL divergence: half "
        "the mean squared difference of the log-probabilities, and what top-k and top-p cut off.",
        "Below 0.01. What it comes from is beside it, and adds up to it.",
        "nats",
        "Drift",
        0.0,
        0.07,
        "see its parts",
    ),
    "trainer/drift_numerics": Metric(
        "Drift by numerics",
        "The part that engine and trainer differ by at equal weights: rounding and different kernels.",
        "Below 0.001, and more with engine.weights=fp8. Above: compare engine.dtype and train.dtype.",
        "nats",
        "Drift",
        0.0,
        0.002,
        "engine and trainer disagree at equal weights: compare engine.dtype and train.dtype, and see engine.weights",
    ),
    "trainer/drift_staleness": Metric(
        "Drift by staleness",
        "The part that comes from weights that moved on after the token was sampled.",
        "The largest part of an asynchronous run. Too much: lower control.max_staleness or train.lr.",
        "nats",
        "Drift",
        cause="lower control.max_staleness or train.lr",
    ),
    "trainer/drift_cache": Metric(
        "Drift by old caches",
        "The part that comes from caches which older weights computed (engine.on_update: keep, auto).",
        "Zero unless caches are kept. Too much: set engine.on_update: recompute.",
        "nats",
        "Drift",
        cause="set engine.on_update=recompute, or lower train.lr",
    ),
    "trainer/drift_cutoffs": Metric(
        "Drift by cut-offs",
        "The part that comes from rollout.top_k and rollout.top_p: what they cut off can be trained on, not sampled. "
        "Measured at some hundred tokens of the step.",
        "Zero without them. Too much: raise rollout.top_p, or set rollout.top_k: 0.",
        "nats",
        "Drift",
        cause="raise rollout.top_p or rollout.top_k (1 and 0 cut nothing off)",
    ),
    "trainer/drift_tokens": Metric(
        "Drift by tokens that do not match",
        "The part of tokens that are nats off at equal weights, and of those behind them: they are not the ones that "
        "were sampled, or not in the context they were sampled in. Old tokens are taken to have as much of it.",
        "Zero. Otherwise something encodes text again, or an engine has other weights than it says.",
        "nats",
        "Drift",
        0.0,
        1e-4,
        "see that nothing encodes answers again, and that engines have the weights that they say",
    ),
    "trainer/drift_unexplained": Metric(
        "Drift that is unexplained",
        "The part whose cause no other tokens have shown: such as old tokens in a run that has had no fresh ones yet.",
        "Zero.",
        "nats",
        "Drift",
        cause="set control.max_staleness=0 for a few steps, which shows whether it is numerics or staleness",
    ),
    "trainer/mismatched_tokens": Metric(
        "Tokens that do not match",
        "How many of the tokens that the very weights of the step sampled are not what the trainer sees.",
        "Zero.",
        "tokens",
        "Drift",
    ),
    "trainer/engine_mismatch": Metric(
        "Mismatch at equal weights",
        "Mean absolute difference between the trainer's log-probability and the engine's, for tokens that the very "
        "weights of the step sampled.",
        "Below 0.05: rounding only.",
        "nats",
        "Drift",
    ),
    "trainer/engine_mismatch_kl": Metric(
        "Mismatch at equal weights, KL", "The same as an estimate of the KL divergence.", "Near 0.", "nats", "Drift"
    ),
    "trainer/engine_mismatch_max": Metric(
        "Mismatch at equal weights, worst token", "The same for the worst token.", "Below 1.", "nats", "Drift"
    ),
    "trainer/behavior_kl": Metric(
        "KL from the sampling policy",
        "Estimated KL divergence of the policy before the step from the one that sampled the tokens.",
        "Below 0.05.",
        "nats",
        "Drift",
    ),
    "trainer/behavior_ratio": Metric(
        "Ratio to the sampling policy",
        "Mean probability ratio of the policy before the step to the one that sampled the tokens.",
        "Close to 1.",
        "",
        "Drift",
    ),
    "trainer/behavior_ratio_max": Metric(
        "Ratio to the sampling policy, largest", "The same for the token where it is largest.", "Below 10.", "", "Drift"
    ),
    "trainer/effective_samples": Metric(
        "Effective samples",
        "Share of the batch that counts after correcting for drift: 1 means that old tokens are as good as new ones.",
        "Above 0.9.",
        "share",
        "Drift",
        0.3,
        1.01,
        "old samples hardly count: lower control.max_staleness or train.lr",
    ),
    "trainer/behavior_capped_share": Metric(
        "Corrections cut off",
        "Share of the trained tokens whose correction for drift was limited.",
        "Below 1%.",
        "share",
        "Drift",
        0.0,
        0.05,
        "many weights are cut off: lower control.max_staleness or train.lr",
    ),
    "trainer/kept_share": Metric(
        "Tokens kept by corrections",
        "Share of the batch that train.corrections let through.",
        "Near 100%.",
        "share",
        "Drift",
        0.5,
        1.01,
        "much of the batch is masked: lower control.max_staleness, or widen the ranges",
    ),
    "trainer/router_flips": Metric(
        "Experts that the router would change",
        "Of the experts that tokens went through in the engine, the share that the trainer's router would not choose "
        "at the same place: by rounding at equal weights, and by weights that moved on. Measured at up to 1,024 tokens "
        "of each pass, for mixtures of experts.",
        "A few percent. With train.replay_router the engine's choice holds all the same.",
        "share",
        "Drift",
    ),
    "trainer/router_replayed_share": Metric(
        "Experts as in the engine",
        "Share of the choices of experts that were the engine's (train.replay_router), for mixtures of experts.",
        "Near 100% where answers are long: the last token of each has none. 0: engines do not tell, or are not asked.",
        "share",
        "Drift",
    ),
    # Speed
    "tokens_per_s": Metric(
        "Trained tokens a second",
        "Sampled tokens trained on, by the wall clock, all waiting included: the speed of the whole run.",
        "Level. A fall means longer waits: see who is idle.",
        "tokens/s",
        "Speed",
    ),
    "trainer/tokens_per_s": Metric(
        "Tokens a second while training",
        "The trainer's own speed during its steps, prompts included.",
        "Well above the run's, or training is the bottleneck.",
        "tokens/s",
        "Speed",
    ),
    "step_s": Metric(
        "Time a step", "Seconds from the end of the step before to the end of this one.", "Level.", "s", "Speed"
    ),
    "time_s": Metric("Time", "Seconds since the run's start.", "", "s", "Speed"),
    "engine_idle_share": Metric(
        "Engines idle",
        "Share of the step in which an engine had nothing to generate, mean over engines.",
        "Near 0 where generation is the bottleneck. High: engines wait for the trainer; give it more, or them less.",
        "share",
        "Speed",
    ),
    "engine_idle_s": Metric(
        "Engines idle, seconds", "The same in seconds of the step.", "Near 0 s, as above.", "s", "Speed"
    ),
    "trainer_idle_share": Metric(
        "Trainer idle",
        "Share of the step in which the trainer waited for data, or for engines to take new weights.",
        "Near 0 where training is the bottleneck. High: generation or judging is too slow for it.",
        "share",
        "Speed",
    ),
    "trainer_idle_s": Metric(
        "Trainer idle, seconds", "The same in seconds of the step.", "Near 0 s, as above.", "s", "Speed"
    ),
    "trainer_waits/*": Metric(
        "The trainer waits for",
        "Seconds of the step in which the trainer waited, by what for: answers being generated, judging, the staleness "
        "bound, weights, a checkpoint, agents.",
        "Near 0 s where training is the bottleneck. `freerun why` says what the largest calls for.",
        "s",
        "Speed",
    ),
    "admission_waits/*": Metric(
        "No further answers begin",
        "Seconds of the step in which nothing more was begun, by why: engines are full, enough is on its way to the "
        "trainer, answers queue for the judge, the staleness bound.",
        "Mostly engines, or ahead (enough is on its way).",
        "s",
        "Speed",
    ),
    "judge_busy_share": Metric(
        "Judges busy",
        "Share of the step in which a reward worker judged, mean over workers.",
        "Well below 90%, or judging is the bottleneck: raise reward.workers.",
        "share",
        "Speed",
    ),
    "judge_s": Metric("Time a judgement", "Seconds a worker takes for an answer, mean.", "Level.", "s", "Speed"),
    "judge_wait_s": Metric(
        "Wait for a judge",
        "Seconds that an answer waits for a reward worker, mean.",
        "A small part of a step. Otherwise raise reward.workers.",
        "s",
        "Speed",
    ),
    "judge_workers": Metric(
        "Reward workers", "Answers that can be judged at the same time.", "It grows while it helps.", "", "Speed"
    ),
    "judge_cpu_share": Metric(
        "Judges compute",
        "Share of a judgement in which it computes. For the rest it waits, such as for another machine.",
        "",
        "share",
        "Speed",
    ),
    "update_s": Metric(
        "Weight update",
        "Seconds from the end of a training step until the engines had its weights.",
        "A small part of a step.",
        "s",
        "Speed",
    ),
    "update_pause_s": Metric(
        "Engine pause for new weights",
        "Seconds in which an engine stood still to swap weights, mean over engines.",
        "Milliseconds.",
        "s",
        "Speed",
    ),
    "first_token_s": Metric(
        "First token after an update",
        "Seconds from a swap of weights to the first tokens sampled with them, rebuilding of caches included.",
        "Below a tenth of a step.",
        "s",
        "Speed",
    ),
    "trainer/recomputed_tokens": Metric(
        "Cached tokens rebuilt",
        "Cached tokens that engines computed again after the update (engine.on_update: recompute).",
        "Small beside the tokens sampled in a step.",
        "tokens",
        "Speed",
    ),
    "trainer/kept_caches": Metric(
        "Caches kept at the update",
        "Share (0 to 1) of running answers that went on with the cache that older weights had computed "
        "(engine.on_update: auto).",
        "Whatever pays: near 1 where weights move little or reading is dear, near 0 where caches would err.",
        "share",
        "Speed",
    ),
    "trainer/cache_error": Metric(
        "Error of kept caches",
        "How far kept caches put log-probabilities from a recompute, mean of |Δ| over sampled tokens, measured on some "
        "answers (engine.on_update: auto).",
        "Below 0.1: a kept answer's token is then worth 99% of a rebuilt one's.",
        "nats",
        "Drift",
    ),
    "trainer/weights_bytes": Metric(
        "Bytes of weights received",
        "Bytes that came over a network for the update, all engines together.",
        "0 on one machine; with weights.deltas a few percent of the model.",
        "bytes",
        "Speed",
    ),
    "trainer/tflops": Metric(
        "Arithmetic of the trainer", "Teraflops a second of one rank during its steps.", "Level.", "TFLOP/s", "Speed"
    ),
    "trainer/mfu": Metric(
        "Utilisation of the trainer's GPU",
        "The same as a share of what the chip can do at best.",
        "0.3 and more for models of 1B and more.",
        "share",
        "Speed",
    ),
    "running": Metric(
        "Answers in the making",
        "Answers being generated or queued in engines when the step ended.",
        "Level. At zero, engines wait for the trainer.",
        "answers",
        "Speed",
    ),
    "waiting": Metric(
        "Judged groups that wait",
        "Groups ready for the trainer when the step ended.",
        "Few: each that waits gets older.",
        "groups",
        "Speed",
    ),
    "cache_hit_share": Metric(
        "Prompts found in the cache",
        "Share of the prompts' tokens that engines need not read again.",
        "High for agents and long shared prompts; 0 for short ones.",
        "share",
        "Speed",
    ),
    "tokens_trained": Metric(
        "Tokens trained on", "Sampled tokens that carried loss in this step.", "Level.", "tokens", "Speed"
    ),
    "trainer/tokens": Metric(
        "Tokens with loss", "The same, as the trainer counts them.", "Equal to tokens_trained.", "tokens", "Speed"
    ),
    "trainer/computed_tokens": Metric(
        "Tokens computed",
        "Tokens in the trainer's passes, prompts included; a beginning that answers share counts once a pass.",
        "Close to the distinct tokens.",
        "tokens",
        "Speed",
    ),
    "trainer/distinct_tokens": Metric(
        "Distinct tokens", "Tokens of the batch of which no two have the same context.", "", "tokens", "Speed"
    ),
    # Answers
    "answer_tokens_mean": Metric(
        "Length of answers",
        "Sampled tokens of an answer or conversation, mean.",
        "It may grow while a model learns to reason. Steady growth without reward is padding.",
        "tokens",
        "Answers",
    ),
    "truncated_share": Metric(
        "Cut off by the length limit",
        "Share of the batch's answers that ran into a length limit.",
        "Below 5%. Otherwise raise rollout.max_new_tokens; the reward is flat because answers never end.",
        "share",
        "Answers",
    ),
    "dropped/*": Metric(
        "Dropped groups",
        "Groups dropped for that reason since the run's start.",
        "Zero, but for no_signal where control.drop_no_signal asks for it.",
        "groups",
        "Answers",
    ),
    "judgements/*": Metric(
        "Judgements",
        "Answers by how judging them ended, since the run's start.",
        "All ok. An unparseable answer has a reward too; timeout, crash and error leave it without one.",
        "answers",
        "Answers",
    ),
    # Agents
    "agents/sessions/*": Metric(
        "Agents' sessions", "Sessions by how they ended, since the run's start.", "Nearly all ok.", "sessions", "Agents"
    ),
    "agents/requests": Metric(
        "Agents' requests", "Answers that agents asked for since the run's start.", "", "requests", "Agents"
    ),
    "agents/turns_mean": Metric(
        "Turns", "Answers of the policy in a conversation, mean.", "As many as the task needs.", "turns", "Agents"
    ),
    "agents/branches_mean": Metric(
        "Branches",
        "Samples that a conversation becomes, mean.",
        "1 where conversations are only added to; more cost more to train on.",
        "branches",
        "Agents",
    ),
    "agents/forks/*": Metric(
        "Forks",
        "Requests that did not go on from where a branch ended, by reason, since the run's start.",
        "Few, unless the agent has sub-agents.",
        "requests",
        "Agents",
    ),
    "agents/unused/*": Metric(
        "Unused answers", "Answers that no agent used, by reason, since the run's start.", "Few.", "answers", "Agents"
    ),
    "agents/reread_tokens": Metric(
        "Histories read again",
        "Tokens of histories that engines read again because new weights had come.",
        "Small beside the tokens sampled.",
        "tokens",
        "Agents",
    ),
    # Trainer
    "trainer/loss": Metric(
        "Loss",
        "The objective that is minimised.",
        "Near 0 and without a trend: in reinforcement learning it says little. In supervised training it falls.",
    ),
    "trainer/entropy": Metric(
        "Entropy",
        "How undecided the policy is about the next token, mean over tokens.",
        "It falls slowly. A sudden fall to 0 is a collapse: nothing new is tried any more.",
        "nats",
        low=0.01,
        cause="the policy hardly varies: lower train.lr, or raise train.entropy.coef",
    ),
    "trainer/expert_load_max": Metric(
        "Busiest expert",
        "How many times as many tokens as the mean of its layer the busiest expert of all layers took, for mixtures of "
        "experts.",
        "As it was at the start. A rise by several times means that the router collapses.",
    ),
    "trainer/expert_entropy": Metric(
        "Spread over experts",
        "How evenly tokens are spread over the experts of a layer: 1 is evenly, 0 all through one; mean over layers.",
        "Level, mostly above 0.8.",
    ),
    "trainer/expert_unused_share": Metric(
        "Experts without tokens",
        "Share of all experts that no token of the step went through.",
        "Near 0 where a step has many tokens.",
        "share",
    ),
    "trainer/grad_norm": Metric(
        "Gradient norm",
        "Length of the gradient before it is clipped.",
        "Level, with few spikes.",
        low=0.0,
        high=100.0,
        cause="gradients are huge: lower train.lr, or look at the rewards for outliers",
    ),
    "trainer/clip_share": Metric(
        "Clipped tokens",
        "Share of the trained tokens whose ratio left the clip range, so that they teach nothing.",
        "Below 10%. With one minibatch a step it is 0.",
        "share",
        low=0.0,
        high=0.4,
        cause="the policy moves far within a step: lower train.lr or train.minibatches",
    ),
    "trainer/lr": Metric("Learning rate", "Of this step.", "As configured."),
    "trainer/reference_kl": Metric(
        "KL from the first model",
        "How far the policy has moved from the model it began with (train.kl).",
        "It grows slowly, and levels off.",
        "nats",
    ),
    "trainer/teacher_kl": Metric(
        "KL from the teacher",
        "log(policy / teacher) at the policy's own tokens, mean: the reverse KL (train.objective: distill).",
        "It falls towards 0.",
        "nats",
    ),
    "trainer/pair_accuracy": Metric(
        "Right pairs",
        "Share of the step's preference pairs whose chosen answer has gained more on the first model than the other.",
        "It rises from about a half. On held-out pairs it says more.",
        "share",
    ),
    "trainer/pair_margin": Metric(
        "Margin of pairs",
        "The chosen answer's implicit reward, β log(policy / reference), less the rejected one's, mean over pairs.",
        "It rises from 0. Where it grows without end, the pairs are learned by heart.",
    ),
    "trainer/chosen_reward": Metric(
        "Implicit reward of chosen answers",
        "β log(policy / reference), mean over the step's pairs.",
        "It may fall somewhat: the rejected ones' falls faster.",
    ),
    "trainer/rejected_reward": Metric(
        "Implicit reward of rejected answers", "β log(policy / reference), mean over the step's pairs.", "It falls."
    ),
    "trainer/value_loss": Metric(
        "Loss of the critic", "How far its predictions are from the returns (train.advantages: gae).", "It falls."
    ),
    "step": Metric("Step", "Training steps done, this one included.", ""),
    "version": Metric("Version", "The policy's version after the step.", ""),
}

_SHARES = ("engine_idle_share", "trainer_idle_share")
"""What a record works out from others of its figures."""


def metric_of(name: str) -> Metric | None:
    """What is known of a figure, by its name; of one of a family, what is known of the family."""
    if name in METRICS:
        return METRICS[name]
    return next((m for known, m in METRICS.items() if known.endswith("*") and name.startswith(known[:-1])), None)


def figures(record: StepRecord) -> dict[str, float]:
    """All figures of a step by name, those that are known: numbers that every logger takes."""
    found = dict(_flat(asdict(record), ""))
    found |= {name: getattr(record, name) for name in _SHARES}
    return {name: float(value) for name, value in found.items() if math.isfinite(value)}


def evaluation_figures(version: Version, evaluation: Evaluation) -> dict[str, float]:
    """The same for an evaluation. It comes later than the step it is of, which is among them."""
    found = {f"eval/{name}": float(value) for name, value in asdict(evaluation).items() if math.isfinite(value)}
    return {"eval/step": float(version)} | found


def _flat(values: dict[str, object], prefix: str) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}/")
        elif isinstance(value, int | float):
            yield prefix + name, value
