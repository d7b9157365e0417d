"""`freerun bench`, those of one part by itself: an engine, a trainer, what goes between them."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from freerun.cli.bench import JsonOnly, bench

__all__ = ["bench"]


@bench.command("engine")
def bench_engine(
    model: Annotated[
        str, typer.Option(help="4m, 135m, 0.6b, 1.5b, 8m-a3m, 1b-a0.3b (random weights), or a model folder.")
    ] = "4m",
    work: Annotated[str, typer.Option(help="uniform: all answers of --tokens; lognormal: long-tailed.")] = "uniform",
    requests: Annotated[int, typer.Option(help="How many requests.", min=1)] = 32,
    tokens: Annotated[int, typer.Option(help="Length of an answer, for uniform work.", min=1)] = 100,
    prompt: Annotated[int, typer.Option(help="Length of a prompt.", min=1)] = 64,
    slots: Annotated[int, typer.Option(help="Answers decoded together.", min=1)] = 512,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "bfloat16",
    burst: Annotated[int, typer.Option(help="Most tokens decoded on a GPU before the host looks.", min=1)] = 16,
    threads: Annotated[int, typer.Option(help="CPU threads.", min=1)] = 1,
    against: Annotated[str | None, typer.Option(help="transformers: the baseline, in the same run.")] = None,
    weights: Annotated[
        Literal["same", "fp8"],
        typer.Option(help="fp8: weights of 8 bits, as engine.weights has them, beside those that they are made of."),
    ] = "same",
    json_only: Annotated[bool, typer.Option("--json", help="Print the JSON line only.")] = False,
) -> None:
    """Tokens a second of the embedded engine, log-probabilities on, against the memory's floor and a baseline."""
    from freerun.bench import engine as bench

    bench.set_threads(threads)
    job = bench.Work.of(work, requests, tokens, prompt, slots)
    bench.show(model, dtype, job, bench.bench_engine(model, job, dtype, burst, against, weights), json_only)


@bench.command("speculation")
def bench_speculation(
    model: Annotated[Path, typer.Option(help="A model's folder, with its tokenizer.")],
    data: Annotated[str, typer.Option(help="Where tasks come from, as data.source has it.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            help="Other settings of the data, such as data.prompt_key=question.",
            show_default=False,
            metavar="data.KEY=VALUE",
        ),
    ] = None,
    tasks: Annotated[int, typer.Option(help="How many tasks.", min=1)] = 32,
    rows: Annotated[int, typer.Option(help="Answers that run at a time.", min=1)] = 16,
    group: Annotated[int, typer.Option(help="Answers to a task.", min=1)] = 8,
    tokens: Annotated[int, typer.Option(help="Most tokens of an answer.", min=1)] = 256,
    temperature: Annotated[float, typer.Option(help="Of sampling.", min=0)] = 1.0,
    threads: Annotated[int, typer.Option(help="CPU threads.", min=1)] = 2,
    json_only: JsonOnly = False,
) -> None:
    """Does it pay to guess how answers go on, where few of them run? On real answers, in a second pass over tasks.

    The same tasks are answered by the same seeds with guesses and without, in turns.
    """
    from freerun.bench import speculation as bench

    overrides = [f"data.source={data}", f"data.limit={tasks}", *(settings or [])]
    bench.show(bench.bench_speculation(model, overrides, rows, group, tokens, temperature, threads), json_only)


