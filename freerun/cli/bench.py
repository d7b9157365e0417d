"""`freerun bench`: the benchmarks' command lines."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from freerun.cli.stopping import run_to_end

bench = typer.Typer(help="Measure this machine: each prints a table, a ratio and a JSON line.", no_args_is_help=True)


Model = Annotated[
    str | None,
    typer.Option(
        help="Random weights of a shape: tiny, 4m, 135m, 0.6b, 1.5b, 7b, 8b or 32b. Without it: 1.5b on a GPU, tiny on "
        "a CPU.",
        show_default=False,
    ),
]
Groups = Annotated[
    int | None,
    typer.Option(
        help="Groups of 8 answers a step: 32 on a GPU, 8 on a CPU and for 7b and 8b, 4 for 32b.",
        min=1,
        show_default=False,
    ),
]
Slots = Annotated[
    int | None,
    typer.Option(
        help="Answers that run at a time beside training: 128 on a GPU, 64 on a CPU.", min=1, show_default=False
    ),
]
Longest = Annotated[
    int | None,
    typer.Option(help="Tokens of the longest answer: 8,192 on a GPU, 1,024 on a CPU.", min=1, show_default=False),
]
Settings = Annotated[
    list[str] | None,
    typer.Argument(
        help="Other settings of a run, such as engine.max_running=64.", show_default=False, metavar="KEY=VALUE"
    ),
]
Lora = Annotated[
    int, typer.Option(help="Train an adapter of this rank (LoRA) instead of the weights.", min=0, show_default=False)
]
Cap = Annotated[
    float | None,
    typer.Option(help="Take no more of the GPU's memory than so many GiB, as if it were a smaller one.", min=1),
]
OnUpdate = Annotated[
    Literal["recompute", "keep", "auto"],
    typer.Option(help="Whether new weights rebuild the cache of running answers."),
]
JsonOnly = Annotated[bool, typer.Option("--json", help="Print the JSON line only; the table goes to stderr.")]


@bench.command("async")
def bench_async(
    settings: Settings = None,
    etas: Annotated[
        str | None,
        typer.Option(
            help="Staleness bounds η to run; the smallest is what the others are compared with. Without it: "
            "0,1,2,4,8 on a GPU, 0,1,4 on a CPU.",
            show_default=False,
        ),
    ] = None,
    model: Model = None,
    groups: Groups = None,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Measured steps at each η, at least η + 3: 6 on a GPU, 4 on a CPU.",
            min=1,
            show_default=False,
        ),
    ] = None,
    slots: Slots = None,
    longest: Longest = None,
    lora: Lora = 0,
    cap: Cap = None,
    on_update: OnUpdate = "recompute",
    json_only: JsonOnly = False,
) -> None:
    """Does generating while training pay? Tokens a second of the whole loop at several staleness bounds η.

    At η = 0 generation and training take turns, as in synchronous training; beyond it they go on at the same time, on
    answers up to η versions old. All η run in one go, on the same processes, with the same tasks and the same
    long-tailed lengths of answers; a model of random weights serves, since only speed is measured.
    """
    from freerun.bench.async_vs_sync import bench_async
    from freerun.bench.staleness import parse_etas
    from freerun.bench.work import Work

    work = Work.here(model, groups, slots, longest, settings or [], lora, cap)
    chosen = parse_etas(etas or ("0,1,2,4,8" if work.on_gpu else "0,1,4"))
    steps = steps or (6 if work.on_gpu else 4)
    run_to_end(bench_async(work, chosen, steps, on_update, json_only), lambda: "stopped")


@bench.command("interrupt")
def bench_interrupt(
    settings: Settings = None,
    max_staleness: Annotated[int, typer.Option(help="The staleness bound η.", min=0)] = 4,
    model: Model = None,
    groups: Groups = None,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Measured steps of each, at least η + 3: 6 on a GPU, 4 on a CPU.",
            min=1,
            show_default=False,
        ),
    ] = None,
    slots: Slots = None,
    longest: Longest = None,
    on_update: OnUpdate = "recompute",
    json_only: JsonOnly = False,
) -> None:
    """Does it pay to give the engine new weights in the middle of its answers?

    The other way is to let the answers that have begun finish with the old weights, and to begin no other meanwhile:
    the long ones then keep the engine almost empty. Both run the same asynchronous training on the same processes.
    """
    from freerun.bench.interrupt import bench_interrupt
    from freerun.bench.work import Work

    work = Work.here(model, groups, slots, longest, settings or [])
    steps = steps or (6 if work.on_gpu else 4)
    run_to_end(bench_interrupt(work, max_staleness, steps, on_update, json_only), lambda: "stopped")


@bench.command("update")
def bench_update(
    settings: Settings = None,
    max_staleness: Annotated[int, typer.Option(help="The staleness bound η.", min=1)] = 4,
    model: Model = None,
    groups: Groups = None,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Measured steps of each, at least η + 3: 6 on a GPU, 4 on a CPU.",
            min=1,
            show_default=False,
        ),
    ] = None,
    slots: Slots = None,
    longest: Longest = None,
    json_only: JsonOnly = False,
) -> None:
    """New weights: keep the caches of running answers, rebuild them, or choose for each; by effective tokens a second.

    How far weights move between versions decides what a kept cache is worth: train.lr=1e-4 moves them further.
    """
    from freerun.bench.update import bench_update
    from freerun.bench.work import Work

    work = Work.here(model, groups, slots, longest, settings or [])
    steps = steps or (6 if work.on_gpu else 4)
    run_to_end(bench_update(work, max_staleness, steps, json_only), lambda: "stopped")


@bench.command("mps")
def bench_mps(
    model: Annotated[
        str | None,
        typer.Option(
            help="Random weights of a shape: 4m, 135m, 0.6b or 1.5b. Without it: 0.6b on a GPU, 4m on a CPU.",
            show_default=False,
        ),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(help="Answers decoded together: 256 on a GPU, 8 on a CPU.", min=1, show_default=False),
    ] = None,
    cores: Annotated[
        int | None, typer.Option(help="CPU cores to use without a GPU; all.", min=1, show_default=False)
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long each is measured, once it is warm.", min=0.1)] = 8.0,
    json_only: JsonOnly = False,
) -> None:
    """What do generating and training lose when they share one GPU at the same time?

    The rates of each alone, of both in the time slices that the driver gives, and of both under NVIDIA's MPS, where
    their work runs side by side and the engine's goes first. Without a GPU: each alone with all cores of the CPU, and
    both with half of them each.
    """
    from freerun.bench.one_gpu import bench_mps

    run_to_end(bench_mps(model, rows, cores, seconds, json_only), lambda: "stopped")


@bench.command("staleness")
def bench_staleness(
    settings: Settings = None,
    model: Annotated[
        str | None,
        typer.Option(help="A model's folder, or its name on the hub; without it: the demo's, made on the spot."),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="reverse (the demo's), chain_sum, chain_sum-hard or gsm8k. Without it: reverse, or chain_sum-hard "
            "where there is a model.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="For gsm8k: a folder with train.jsonl and test.jsonl, instead of the hub.", show_default=False
        ),
    ] = None,
    etas: Annotated[str, typer.Option("--etas", "--eta", help="Ages of the data, in versions.")] = "0,1,4,16",
    objectives: Annotated[
        str,
        typer.Option(
            help="ppo (plain), paper (decoupled PPO as published), freerun (with distance), down (distance of pushes "
            "down alone)."
        ),
    ] = "ppo,paper,freerun",
    seeds: Annotated[int, typer.Option(help="Runs of each kind.", min=1)] = 3,
    steps: Annotated[
        int | None, typer.Option(help="Training steps of each run: 80 to 150, by the task.", min=1, show_default=False)
    ] = None,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate: 3e-4 for reverse, 2e-5 for others.", show_default=False)
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Runs side by side: 4 on a GPU, which a small model leaves mostly idle; one for each core of a CPU.",
            min=1,
            show_default=False,
        ),
    ] = None,
    within: Annotated[
        float | None,
        typer.Option(help="Begin no run after so many seconds; the same command goes on later.", show_default=False),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="The sweep's folder. Runs that are there already are not run again.")
    ] = Path("runs/staleness"),
    json_only: JsonOnly = False,
) -> None:
    """Learning on data held at an age of η versions: plain PPO against decoupled PPO, the paper's and ours."""
    from freerun.bench import staleness

    sweep = staleness.sweep_of(task, model, data, steps, lr, settings or [])
    asked = staleness.Asked(
        staleness.parse_etas(etas),
        staleness.parse_objectives(objectives),
        list(range(seeds)),
        workers or staleness.workers_here(),
        within or float("inf"),
    )
    run_to_end(staleness.bench_staleness(sweep, asked, out, json_only), lambda: "stopped")


