"""A folder in which what the documentation tells a reader to type works as typed: a tiny model, rows, a reward, a run's
file. The file is the one of docs/your-run.md, with smaller numbers.
"""

import json
from pathlib import Path
from typing import Any

import yaml

from tests.docs.pages import ROOT, blocks
from tests.tiny import tiny_folder

SMALL: dict[str, dict[str, Any]] = {
    "data": {"max_prompt_tokens": 16},
    "held_out": {"max_prompt_tokens": 16},
    "rollout": {"group_size": 2, "max_new_tokens": 4},
    "control": {"steps": 2, "epochs": 1, "groups_per_step": 2},
    "train": {"save_every": 1},
    "engine": {"max_running": 8, "cache_tokens": 1024},
    "reward": {"workers": 1},
}
"""One epoch is three steps, so that two are left after the first and one after a whole run."""


def make_workplace(folder: Path) -> None:
    tiny_folder(folder / "models" / "my-model")
    rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in (1, 2) for b in range(4)]
    write_rows(folder / "train.jsonl", rows[:6])
    write_rows(folder / "test.jsonl", rows[6:])
    answers = [row | {"text": "it is 3", "reference": row["answer"], "expected": row["answer"] == "3"} for row in rows]
    write_rows(folder / "answers.jsonl", answers)
    write_rows(folder / "more.jsonl", answers[:3])
    write_rows(folder / "pairs.jsonl", [{"prompt": r["prompt"], "chosen": r["answer"], "rejected": "9"} for r in rows])
    (folder / "run.yaml").write_text(yaml.safe_dump(small_run()))
    (folder / "praise.py").write_text(next(b.text for b in blocks("python") if "def praise" in b.text))
    (folder / "examples").symlink_to(ROOT / "examples")


def small_run() -> dict[str, Any]:
    """The complete file that docs/your-run.md shows, at the size of a test."""
    (shown,) = (block for block in blocks("yaml") if block.page == "docs/your-run.md")
    run: dict[str, Any] = yaml.safe_load(shown.text)
    run["train"]["lr"] = float(run["train"]["lr"])  # YAML 1.1 takes it for a text; Freerun does not
    return run | {name: run.get(name, {}) | changes for name, changes in SMALL.items()}


def write_rows(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