@bench.command("trainer")
def bench_trainer(
    model: Annotated[
        str, typer.Option(help="4m, 135m, 0.6b, 1.5b, 8m-a3m, 1b-a0.3b (random weights), or a model folder.")
    ] = "4m",
    tokens: Annotated[int, typer.Option(help="Tokens of a step.", min=1)] = 16_384,
    seq: Annotated[int, typer.Option(help="Length of a sequence; of the longest, for lognormal work.", min=2)] = 512,
    work: Annotated[str, typer.Option(help="uniform: all sequences of --seq; lognormal: long-tailed.")] = "uniform",
    micro_batch: Annotated[int | None, typer.Option(help="Tokens of a pass; empty: what fits.", min=1)] = None,
    recompute: Annotated[bool, typer.Option(help="Keep no activations of layers.")] = False,
    steps: Annotated[int, typer.Option(help="Measured steps.", min=1)] = 3,
    threads: Annotated[int, typer.Option(help="CPU threads.", min=1)] = 1,
    compare: Annotated[
        str | None,
        typer.Option(
            help="plain: not compiled, recomputed; fixed: the paper's 32 micro-batches; transformers: the same by "
            "its code. In the same run."
        ),
    ] = None,
    json_only: Annotated[bool, typer.Option("--json", help="Print the JSON line only.")] = False,
) -> None:
    """Tokens a second of whole training steps (forward, backward, optimizer), and of log-probability passes."""
    from freerun.bench import trainer as bench
    from freerun.bench.engine import set_threads

    set_threads(threads)
    lengths = bench.lengths_of(work, tokens, seq)
    measured = bench.bench_trainer(model, lengths, micro_batch, recompute, compare, steps)
    bench.show("trainer", model, lengths, measured, json_only)


@bench.command("replay")
def bench_replay(
    model: Annotated[
        str | None,
        typer.Option(
            help="8m-a3m, 1b-a0.3b (random weights), or a folder with a mixture of experts. Without it: 1b-a0.3b on a "
            "GPU, 8m-a3m on a CPU.",
            show_default=False,
        ),
    ] = None,
    groups: Annotated[int, typer.Option(help="Prompts of a step.", min=1)] = 3,
    group: Annotated[int, typer.Option(help="Answers to a prompt.", min=2)] = 4,
    prompt: Annotated[int, typer.Option(help="Length of a prompt.", min=1)] = 24,
    tokens: Annotated[int, typer.Option(help="Length of an answer.", min=1)] = 32,
    staleness: Annotated[int, typer.Option(help="Training steps after which to look again; 0: none.", min=0)] = 4,
    lr: Annotated[float, typer.Option(help="Learning rate of those steps.", min=0)] = 1e-5,
    seed: Annotated[int, typer.Option(help="Of prompts and answers.")] = 0,
    threads: Annotated[int, typer.Option(help="CPU threads.", min=1)] = 1,
    json_only: JsonOnly = False,
) -> None:
    """What is it worth to train a mixture of experts on the experts that the engine chose?

    Engine and trainer compute in bf16, and are compared on what the engine sampled: log-probabilities, and the gradient
    against one in float32; with the engine's experts and with those that the trainer's router chooses.
    """
    from freerun.bench import replay as bench
    from freerun.bench.engine import set_threads
    from freerun.machine.device import choose_device

    set_threads(threads)
    chosen = model or ("1b-a0.3b" if choose_device() == "cuda" else "8m-a3m")
    work = bench.Work(groups, group, prompt, tokens, lr)
    bench.show(chosen, work, bench.bench_replay(chosen, work, staleness, seed), json_only)


@bench.command("packing")
def bench_packing(
    model: Annotated[
        str | None,
        typer.Option(
            help="4m, 135m, 0.6b, 1.5b (random weights), or a model folder. Without it: 0.6b on a GPU, 4m on a CPU.",
            show_default=False,
        ),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(help="Tokens of a step: 200,000 on a GPU, 6,000 on a CPU.", min=1, show_default=False),
    ] = None,
    longest: Annotated[
        int | None,
        typer.Option(help="Tokens of the longest sequence: 8,192 on a GPU, 1,024 on a CPU.", min=2, show_default=False),
    ] = None,
    steps: Annotated[int, typer.Option(help="Measured steps of each.", min=1)] = 2,
    threads: Annotated[int, typer.Option(help="CPU threads.", min=1)] = 1,
    json_only: JsonOnly = False,
) -> None:
    """Does it pay to pack sequences of many lengths into passes of as many tokens as fit?

    The other way is the same number of sequences in each of 32 passes, with padding and without. All learn the same
    from the same long-tailed sequences. Then, for conversations of agents with turns, branches and members: how many
    tokens are computed, with what they have in common once, and with one sample a turn.
    """
    from freerun.bench.engine import set_threads
    from freerun.bench.packing import bench_packing

    set_threads(threads)
    bench_packing(model, tokens, longest, steps, json_only)
