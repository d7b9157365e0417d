"""What `--dry-run` tries: all that a run needs, a part at a time, so that everything that would fail is told at once.

Reads the headers of the model's weights, renders the data, imports the user's code, has the real judge judge one
answer, writes a file where the run's folder would be, and allocates on the device. Leaves nothing behind, and downloads
no model.
"""

import os
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar

from freerun.config.preset import refuse_unmade
from freerun.config.text import Origins
from freerun.config.tree import RunConfig
from freerun.core import ConfigError, FreerunError, Task
from freerun.core.text import of_bytes
from freerun.data.pairs import load_pairs
from freerun.data.tasks import load_tasks
from freerun.machine.device import choose_device
from freerun.models.hub import bytes_to_download, cached_model, find_model, name_on_hub
from freerun.models.shape import Shape, read_shape
from freerun.models.tokenizer import load_tokenizer, refuse_of_another_model
from freerun.models.weight_files import check_weights, shard_names
from freerun.plan.placement import RunKind
from freerun.rewards.base import JudgedSample
from freerun.rewards.plain import TEACHER
from freerun.rollouts.agents.load import check_imports
from freerun.rollouts.config import SINGLE_TURN
from freerun.rollouts.load import load_own
from freerun.run.begin import in_words, taken
from freerun.run.guests import Guests, load_guests
from freerun.run.judges import judging_alone
from freerun.run.prepare import Prepared, check_batch, check_launcher, load_agent
from freerun.run.reading import reading
from freerun.run.teachable import check_teacher

T = TypeVar("T")
MADE_UP = "This answer is made up."
"""What is judged where the first task has no reference answer."""
_MIB = 2**20


@dataclass
class Trial:
    """What was tried: a line for each thing that works, and one for each that would fail."""

    config: RunConfig
    origins: Origins
    kind: RunKind = RunKind.TRAIN
    works: list[str] = field(default_factory=list)
    fails: list[str] = field(default_factory=list)
    prepared: Prepared | None = None
    """All that a run is prepared with, where nothing of it is missing."""

    def attempt(self, step: Callable[[], T]) -> T | None:
        try:
            return step()
        except FreerunError as error:
            self._failed(error)
            return None

    async def attempt_async(self, step: Awaitable[T]) -> T | None:
        try:
            return await step
        except FreerunError as error:
            self._failed(error)
            return None

    def _failed(self, error: FreerunError) -> None:
        if str(error) not in self.fails:
            self.fails.append(str(error))


async def try_run(config: RunConfig, origins: Origins, kind: RunKind = RunKind.TRAIN) -> Trial:
    """`freerun sft` needs answers to learn from, and a judge only to know when to stop; `freerun dpo` pairs of answers,
    and no judge."""
    trial, supervised = Trial(config, origins, kind), kind.supervised
    trial.attempt(lambda: check_launcher(config))
    judges = not supervised or (kind is RunKind.SFT and config.sft.until is not None)
    own = trial.attempt(lambda: load_own(config.rollout)) if judges else None
    guests = trial.attempt(lambda: load_guests(config.observers)) or Guests()
    model = try_model(trial)
    tasks, held_out, agent = await _try_tasks(trial, model.tokenizer)
    if judges and TEACHER not in [part.name for part in config.reward.parts]:
        await _try_judge(trial, held_out if supervised else tasks, [*tasks, *held_out])
    if not supervised and tasks:
        trial.attempt(lambda: check_batch(config, tasks))
    if model.shape is not None and model.tokenizer is not None and tasks:
        trial.prepared = Prepared(
            *(model.config, origins, model.shape, model.tokenizer, tasks, held_out, own, guests, agent),
            model=model.folder,
        )
    if (prepared := trial.prepared) is not None and kind is RunKind.TRAIN:
        teacher, longest = config.train.teacher_folder, prepared.lengths.sequence
        trial.attempt(lambda: check_teacher(teacher, prepared.tokenizer, longest))
    trial.attempt(lambda: _try_folder(trial, model.shape))
    trial.attempt(lambda: _try_device(trial))
    return trial


@dataclass
class _Model:
    config: RunConfig
    folder: Path | None = None
    shape: Shape | None = None
    tokenizer: Any = None


def try_model(trial: Trial) -> _Model:
    """Its files, each by itself. One that is on the hub and not in the cache is asked for, and not downloaded."""
    config = trial.config
    if name_on_hub(config.model.path) is not None and cached_model(config.model.path) is None:
        size = trial.attempt(lambda: _bytes_to_download(config))
        if size is not None:
            trial.works.append(f"model      {config.model.path} is not here: the run downloads {of_bytes(size)} first")
        return _Model(config)
    found = find_model(config.model.path)
    shape = trial.attempt(lambda: read_shape(found.folder, config.model.code))
    if shape is not None:
        trial.attempt(lambda: trial.works.append(_weights_in_words(found.folder, shape)))
    is_model = (found.folder / "config.json").is_file()
    tokenizer = trial.attempt(lambda: load_tokenizer(found.folder)) if is_model else None
    if shape is not None and tokenizer is not None:
        trial.attempt(lambda: refuse_of_another_model(tokenizer, found.folder, shape.vocab_size))
    return _Model(config, found.folder, shape, tokenizer)


def _bytes_to_download(config: RunConfig) -> int:
    refuse_unmade(config.preset, config.model.path)
    return bytes_to_download(config.model.path)


def _weights_in_words(folder: Path, shape: Shape) -> str:
    unused, files = check_weights(folder, shape), shard_names(folder)
    size = sum((folder / file).stat().st_size for file in files)
    more = f"; {len(unused)} tensor(s) of them are not used, such as {unused[0]}" if unused else ""
    return f"weights    {len(files)} file(s), {of_bytes(size)}, with every tensor of the model{more}"


