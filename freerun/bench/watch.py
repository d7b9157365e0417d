"""`freerun bench watch`: how fluid the page is over a run of very many steps and samples, measured in a real browser.

A run's folder is made up, of so many steps and samples, by the writers that a run uses; `freerun watch` serves it, and
Chromium looks at it. First paint is from the address being opened until the headline of the run is on the screen; a
filter is from the last key until its answers are. Its rival is what people do with a file of samples: read through all
of its text for each question, here by SQLite itself (LIKE), on the same data.
"""

import json
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from freerun.core import ConfigError, Group, Task
from freerun.core.records import StepRecord
from freerun.machine.scratch import scratch_folder
from freerun.observe.database import SampleDatabase
from freerun.observe.folder import JsonLines, RunFolder
from freerun.observe.sample_rows import COLUMNS
from freerun.observe.timeline import Timeline

_TEXT = (
    "so the total number of apples is twelve minus half which gives us another way to check that each child has three "
    "more than before and then we multiply by seven days because every week there are two trips of forty miles each "
    "let me think again wait no that cannot be right since the price was already reduced answer therefore equals"
)
_WORDS = _TEXT.split(" ")
_TASKS = 5_000
_BATCH = 10_000
QUESTIONS = {
    "a common word": {"text": "multiply"},
    "a rare string": {"text": "zebra 4242"},
    "part of a word": {"text": "lread"},
    "a string that is nowhere": {"text": "quetzalcoatl"},
    "a word and a reward": {"text": "wait no", "reward_min": "1"},
    "reward, staleness and steps": {"reward_max": "0", "staleness_min": "3", "step_max": "5000"},
}


@dataclass(frozen=True)
class Seen:
    """What a browser saw."""

    paints_s: list[float]
    filters_s: dict[str, list[float]]
    found: dict[str, str]


class _Pieces:
    def decode(self, token_ids: Any, /) -> str:
        return " ".join(_WORDS[token % len(_WORDS)] for token in token_ids)


def bench_watch(samples: int, steps: int, repeats: int) -> None:
    console = Console()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        raise ConfigError("this benchmark drives a browser: pip install playwright, and install Chromium") from None
    if chromium is None:
        raise ConfigError("this benchmark needs a browser: apt-get install chromium")
    with scratch_folder() as scratch:
        runs = Path(scratch) / "runs"
        made_s = _make_run(RunFolder.create(runs, "large"), samples, steps, console)
        size = (runs / "large" / "run.db").stat().st_size
        console.print(
            f"{samples:,} samples of 50 tokens in {size / 2**20:,.0f} MiB, written at {samples / made_s:,.0f} a second"
        )
        with _watching(runs) as address:
            seen = _look(chromium, f"{address}#/run/large", repeats)
        _show(seen, _scans(runs / "large" / "run.db"), samples, steps, console)