@bench.command("gateway")
def bench_gateway(
    model: Annotated[
        Path | None,
        typer.Option(
            help="A model folder whose tokenizer to use; without it: one made on the spot.", show_default=False
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens of the history.", min=100)] = 35_000,
    requests: Annotated[int, typer.Option(help="Requests to time.", min=10)] = 300,
    json_only: JsonOnly = False,
) -> None:
    """The gateway's own time for an agent's request with a long history, against encoding the history again."""
    from freerun.bench.gateway import bench_gateway

    run_to_end(bench_gateway(model, tokens, requests, json_only), lambda: "stopped")


@bench.command("exact")
def bench_exact(
    requests: Annotated[int, typer.Option(help="Requests of agents, at least.", min=1)] = 10_000,
    at_once: Annotated[int, typer.Option(help="Sessions at a time.", min=1)] = 24,
    seed: Annotated[int, typer.Option(help="Of what the agents do.")] = 0,
    json_only: JsonOnly = False,
) -> None:
    """Is every trained token the engine's own, whatever agents and their clients do?

    Sessions of unmodified clients and frameworks (those of `pip install 'freerun[dev]'`), with forks, retries, hang-ups
    and new weights all the time; each trained token's id, log-probability, version and context against the engine's own
    record. Ends with code 1 if one is not.
    """
    from freerun.bench.exact.bench import bench_exact

    found = run_to_end(bench_exact(requests, at_once, seed, json_only), lambda: "stopped")
    if not found.is_exact:
        raise typer.Exit(1)


@bench.command("judge")
def bench_judge(
    gsm8k: Annotated[
        Path | None, typer.Option(help="GSM8K's test.jsonl: judge its answers too.", show_default=False)
    ] = None,
    humaneval: Annotated[
        Path | None, typer.Option(help="HumanEval.jsonl.gz: judge its solutions too.", show_default=False)
    ] = None,
    answers: Annotated[int, typer.Option(help="Math answers to time, with and without hangs.", min=20)] = 2000,
    suite: Annotated[
        list[Path] | None,
        typer.Option(
            help="A file of rows with reference, answer and expected: compare the judge math with plain math-verify on "
            "them, and measure nothing else. May be given several times.",
            show_default=False,
        ),
    ] = None,
    many: Annotated[int, typer.Option(help="Judgements over which memory is watched.", min=10)] = 50_000,
    workers: Annotated[int, typer.Option(help="Processes that judge.", min=1)] = 2,
    json_only: JsonOnly = False,
) -> None:
    """Judgements a second of math and of code in the sandbox, what hangs cost, and whether memory grows."""
    from freerun.bench.judge import bench_judge
    from freerun.bench.suites import bench_suites

    if suite:
        run_to_end(bench_suites(suite, workers, json_only), lambda: "stopped")
        return
    run_to_end(bench_judge(gsm8k, humaneval, answers, many, workers, json_only), lambda: "stopped")


@bench.command("sessions")
def bench_sessions(
    sessions: Annotated[int, typer.Option(help="Sessions to time, with and without hangs.", min=20)] = 1000,
    at_once: Annotated[int, typer.Option(help="Sessions at a time, each in a process.", min=1)] = 200,
    agent_s: Annotated[float, typer.Option(help="Seconds that an agent takes on average.", min=0.01)] = 1.0,
    deadline_s: Annotated[float, typer.Option(help="Seconds after which one that hangs is killed.", min=0.1)] = 2.0,
    trivial: Annotated[int, typer.Option(help="Sessions of an agent that does nothing.", min=20)] = 5000,
    json_only: JsonOnly = False,
) -> None:
    """Agents' sessions a second, what hanging agents cost the others, and how soon after its deadline one is gone."""
    from freerun.bench.sessions import Work, bench_sessions

    work = Work(sessions, at_once, agent_s, deadline_s, trivial)
    run_to_end(bench_sessions(work, json_only), lambda: "stopped")


@bench.command("watch")
def bench_watch(
    samples: Annotated[int, typer.Option(help="Samples of the run that is looked at.", min=100)] = 1_000_000,
    steps: Annotated[int, typer.Option(help="Steps of it.", min=10)] = 10_000,
    repeats: Annotated[int, typer.Option(help="How often a browser is opened.", min=1)] = 3,
) -> None:
    """How soon the page of a large run is there, and how soon a filter over its samples is answered, in a browser."""
    from freerun.bench.watch import bench_watch

    bench_watch(samples, steps, repeats)
