"""`freerun bench controller`: how many tokens a second one controller carries, what it holds them in, and how long its
loop stands still.

The control loop is a run's own, with its client, router, admission, buffer, observer and connection to the trainer.
Engines answer from a script over HTTP, and a trainer process compares every token of every batch with that script
(`scripted_child.py`), so what is measured has arrived, and whole. Every answer is decoded to text, as judges need it,
by a byte-level tokenizer of 150,000 tokens; the judge itself reads nothing and rewards every other answer.

The engines are run a second time, on less work, with a client that asks for vLLM's JSON instead; or, with
`--namespaces`, on machines of their own (`controller_machines.py`).
"""

import asyncio
import ctypes
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from secrets import token_hex
from typing import Any

from rich.console import Console
from rich.table import Table

from freerun.bench.scripted_child import PROMPT, VOCABULARY, Settings
from freerun.control.config import ControlConfig
from freerun.control.controller import Run
from freerun.control.controller import train as control_train
from freerun.control.task_queue import TaskQueue
from freerun.control.waiting import background, together
from freerun.core import Batch, FreerunError, Task
from freerun.core.observer import Observer, Observers
from freerun.core.reports import StepResult
from freerun.data.stream import TaskStream
from freerun.engines.base import Sampling
from freerun.engines.http import HttpEngine
from freerun.machine.garbage import freeze_heap
from freerun.machine.machines import LOOPBACK
from freerun.machine.parent import RUN_KEY
from freerun.machine.processes import Processes
from freerun.machine.scratch import scratch_folder
from freerun.models.text import text_decoder
from freerun.models.tokenizer import load_tokenizer
from freerun.observe.files import RunFiles
from freerun.observe.folder import RunFolder
from freerun.observe.meter import StepMeter
from freerun.observe.samples import KeptSamples
from freerun.rewards.base import JudgedSample, JudgeReason, Verdict
from freerun.rollouts.single_turn import SingleTurn
from freerun.sandbox.usage import Meter, usage_below
from freerun.train.remote import RemoteTrainer

GROUP = 16
"""Answers to a task, as in the paper."""
RUNNING = 2_048
"""Answers that the engines are asked for at a time."""
JSON_SHARE = 16
"""How much less work there is for the JSON form."""
_TICK_S = 0.005
_ETA = 1
_TRAINER_PORT = 7420


@dataclass(frozen=True)
class Work:
    answers: int
    """How many a batch has."""
    tokens: int
    """How many an answer has."""
    steps: int
    engines: int

    def __post_init__(self) -> None:
        if self.answers % GROUP:
            raise FreerunError(f"--answers is {self.answers}: take a multiple of {GROUP}, the answers of a group")

    @property
    def total(self) -> int:
        return self.answers * self.tokens * self.steps


@dataclass(frozen=True)
class Measured:
    """One run of the loop, from its first request to the trainer's last reply."""

    form: str
    tokens: int
    """That the trainer has received and found right."""
    tokens_per_s: float
    tokens_per_core_s: float
    """By the CPU time of the controller's process, all its threads: what it would carry with a core of its own."""
    others_core_s: float
    """CPU seconds of engines and trainer for each million tokens."""
    bytes_per_token: float
    """Growth of the controller's memory, over the tokens it holds while a batch is in training and another waits."""
    longest_block_s: float
    """How late the loop was for a timer, at worst."""
    longest_busy_s: float
    """How much of such a delay the loop's own thread was computing, at worst; the rest is due to other processes."""
    to_trainer_s: float
    """From handing a batch over until the trainer has all of it, mean."""
    start_s: float
    """Until engines and trainer were ready."""
    others_bytes: int
    """Memory of engines and trainer in the end; pages that they share count once."""