def _make_run(folder: RunFolder, samples: int, steps: int, console: Console) -> float:
    folder.config.write_text(f"control: {{steps: {steps}, max_staleness: 4}}\n")
    with JsonLines(folder.metrics) as lines, Timeline(folder.timeline, start_s=0.0) as timeline:
        for step in range(1, steps + 1):
            lines.append(_step(step, samples // steps))
            timeline.span("engine 0", "generate", "generate", step, step + 0.9, tokens=5000)
            timeline.span("engine 0", "update", f"version {step}", step + 0.95, step + 0.96, version=step)
            timeline.span("trainer", "step", f"step {step}", step + 0.3, step + 0.95)
    rng, database, began_s = random.Random(0), SampleDatabase(folder.samples, _Pieces()), time.monotonic()
    tasks = [Group(i, Task(f"task-{i}", f"Question {i}: how many?", [], str(i)), [], 0) for i in range(_TASKS)]
    batches = range(0, samples, _BATCH)
    for begin in track(batches, "writing samples", console=console, transient=True):
        rows = [_row(rng, place, samples, steps) for place in range(begin, min(begin + _BATCH, samples))]
        database.add(tasks if begin == 0 else [], rows)
    database.close()
    return time.monotonic() - began_s


def _row(rng: random.Random, place: int, samples: int, steps: int) -> tuple[Any, ...]:
    length, step = rng.randint(20, 80), 1 + place * steps // samples
    words = rng.choices(range(len(_WORDS)), k=length)
    text = " ".join(_WORDS[word] for word in words)
    if place == samples // 3:
        text += " zebra 4242"
    age = rng.randint(0, 4)
    values = {
        **{"step": step, "version": step - 1, "grp": place // 8, "task": f"task-{place // 8 % _TASKS}"},
        **{"member": place % 8, "branch": 0, "branches": 1, "reward": float(rng.random() < 0.4), "fate": "trained"},
        **{"finish": "stop", "truncated": 0, "length": length, "turns": 0, "staleness_max": age, "staleness_mean": age},
        **{"text": text, "tokens": np.array(words, np.int32).tobytes(), "before": None, "conversation": None},
        "logprobs": np.full(length, -0.5, np.float32).tobytes(),
        "versions": f"[[{max(step - 1 - age, 0)}, {length}]]",
    }
    return tuple(values[name] for name in COLUMNS)


def _step(step: int, samples: int) -> StepRecord:
    figures = {"loss": 0.1 / step, "entropy": 1 / (1 + step / 1000), "grad_norm": 1 + step % 7, "lr": 1e-5}
    values: dict[str, Any] = {
        **{"step": step, "version": step, "time_s": float(step), "step_s": 1.0, "samples": samples},
        **{"reward_mean": 1 - 100 / (100 + step), "reward_mean_all": 1 - 110 / (110 + step), "tokens_trained": 5000},
        **{"tokens_per_s": 5000.0 + step % 100, "answer_tokens_mean": 50.0, "truncated_share": 0.01 * (step % 3)},
        **{"staleness_mean": 1.2, "staleness_max": 3, "staleness_histogram": {"1": 4000, "3": 1000}, "dropped": {}},
        **{"engine_idle_s": 0.1, "trainer_idle_s": 0.3 + 0.1 * (step % 5), "update_pause_s": 0.003, "running": 64},
        **{"waiting": step % 9, "trainer": figures | {f"figure_{i}": float(step % (i + 2)) for i in range(30)}},
    }
    return StepRecord(**values)


@contextmanager
def _watching(runs: Path) -> Iterator[str]:
    words = [sys.executable, "-m", "freerun.cli.main", "watch", str(runs), "--port", "0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        yield next(word for word in process.stdout.readline().split() if word.startswith("http"))
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def _look(chromium: str, address: str, repeats: int) -> Seen:
    """Each time in a browser that was just started; the first time, the watching process has read nothing yet."""
    from playwright.sync_api import sync_playwright

    seen = Seen([], {name: [] for name in QUESTIONS}, {})
    with sync_playwright() as playwright:
        for _ in range(repeats):
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            began_s = time.monotonic()
            page.goto(address, wait_until="commit")
            page.wait_for_selector(".tile")
            seen.paints_s.append(time.monotonic() - began_s)
            page.locator("#samples").scroll_into_view_if_needed()
            page.wait_for_selector(".list button[data-id]")
            for name, question in QUESTIONS.items():
                seconds, seen.found[name] = _ask(page, question)
                seen.filters_s[name].append(seconds)
            browser.close()
    return seen


def _ask(page: Any, question: dict[str, str]) -> tuple[float, str]:
    """From the last key of the filter until its answers are drawn, by the browser's own clock."""
    page.get_by_role("button", name="Clear").click()
    page.wait_for_function("() => !document.querySelector('.count').textContent.includes('found')")
    script = """async (question) => {
      const count = document.querySelector(".count"), begun = performance.now();
      count.textContent = "";
      const answered = new Promise((done) => new MutationObserver(() => count.textContent.includes("found") && done())
        .observe(count, { childList: true, characterData: true, subtree: true }));
      for (const [name, value] of Object.entries(question)) {
        const field = document.querySelector(`.filters [name="${name}"]`);
        field.value = value;
        field.dispatchEvent(new Event("input", { bubbles: true }));
      }
      await answered;
      await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
      return [(performance.now() - begun) / 1000, count.textContent];
    }"""
    seconds, said = page.evaluate(script, question)
    return seconds, said


def _scans(path: Path) -> dict[str, float]:
    """The same questions answered by reading all texts: how long each takes."""
    taken = {}
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        for name, question in QUESTIONS.items():
            if "text" in question:
                began_s = time.monotonic()
                db.execute("SELECT count(*) FROM samples WHERE text LIKE ?", (f"%{question['text']}%",)).fetchone()
                taken[name] = time.monotonic() - began_s
    return taken


def _show(seen: Seen, scans: dict[str, float], samples: int, steps: int, console: Console) -> None:
    for name, times in seen.filters_s.items():
        took = median(times)
        scan = f"; reading all texts {scans[name]:.2f} s, {scans[name] / took:.1f} times" if name in scans else ""
        console.print(f"{name}: {seen.found[name]}, {took:.2f} s (worst {max(times):.2f}){scan}")
    paints, filters = seen.paints_s, [seconds for times in seen.filters_s.values() for seconds in times]
    ratios = [scans[name] / median(seen.filters_s[name]) for name in scans]
    console.print(
        f"watch: {samples:,} samples, {steps:,} steps: first paint {median(paints):.2f} s (first of all "
        f"{paints[0]:.2f}), a filter {median(filters):.2f} s (worst {max(filters):.2f})"
    )
    figures = {"first_paint_s": median(paints), "filter_s": median(filters), "worst_filter_s": max(filters)}
    print(json.dumps({"bench": "watch", "samples": samples, "steps": steps, **figures, "ratio": median(ratios)}))
