"""The whole recipe in one go: `make demo-agents`, or `python -m examples.calculator.demo`.

A model is made from nothing, learns supervised from somebody careless, and then by reinforcement, through an agent of
openai-agents, to call the calculator, to type what was asked, and to say what came out.
"""

import argparse
import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from examples.calculator.prepare import prepare
from freerun.cli.stopping import run_to_end
from freerun.commands.demo import learn
from freerun.config.load import load_config
from freerun.observe.folder import RunFolder

HERE = Path(__file__).parent


async def run_demo(
    seed: int = 0, changes: Sequence[str] = (), warm_up: Sequence[str] = (), runs: Path = Path("runs")
) -> str:
    """The demo's last line. `changes` are to run.yaml, `warm_up` to warm_up.yaml."""
    start_s = time.monotonic()
    made = RunFolder.create(runs, "calculator-start").path
    await asyncio.to_thread(prepare, made, seed)
    print(f"1 of 2: a tiny model, made from nothing in {made}, learns from somebody careless how to use a calculator")
    common = (f"runs={runs}", f"seed={seed}", f"rollout.agent={HERE / 'agent.py'}:run")
    model, rows = f"model.path={made / 'model'}", f"data.source={made / 'conversations.jsonl'}"
    sources = [f"{key}.source={made / name}.jsonl" for key, name in (("data", "train"), ("held_out", "held_out"))]
    return await learn(
        start_s,
        load_config(HERE / "warm_up.yaml", [*common, model, rows, *warm_up]),
        lambda warm: load_config(HERE / "run.yaml", [*common, *sources, f"model.path={warm}", *changes]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="A tiny model learns to use a calculator, in two minutes, on a CPU.")
    parser.add_argument("--seed", type=int, default=0, help="of model, data and sampling")
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="changes to run.yaml")
    given = parser.parse_args()
    print(run_to_end(run_demo(given.seed, given.changes)))


if __name__ == "__main__":
    main()