@dataclass(frozen=True)
class Site:
    """Where the processes run: addresses, each with a process in whose network namespace that address is."""

    engines: Sequence[tuple[str, int | None]] = ((LOOPBACK, None),)
    trainer: tuple[str, int | None] = (LOOPBACK, None)

    def endpoint(self, folder: Path) -> str:
        host, network = self.trainer
        return f"ipc://{folder}/trainer" if network is None else f"tcp://{host}:{_TRAINER_PORT}"

    def shares(self, engines: int) -> list[int]:
        """How many of the engines run at each address."""
        places = len(self.engines)
        return [engines // places + (place < engines % places) for place in range(places)]


ONE_PLACE = Site()


async def bench_controller(work: Work, json_only: bool) -> dict[str, Measured]:
    """In frames, and in JSON."""
    console = Console(stderr=json_only, highlight=False)
    less = replace(work, answers=max(work.answers // JSON_SHARE // GROUP, 1) * GROUP)
    measured = {}
    with console.status("streams scripted answers"), scratch_folder() as scratch:
        for form, amount, accept in (("frames", work, {}), ("json", less, {"accept": "text/event-stream"})):
            measured[form] = await measure(form, amount, scratch, accept)
    show(work, measured, console)
    ratio = measured["frames"].tokens_per_core_s / measured["json"].tokens_per_core_s
    console.print(f"frames: {ratio:.1f} times as many tokens a second of a core as JSON")
    runs = [asdict(one) for one in measured.values()]
    print(json.dumps({"bench": "controller", **asdict(work), "runs": runs, "ratio": ratio}))
    return measured


async def measure(form: str, work: Work, scratch: Path, accept: dict[str, Any], site: Site = ONE_PLACE) -> Measured:
    folder, starts_s = RunFolder.create(scratch, form), time.monotonic()
    async with _processes(work, folder, accept, site) as (engines, trainer):
        start_s = time.monotonic() - starts_s
        tokenizer = _tokenizer(scratch)
        observers, files = Observers(), RunFiles(folder)
        observers.add(StepMeter(observers, files.begun_s))
        observers.add(KeptSamples(folder.samples, tokenizer, observers, gib=0.0))  # a few: this is about the loop
        observers.add(files)
        with closing(observers):
            run = _run(work, engines, trainer, observers, tokenizer)
            freeze_heap()
            trainer.run, lag = run, Lag()
            trainer.empty_bytes = _resident_bytes()
            began_s, cpu_s, others_s = time.monotonic(), time.process_time(), usage_below(os.getpid()).cpu_s
            async with background(lag.watch()):
                await control_train(run)
            took_s, cpu_s = time.monotonic() - began_s, time.process_time() - cpu_s
            others_s = usage_below(os.getpid()).cpu_s - others_s
            others_bytes = Meter(os.getpid(), None).exact_memory()
    if trainer.tokens != work.total:
        raise FreerunError(f"{trainer.tokens} tokens came to the trainer, not {work.total}")
    return Measured(
        form=form,
        tokens=trainer.tokens,
        tokens_per_s=trainer.tokens / took_s,
        tokens_per_core_s=trainer.tokens / cpu_s,
        others_core_s=others_s / (trainer.tokens / 1e6),
        bytes_per_token=trainer.bytes_per_token,
        longest_block_s=lag.longest_s,
        longest_busy_s=lag.longest_busy_s,
        to_trainer_s=sum(trainer.delays_s) / len(trainer.delays_s),
        start_s=start_s,
        others_bytes=others_bytes,
    )


def _run(work: Work, engines: list[HttpEngine], trainer: "TimedTrainer", observer: Observer, text: Any) -> Run:
    groups = work.answers // GROUP
    tasks = [Task(f"task {index}", "", [index % VOCABULARY] * PROMPT) for index in range(groups)]
    sampling = Sampling(max_new_tokens=work.tokens, ignore_eos=True)
    return Run(
        config=ControlConfig(steps=work.steps, groups_per_step=groups, max_staleness=_ETA),
        group_size=GROUP,
        seed=0,
        tasks=TaskQueue(TaskStream(tasks, seed=0, shuffle=False, epochs=None)),
        rollout=SingleTurn(text, sampling, GROUP),
        judge=EveryOther(),
        engines={f"engine {index}": engine for index, engine in enumerate(engines)},
        trainer=trainer,
        observer=observer,
        max_running=RUNNING // work.engines,
    )


class EveryOther:
    """A judge that reads nothing: half of a group's answers are right."""

    waiting = 0

    async def judge_all(self, task: Task, answers: Sequence[str | JudgedSample]) -> list[Verdict]:
        return [Verdict(float(place % 2), JudgeReason.OK) for place in range(len(answers))]


class TimedTrainer(RemoteTrainer):
    """Counts what the trainer has found right. Before the first batch goes there, it waits for the second to be whole,
    and looks at what the controller's memory has grown by."""

    def __init__(self, endpoint: str, key: str) -> None:
        super().__init__(endpoint, key)
        self.run: Run
        self.empty_bytes = 0
        self.bytes_per_token = 0.0
        self.tokens = 0
        self.delays_s: list[float] = []

    async def step(self, batch: Batch) -> StepResult:
        if not self.bytes_per_token:
            await self.run.book.until(lambda: self.run.book.num_ready >= len(batch.groups))
            held = sum(len(sample.tokens) for sample in batch.samples) * 2
            self.bytes_per_token = (_resident_bytes() - self.empty_bytes) / held
        handed_s = time.monotonic()
        result = await super().step(batch)
        self.delays_s.append(result.metrics["received_s"] - handed_s)
        self.tokens += int(result.metrics["tokens"])
        return result


@dataclass
class Lag:
    """How late the event loop is for its timers."""

    longest_s: float = 0.0
    longest_busy_s: float = 0.0

    async def watch(self) -> None:
        while True:
            slept_s, computed_s = time.monotonic(), time.thread_time()
            await asyncio.sleep(_TICK_S)
            late_s = time.monotonic() - slept_s - _TICK_S
            self.longest_s = max(self.longest_s, late_s)
            self.longest_busy_s = max(self.longest_busy_s, min(late_s, time.thread_time() - computed_s))


@asynccontextmanager
async def _processes(
    work: Work, folder: RunFolder, accept: dict[str, Any], site: Site
) -> AsyncIterator[tuple[list[HttpEngine], TimedTrainer]]:
    async with AsyncExitStack() as stack:
        processes = await stack.enter_async_context(Processes("freerun.bench.scripted_child", folder.logs, fork=False))
        key = token_hex()
        first = Settings(work.tokens, *site.trainer, endpoint=site.endpoint(folder.path))
        engines = [
            replace(first, host=host, network=network, engines=share)
            for (host, network), share in zip(site.engines, site.shares(work.engines), strict=True)
        ]
        endpoint, *said = await together(
            processes.start("trainer", "trainer", first, 1, {RUN_KEY: key}),
            *(
                processes.start(f"engines {place}", "engines", settings, 1, {RUN_KEY: key})
                for place, settings in enumerate(engines)
            ),
        )
        urls = [url for urls in said for url in urls.split()]
        clients = [await stack.enter_async_context(HttpEngine(url, key, **accept)) for url in urls]
        trainer = TimedTrainer(endpoint, key)
        stack.enter_context(trainer)
        async with background(processes.watch()):
            yield clients, trainer


def _tokenizer(folder: Path) -> Any:
    """A tokenizer of the size and kind that models have; its tokens have about four letters, as English ones do."""
    if not (folder / "tokenizer.json").is_file():
        specimen = {
            "version": "1.0",
            "added_tokens": [],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "vocab": {_word(token): token for token in range(VOCABULARY)}, "merges": []},
        }
        (folder / "tokenizer.json").write_text(json.dumps(specimen))
        (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return text_decoder(load_tokenizer(folder))


def _word(token: int) -> str:
    """The number in letters."""
    word = ""
    while token or not word:
        token, letter = divmod(token, 26)
        word += chr(ord("a") + letter)
    return word


def _resident_bytes() -> int:
    """Memory that was freed and kept is given back first, where the C library can: it would hide growth."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def show(work: Work, measured: dict[str, Measured], console: Console) -> None:
    table = Table(title=f"{work.steps} batches of {work.answers:,} answers of {work.tokens:,} tokens")
    for column in ("", *measured):
        table.add_column(column, justify="right")
    rows: dict[str, Callable[[Measured], str]] = {
        "tokens received and checked": lambda one: f"{one.tokens:,}",
        "tokens/s on a core of the controller": lambda one: f"{one.tokens_per_core_s:,.0f}",
        "tokens/s, all processes on this machine": lambda one: f"{one.tokens_per_s:,.0f}",
        "engines and trainer, core seconds a million tokens": lambda one: f"{one.others_core_s:.2f}",
        "memory a token": lambda one: f"{one.bytes_per_token:.1f} bytes",
        "longest block of the loop": lambda one: f"{1e3 * one.longest_block_s:.0f} ms",
        "of that, the loop's own computing": lambda one: f"{1e3 * one.longest_busy_s:.0f} ms",
        "batch handed over until the trainer has it": lambda one: f"{one.to_trainer_s:.2f} s",
        "engines and trainer: memory": lambda one: f"{one.others_bytes / 2**30:.2f} GiB",
        "engines and trainer: ready after": lambda one: f"{one.start_s:.1f} s",
    }
    for name, show in rows.items():
        table.add_row(name, *(show(one) for one in measured.values()))
    console.print(table)
