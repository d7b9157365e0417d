"""`freerun bench`, those about what goes on between processes and machines."""

from typing import Annotated

import typer

from freerun.cli.bench import JsonOnly
from freerun.cli.bench_parts import bench
from freerun.cli.stopping import run_to_end

__all__ = ["bench"]


@bench.command("controller")
def bench_controller(
    answers: Annotated[int, typer.Option(help="Answers of a batch, in groups of 16.", min=16)] = 8_192,
    tokens: Annotated[int, typer.Option(help="Tokens of an answer.", min=2)] = 8_192,
    steps: Annotated[int, typer.Option(help="Batches.", min=2)] = 3,
    engines: Annotated[
        int | None,
        typer.Option(
            help="Processes that answer from a script: 1; 64 with --namespaces.",
            min=1,
            show_default=False,
        ),
    ] = None,
    namespaces: Annotated[
        bool,
        typer.Option(
            "--namespaces",
            help="Controller, trainer and engines on machines of their own, which are network namespaces, against the "
            "same on loopback.",
        ),
    ] = False,
    machines: Annotated[int, typer.Option(help="Machines that engines run on, with --namespaces.", min=1)] = 8,
    json_only: JsonOnly = False,
) -> None:
    """How many tokens a second does one controller carry, from engines to trainer?

    Scripted engines stream answers over HTTP through the loop of a run to a trainer process that checks every token;
    also how much memory a token takes, and how long the loop stands still. The same with the JSON of vLLM.
    """
    from freerun.bench.controller import Work, bench_controller
    from freerun.bench.controller_machines import bench_controller_on_machines

    work = Work(answers, tokens, steps, engines or (64 if namespaces else 1))
    if namespaces:
        run_to_end(bench_controller_on_machines(work, machines, json_only), lambda: "stopped")
    else:
        run_to_end(bench_controller(work, json_only), lambda: "stopped")


@bench.command("cluster")
def bench_cluster(
    steps: Annotated[
        int | None, typer.Option(help="Training steps, instead of the demo's own number.", min=2, show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of model, data and sampling.")] = 0,
    in_turn: Annotated[
        bool,
        typer.Option(
            "--in-turn",
            help="Run on one machine first and on three then, on a computer that does nothing else; without it, at the "
            "same time, so that whatever else uses the cores slows both down.",
        ),
    ] = False,
    json_only: JsonOnly = False,
) -> None:
    """Does the demo learn on three machines as on one, and what happens when their cables are cut?

    Machines are network namespaces, which root can make on Linux; elsewhere a line says why not. The commands are those
    of a user: `freerun train` with launcher: nodes, and `freerun node` on each other machine.
    """
    from freerun.bench.cluster import bench_cluster

    run_to_end(bench_cluster(steps, seed, in_turn, json_only), lambda: "stopped")


@bench.command("weights")
def bench_weights(
    mib: Annotated[int, typer.Option(help="MiB of a version.", min=16)] = 512,
    rounds: Annotated[int, typer.Option(help="Versions to time.", min=1)] = 5,
    json_only: JsonOnly = False,
) -> None:
    """How fast do new weights get from the trainer's machine to an engine's by TCP, against a pair of plain streams?

    Between network namespaces as machines, or on loopback where none can be made. Also what several engines of a
    machine cost together, and how many bytes only what changed is, in bf16 after a step of training.
    """
    from freerun.bench.weights import bench_weights

    bench_weights(mib, rounds, json_only)