async def _try_tasks(trial: Trial, tokenizer: Any) -> tuple[list[Task], list[Task], Any]:
    """Without a tokenizer there is nothing to render prompts by, and they are not tried."""
    config = trial.config
    if tokenizer is None:
        return [], [], None
    held, in_parts = config.held_out, reading(config.data.source)
    if trial.kind is RunKind.DPO:
        pairs = trial.attempt(lambda: load_pairs(config.data, tokenizer, in_parts))
        return pairs or [], (trial.attempt(lambda: load_pairs(held, tokenizer)) if held else None) or [], None
    agent = trial.attempt(lambda: load_agent(config, tokenizer))
    if agent is not None:
        await trial.attempt_async(check_imports(agent))
    needs_prompt, supervised = not config.rollout.is_agent, trial.kind.supervised
    rendered = needs_prompt or supervised
    tasks = trial.attempt(
        lambda: load_tasks(config.data, tokenizer, needs_answer=supervised, needs_prompt=rendered, in_parts=in_parts)
    )
    held_out = trial.attempt(lambda: load_tasks(held, tokenizer, needs_prompt=needs_prompt)) if held else None
    return tasks or [], held_out or [], agent


async def _try_judge(trial: Trial, tasks: list[Task], all_tasks: list[Task]) -> None:
    """One answer, in the process that would judge it in the run, with its deadline."""
    reward = trial.config.reward
    before = len(trial.fails)
    trial.attempt(reward.check)
    trial.attempt(lambda: reward.check_tasks(all_tasks))
    if len(trial.fails) > before:
        return
    task = tasks[0] if tasks else Task("made-up", MADE_UP, [], MADE_UP)
    text, called = (task.answer, "the reference answer of") if task.answer else (MADE_UP, "a made-up answer to")
    called = f"{called} task {task.id}" if tasks else "a made-up answer"
    said = [{"role": "user", "content": task.prompt}, {"role": "assistant", "content": text}]
    begun_s = time.monotonic()

    async def judged() -> None:
        async with judging_alone(reward.model_copy(update={"workers": 1})) as judge:
            verdict = await judge.judge(task, JudgedSample(text, said))
        if verdict.reward is None:
            line = verdict.detail.partition("\n")[0]
            told = f"the judge {reward.in_words} has no verdict on {called} ({verdict.reason}): {line}"
            if not _may_reward_itself(trial.config):
                raise ConfigError(told)
            trial.works.append(f"note       {told}; nobody asks it if your agent or rollout gives the rewards itself")
            return
        took = f"in {time.monotonic() - begun_s:.1f} s with its start"
        trial.works.append(f"judge      {reward.in_words} gives {verdict.reward:g} for {called}, {took}")

    await trial.attempt_async(judged())


def _may_reward_itself(config: RunConfig) -> bool:
    """Environments do, and agents and rollouts of the user's own may: then the judge is never asked."""
    return config.rollout.is_agent or config.rollout.name != SINGLE_TURN


def _try_folder(trial: Trial, shape: Shape | None) -> None:
    """That it could be made and written to, and that the disk has room for the checkpoints."""
    config = trial.config
    runs = Path(config.runs).expanduser().absolute()
    there = next(parent for parent in (runs / config.name, runs, *runs.parents) if parent.exists())
    if there == runs / config.name:
        there = runs
    try:
        if not there.is_dir():
            raise NotADirectoryError(None, "Not a directory")
        with TemporaryFile(dir=there) as file:
            file.write(b"\0" * 4096)
            file.flush()
            os.fsync(file.fileno())
        free = shutil.disk_usage(there).free
    except OSError as error:
        raise ConfigError(f"{there} cannot be written to ({error.strerror}): set runs to a folder of yours") from None
    need = checkpoint_bytes(config, shape) if shape else 0
    if need > free:
        raise ConfigError(
            f"{there} has room for {of_bytes(free)}, and {config.train.keep + 1} checkpoints need {of_bytes(need)}: "
            "make room, lower train.keep, or set runs to a folder on another disk"
        )
    line = f"folder     {Path(config.runs) / config.name}, {of_bytes(free)} free, checkpoints need {of_bytes(need)}"
    trial.works.append(line)
    if trial.prepared and (old := taken(trial.prepared)):
        trial.works.append(f"note       {in_words(old)}: the run's folder will be another")


def checkpoint_bytes(config: RunConfig, shape: Shape) -> int:
    """Weights and two moments of every number that learns, in 32 bits; one checkpoint more than are kept, for one is
    written before another goes; and the model at the end."""
    learning = 0 if config.train.lora.rank else shape.num_parameters
    critic = 2 if config.train.advantages == "gae" else 1
    return (config.train.keep + 1) * 12 * learning * critic + 4 * shape.num_parameters


def _try_device(trial: Trial) -> None:
    """On this machine. What others have is known when they join."""
    if trial.config.launcher != "local":
        trial.works.append("device     that of the machines that join: `freerun doctor --cluster` tries them")
        return
    try:
        import torch

        device = choose_device()
        for number in range(torch.cuda.device_count() if device == "cuda" else 1):
            torch.ones(
                16 * _MIB, dtype=torch.uint8, device=f"cuda:{number}" if device == "cuda" else "cpu"
            ).sum().item()
    except (ImportError, RuntimeError) as error:
        line = " ".join(str(error).split())[:160]
        raise ConfigError(f"torch cannot allocate on {choose_device()} ({line}): see `freerun doctor`") from None
    trial.works.append(f"device     {device}, on which torch {torch.__version__} allocates")
