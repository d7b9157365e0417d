"""Make what the recipe starts from: a tiny model, words to reverse, and words that somebody has reversed.

    python examples/other_engines/prepare.py models/reverse

The model is a Qwen3 of 0.1M random weights with heads of 32: vLLM's attention on CPUs knows no smaller ones.
"""

import sys
from pathlib import Path

from freerun.commands.demo import LETTERS, write_tasks
from freerun.models.tiny import make_model

if __name__ == "__main__":
    made = Path(sys.argv[1])
    make_model(made, LETTERS + ">", seed=0, head_dim=32)
    write_tasks(made, seed=0)
    print(
        f"{made} has the model, and the tasks: train.jsonl, held_out.jsonl and, with answers to learn from, sft.jsonl"
    )
