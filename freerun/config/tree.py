"""The configuration: one section for each room, and what must hold between them."""

from typing import Any, Literal

from pydantic import field_validator, model_validator

from freerun.config.contradictions import about_rewards, across_machines
from freerun.control.config import ControlConfig, DpoConfig, EvaluateConfig, SftConfig
from freerun.core.section import Section, knob
from freerun.data.config import DataConfig
from freerun.engines.config import EngineConfig
from freerun.models.config import ModelConfig
from freerun.rewards.config import RewardConfig
from freerun.rollouts.config import RolloutConfig
from freerun.train.config import TrainConfig
from freerun.weights.config import WeightsConfig


def section(kind: type[Section], help: str) -> Any:
    return knob(kind(), help)


class ResourcesConfig(Section):
    engines: int | None = knob(
        None,
        "Engine processes; empty: one on each GPU that engines have (or every engine.tensor_parallel of them), or on "
        "each machine without GPUs.",
        ge=1,
    )
    threads: int = knob(1, "CPU threads of each engine and of each trainer rank.", ge=1)
    engine_gpus: tuple[int, ...] = knob(
        (),
        "GPUs that engines run on, numbered from 0 through all machines; empty: those that the trainer leaves, or its "
        "own if it has all.",
    )
    trainer_gpus: tuple[int, ...] = knob(
        (),
        "GPUs that trainer ranks run on, one a rank; empty: the last train.ranks, or else the last quarter: of the "
        "machines where there are several.",
    )
    machines: int = knob(1, "Machines that the run waits for; with launcher: local it is this one.", ge=1)
    gpus: int | None = knob(None, "GPUs to use, over all machines; empty: all that there are.", ge=1)
    gpu_memory: float | None = knob(
        None, "Most of each GPU's memory that the run may take, in GiB; empty: all that is free.", gt=0
    )


class ClusterConfig(Section):
    """How machines find each other. It matters with `launcher: nodes` or `ray` alone."""

    listen: str = knob("0.0.0.0:7411", "HOST:PORT at which the controller takes machines that join.")
    key_file: str | None = knob(
        None, "A file with the key that machines must know; empty: the environment variable FREERUN_KEY."
    )
    wait_s: float = knob(300.0, "How long to wait for resources.machines to join before the run gives up.", gt=0)
    trainer_lost: Literal["end", "wait"] = knob(
        "end",
        "When a machine of the trainer is lost: end the run, which can be resumed, or wait for machines to join and "
        "go on from the newest checkpoint.",
    )

    @field_validator("listen")
    @classmethod
    def _has_a_port(cls, listen: str) -> str:
        host, _, port = listen.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65_535:
            raise ValueError("it must be HOST:PORT, such as 0.0.0.0:7411")
        return listen


class RunConfig(Section):
    preset: str | None = knob(None, "A published set of settings to begin with, such as areal-1.5b-math.")
    launcher: Literal["local", "nodes", "ray"] = knob(
        "local",
        "Where processes run: on this machine, on machines that join by `freerun node --join`, or on those of a Ray "
        "cluster.",
    )
    name: str = knob("run", "The run's folder is RUNS/NAME.", pattern=r"^[A-Za-z0-9._-]+$")
    runs: str = knob("runs", "The folder that holds the folders of runs.")
    keep_samples_gib: float = knob(
        8.0, "Disk space for the samples of a run; when it is used up, only a few a step are kept.", ge=0
    )
    seed: int = knob(0, "Seed of the order of the data, of sampling and of minibatches.", ge=0, lt=2**63)
    model: ModelConfig = knob(..., "Which model.")
    data: DataConfig = knob(..., "What to train on.")
    held_out: DataConfig | None = knob(None, "What to evaluate on; the same keys as `data`.")
    reward: RewardConfig = section(RewardConfig, "Who judges answers.")
    rollout: RolloutConfig = section(RolloutConfig, "How answers are sampled.")
    control: ControlConfig = section(ControlConfig, "Steps, batches, staleness.")
    train: TrainConfig = section(TrainConfig, "How the policy learns.")
    engine: EngineConfig = section(EngineConfig, "How answers are generated.")
    weights: WeightsConfig = section(WeightsConfig, "How new weights get to the engines.")
    resources: ResourcesConfig = section(ResourcesConfig, "How many processes do what.")
    cluster: ClusterConfig = section(ClusterConfig, "How machines find each other.")
    evaluate: EvaluateConfig = section(EvaluateConfig, "Evaluation on held-out tasks.")
    observers: tuple[str | dict[str, Any], ...] = knob(
        (),
        "Who else is told of the run: wandb, tensorboard, trackio, mlflow, prometheus, opentelemetry, or your own, "
        "path/to/file.py:Class or package.module:Class; or {name: …, its options}.",
    )
    sft: SftConfig = section(SftConfig, "Supervised training (`freerun sft`).")
    dpo: DpoConfig = section(DpoConfig, "Training on preference pairs (`freerun dpo`).")

    @property
    def batch_samples(self) -> int:
        return self.control.groups_per_step * self.rollout.group_size

    @model_validator(mode="after")
    def _no_contradictions(self) -> "RunConfig":
        if self.rollout.group_size == 1 and self.train.compares_within_groups:
            raise ValueError(
                "rollout.group_size is 1, so each answer is compared with itself and nothing is learned; raise "
                "rollout.group_size, or set train.advantages=batch"
            )
        if self.rollout.group_size == 1 and self.control.drop_no_signal:
            raise ValueError("control.drop_no_signal drops every group of one; raise rollout.group_size, or unset it")
        if self.control.drop_no_signal and not self.train.compares_within_groups:
            raise ValueError(
                "control.drop_no_signal drops groups of equal rewards, which do teach where answers are compared with "
                "the entire batch or a critic; unset it, or set train.advantages=group"
            )
        if self.train.minibatches > self.batch_samples:
            raise ValueError(
                f"train.minibatches is {self.train.minibatches}, but a batch has only {self.batch_samples} samples"
            )
        if self.evaluate.every and self.held_out is None:
            raise ValueError("evaluate.every is set, but there is no held_out to evaluate on; add held_out.source")
        if self.sft.until is not None and self.held_out is None:
            raise ValueError("sft.until is set, but there is no held_out to measure it on; add held_out.source")
        if wrong := about_rewards(self):
            raise ValueError(wrong)
        if wrong := across_machines(self):
            raise ValueError(wrong)
        return self
