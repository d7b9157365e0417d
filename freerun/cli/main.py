"""The command line: parse, load the configuration, launch. Nothing else happens here."""

import os
import signal
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from freerun.cli.bench_machines import bench
from freerun.cli.ending import end_with
from freerun.cli.stopping import run_to_end
from freerun.core import FreerunError
from freerun.machine.gpus import name_by_uuid
from freerun.machine.host import allow_many_files

app = typer.Typer(
    name="freerun",
    help="Asynchronous reinforcement learning for language models. Start with `freerun demo`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(bench, name="bench")


def _show_version(asked: bool) -> None:
    if asked:
        print(f"freerun {metadata.version('freerun')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Say which version this is.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """What may stand before a command."""


ConfigFile = Annotated[Path, typer.Argument(help="The run's YAML file, or a preset's name.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Changes to it, such as train.lr=3e-4.", show_default=False, metavar="KEY=VALUE"),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Try all that it needs, print the plan and what would fail; start nothing.")
]


@app.command()
def train(
    file: ConfigFile,
    overrides: Overrides = None,
    dry_run: DryRun = False,
) -> None:
    """Train a policy by reinforcement learning, generating and learning at the same time."""
    from freerun.run.agents import check_agent
    from freerun.run.begin import begin
    from freerun.run.prepare import prepare

    config, origins = _load(file, overrides)
    if dry_run:
        _dry_run(config, origins)
        return
    prepared = prepare(config, origins)
    run_to_end(check_agent(prepared), lambda: "stopped")  # an agent that cannot run leaves no folder
    _train(prepared, begin(prepared))


@app.command()
def plan(
    file: ConfigFile,
    overrides: Overrides = None,
    machines: Annotated[int | None, typer.Option(help="Plan for so many machines.", min=1)] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs in each of them.", min=0)] = None,
    gpu_memory: Annotated[float | None, typer.Option(help="GiB of memory of each GPU; 80.", min=1)] = None,
) -> None:
    """Print who would run where, on machines that need not be here: memory a GPU, bytes a weight update moves, what
    does not fit and what would."""
    from freerun.commands.plan import describe_plan

    print(describe_plan(_load(file, overrides)[0], machines, gpus, gpu_memory))


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="The run's folder.", show_default=False, metavar="RUN_FOLDER")],
    overrides: Overrides = None,
) -> None:
    """Go on with a run that was stopped, killed, or should do more steps, from its newest checkpoint."""
    from freerun.run.resume import resume

    prepared, start = resume(folder, overrides or [])
    (_dpo if start.state.preferences else _sft if start.state.supervised else _train)(prepared, start)


@app.command()
def export(
    source: Annotated[
        Path,
        typer.Argument(help="A checkpoint, or a run's folder: then its newest.", show_default=False, metavar="FROM"),
    ],
    out: Annotated[Path, typer.Argument(help="The new folder.", show_default=False, metavar="OUT_FOLDER")],
) -> None:
    """Write a checkpoint as an ordinary Hugging Face model folder."""
    from freerun.commands.export import export

    print(f"done: {export(source, out)} is in {out}")


@app.command()
def sft(file: ConfigFile, overrides: Overrides = None, dry_run: DryRun = False) -> None:
    """Supervised training on prompts and answers: a warm-up before `train`, or for its own sake."""
    from freerun.run.begin import begin
    from freerun.run.prepare import prepare_sft

    config, origins = _load(file, overrides)
    if dry_run:
        _dry_run(config, origins, "sft")
        return
    prepared = prepare_sft(config, origins)
    _sft(prepared, begin(prepared))


@app.command()
def dpo(file: ConfigFile, overrides: Overrides = None, dry_run: DryRun = False) -> None:
    """Learn from preference pairs (rows with prompt, chosen and rejected) by DPO, without sampling or rewards."""
    from freerun.run.begin import begin
    from freerun.run.prepare import prepare_dpo

    config, origins = _load(file, overrides)
    if dry_run:
        _dry_run(config, origins, "dpo")
        return
    prepared = prepare_dpo(config, origins)
    _dpo(prepared, begin(prepared))


@app.command("eval")
def eval_(file: ConfigFile, overrides: Overrides = None) -> None:
    """Measure a policy on held-out tasks: pass@1 with a 95% interval, and pass@k (k is evaluate.samples)."""
    from freerun.commands.progress import counting
    from freerun.run.evaluating import evaluate
    from freerun.run.evaluation_folder import evaluation_folder, what_it_measures
    from freerun.run.prepare import prepare_eval

    prepared = prepare_eval(*_load(file, overrides))
    if note := what_it_measures(prepared.config):
        print(f"note: {note}", file=sys.stderr)
    folder = evaluation_folder(prepared)
    with counting("evaluating", len(prepared.held_out)) as progress:
        result = run_to_end(evaluate(prepared, progress, folder), lambda: "stopped: nothing is kept of it")
    print(f"pass@1 {result.pass_at_1:.3f} (95% interval {result.low:.3f} to {result.high:.3f}), {result.tasks} tasks")
    if result.k > 1:
        print(f"pass@{result.k} {result.pass_at_k:.3f}")
    print(
        f"mean reward {result.reward_mean:.3f}, truncated {result.truncated_share:.1%}"
        + (f", {result.judge_failures} answers could not be judged" if result.judge_failures else "")
    )
    print(f"kept in {folder.path}: eval.md, evals.jsonl, answers.jsonl")


@app.command()
def score(
    file: ConfigFile,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Write each answer's log-probabilities here, as JSON lines.")] = None,
) -> None:
    """How likely the model finds the reference answers of `data`: log-probabilities, without sampling or rewards."""
    from freerun.commands.progress import counting
    from freerun.commands.score import refuse_unwritable, score
    from freerun.run.prepare import prepare_sft

    refuse_unwritable(out)
    prepared = prepare_sft(*_load(file, overrides), observed=False)
    with counting("scoring", len(prepared.tasks)) as progress:
        result = score(prepared, out, progress)
    print(
        f"{result.answers} answers, {result.tokens} tokens: log-probability {result.logprob / result.answers:.3f} an "
        f"answer, perplexity {result.perplexity:.3f} a token"
    )


@app.command()
def judge(
    file: Annotated[
        Path, typer.Argument(help="Rows with an answer to judge under text or completion.", metavar="FILE.jsonl")
    ],
    reward: Annotated[str, typer.Option(help="math, my.py:function, …, a list of parts, or a run's YAML file.")],
    prompt_key: Annotated[str, typer.Option(help="The column of the prompt.")] = "prompt",
    answer_key: Annotated[str | None, typer.Option(help="The column of the reference answer: answer.")] = None,
    text_key: Annotated[str | None, typer.Option(help="The column to judge: text or completion.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that judge.", min=1)] = None,
    timeout_s: Annotated[float | None, typer.Option(help="A judgement that takes longer is killed.", min=0.01)] = None,
    out: Annotated[Path | None, typer.Option(help="Write a verdict for each row here, as JSON lines.")] = None,
) -> None:
    """Have answers judged that are already there: how the judging ended, and the distribution of rewards."""
    from freerun.commands import judge
    from freerun.commands.progress import counting

    config = judge.reward_of(reward, workers, timeout_s)
    judge.refuse_to_overwrite(out, [file, Path(reward), *config.files])
    answers = judge.read_answers(file, judge.Keys(prompt_key, answer_key, text_key))
    with counting("judging", len(answers)) as progress:
        verdicts = run_to_end(judge.judge(config, answers, out, progress), lambda: "stopped")
    judge.show(answers, verdicts, Console())


@app.command()
def samples(
    folder: Annotated[Path, typer.Argument(help="The run's folder.", show_default=False, metavar="RUN_FOLDER")],
    text: Annotated[str, typer.Option(help="Only those that hold this, in any case.", show_default=False)] = "",
    reward_min: Annotated[float | None, typer.Option(help="Their reward, at least.", show_default=False)] = None,
    reward_max: Annotated[float | None, typer.Option(help="Their reward, at most.", show_default=False)] = None,
    truncated: Annotated[
        bool | None, typer.Option(help="Only those that were cut off, or that were not.", show_default=False)
    ] = None,
    staleness_min: Annotated[
        int | None, typer.Option(help="Versions between their oldest token and the trainer.", show_default=False)
    ] = None,
    task: Annotated[str | None, typer.Option(help="The id of their task.", show_default=False)] = None,
    branch: Annotated[bool, typer.Option("--branch", help="Only of members that have several branches.")] = False,
    fate: Annotated[
        str | None, typer.Option(help="trained, no_signal, too_stale, judge_failed, …", show_default=False)
    ] = None,
    step_min: Annotated[int | None, typer.Option(help="Their training step, at least.", show_default=False)] = None,
    step_max: Annotated[int | None, typer.Option(help="Their training step, at most.", show_default=False)] = None,
    finish: Annotated[str | None, typer.Option(help="stop, length or abort.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(help="So many, the newest.", min=1)] = 50,
    out: Annotated[Path | None, typer.Option(help="Write them here.", show_default=False, metavar="FILE.jsonl")] = None,
) -> None:
    """Print a run's samples as JSON lines, newest first: each token with its log-probability and version."""
    from freerun.commands.samples import filter_of, write_samples

    wanted = filter_of(
        text=text,
        reward_min=reward_min,
        reward_max=reward_max,
        truncated=truncated,
        staleness_min=staleness_min,
        task=task,
        branch=branch,
        fate=fate,
        step_min=step_min,
        step_max=step_max,
        finish=finish,
    )
    found = write_samples(folder, wanted, limit, out)
    if out:
        print(f"done: {found} samples are in {out}")


@app.command()
def config(
    file: Annotated[Path | None, typer.Argument(help="Show what this file resolves to.", show_default=False)] = None,
    overrides: Overrides = None,
) -> None:
    """Explain every knob: its meaning and its default. With a file: the values it resolves to, and where from."""
    from freerun.config.load import knobs
    from freerun.config.text import dump

    if file is not None:
        print(dump(*_load(file, overrides)), end="")
        return
    console = Console(highlight=False)
    for key, help, default in knobs():
        shown = "[red]required[/]" if default is ... else f"[dim]default[/] {escape(repr(default))}"
        console.print(f"[bold]{escape(key)}[/]  {shown}\n    {escape(help)}", soft_wrap=True)


@app.command()
def serve(
    model: Annotated[str, typer.Argument(help="A Hugging Face model folder, or ORG/NAME of the hub.", metavar="MODEL")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Such as engine.cache_tokens=100000.", show_default=False, metavar="engine.KEY=VALUE"),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.", min=0, max=65535)] = 8000,
    api_key: Annotated[
        str | None, typer.Option(help="Ask every client for it.", envvar="FREERUN_API_KEY", show_default=False)
    ] = None,
    score: Annotated[
        bool, typer.Option("--score", help="Generate nothing: give log-probabilities of prompts, as a teacher does.")
    ] = False,
    trust_remote_code: Annotated[
        bool,
        typer.Option(
            "--trust-remote-code", help="Run the code that the model's folder brings, where nobody else has such."
        ),
    ] = False,
) -> None:
    """Serve a model over HTTP, to OpenAI clients and to Freerun's own."""
    from freerun.commands.serve import serve_model, serve_teacher

    if score:
        serve_teacher(model, overrides or [], host, port, api_key, trust_remote_code)
        return
    serve_model(model, overrides or [], host, port, api_key, trust_remote_code)


@app.command()
def watch(
    runs: Annotated[Path, typer.Argument(help="The folder that holds the runs, or a run's folder.")] = Path("runs"),
    host: Annotated[str, typer.Option(help="The address to listen on; beyond this machine a token is asked for.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.", min=0, max=65535)] = 7420,
    token: Annotated[
        str | None,
        typer.Option(help="Ask browsers for this one.", envvar="FREERUN_WATCH_TOKEN", show_default=False),
    ] = None,
) -> None:
    """Look at runs in a browser, live while they go on: curves, timelines, every sample, runs side by side."""
    from freerun.commands.watch import watch

    watch(runs, host, port, token)


@app.command()
def audit(
    folder: Annotated[Path, typer.Argument(help="The run's folder.", show_default=False, metavar="RUN_FOLDER")],
) -> None:
    """Prove from run.db that every task was trained on once or dropped for a reason, whatever befell the run."""
    from freerun.commands.audit import audit_run

    audited = audit_run(folder)
    print("\n".join(audited.lines))
    if not audited.is_clean:
        raise typer.Exit(1)


@app.command()
def engines(
    folder: Annotated[Path, typer.Argument(help="The run's folder.", show_default=False, metavar="RUN_FOLDER")],
    change: Annotated[
        str | None, typer.Argument(help="Have more or fewer.", show_default=False, metavar="add|remove")
    ] = None,
    what: Annotated[
        str | None, typer.Argument(help="How many, or which is to leave.", show_default=False, metavar="N|NAME")
    ] = None,
) -> None:
    """List a run's engines: machine, version, what each does. Add some, or remove some, while it goes on."""
    from freerun.commands.engines import change_engines, engine_lines

    for line in engine_lines(folder) if change is None else [change_engines(folder, change, what)]:
        print(line)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="The run's folder.", show_default=False, metavar="RUN_FOLDER")],
) -> None:
    """Write a run's page as one file, report.html, also of a run that goes on or was killed."""
    from freerun.commands.watch import report

    print(f"done: look at {report(folder)}")


@app.command()
def why(
    folder: Annotated[Path, typer.Argument(help="The run's folder.", show_default=False, metavar="RUN_FOLDER")],
    steps: Annotated[int | None, typer.Option(help="Of the last so many steps; else of all.", min=1)] = None,
) -> None:
    """Say what holds a run up, in shares of its time, and which setting to change: while it goes on, or afterwards."""
    from freerun.commands.why import explain_run

    for line in explain_run(folder, steps):
        print(line)


@app.command()
def node(
    join: Annotated[str, typer.Option(help="Where the run's controller listens.", metavar="HOST:PORT")],
    key_file: Annotated[
        str | None, typer.Option(help="A file with the run's key; else FREERUN_KEY holds it.", show_default=False)
    ] = None,
    name: Annotated[str | None, typer.Option(help="What to call this machine; else its host name.")] = None,
    address: Annotated[
        str | None, typer.Option(help="Where other machines reach this one; else as the controller does.")
    ] = None,
    wait_s: Annotated[float, typer.Option(help="How long to try while there is no controller.", min=0)] = 600.0,
    stay: Annotated[bool, typer.Option("--stay", help="Wait for the next run when one is over.")] = False,
    end_with_stdin: Annotated[
        bool, typer.Option("--end-with-stdin", help="End when standard input closes, as it does when ssh ends.")
    ] = False,
) -> None:
    """Offer this machine to a run whose controller is on another one."""
    from freerun.commands.node import end_with_input, join_run

    if end_with_stdin:
        end_with_input()
    run_to_end(join_run(join, key_file, name, address, wait_s, stay), lambda: "stopped: what ran here has ended")


@app.command()
def doctor(
    overrides: Overrides = None,
    cluster: Annotated[
        Path | None, typer.Option(help="Try the machines that this run asks for, and all links.", metavar="RUN.yaml")
    ] = None,
) -> None:
    """Say what this machine can do; with --cluster, also what the machines of a run can."""
    from freerun.commands.doctor import Finding, examine

    console = Console(highlight=False)

    def show(finding: Finding) -> None:
        console.print(f"{finding.mark} {escape(finding.what)}", soft_wrap=True)

    if cluster is None:
        for finding in examine():
            show(finding)
        return
    from freerun.commands.doctor_cluster import examine_cluster

    async def try_all() -> None:
        config, _ = _load(cluster, overrides)
        async for finding in examine_cluster(config, lambda said: console.print(escape(said), style="dim")):
            show(finding)

    run_to_end(try_all(), lambda: "stopped: the machines have left")


@app.command()
def demo(
    seed: Annotated[int, typer.Option(help="Of model, data and sampling.")] = 0,
    max_staleness: Annotated[int, typer.Option(help="The staleness bound η; 0 is synchronous.")] = 4,
    steps: Annotated[int | None, typer.Option(help="Training steps, instead of the demo's own number.")] = None,
    preset: Annotated[
        str | None, typer.Option(help="Another demo: a published run made small, such as areal-1.5b-math-small.")
    ] = None,
) -> None:
    """Watch a tiny model learn to reverse letters, in a minute, on two CPU cores."""
    from freerun.commands.demo import run_demo
    from freerun.commands.small import run_small

    if preset is not None:
        changes = [f"seed={seed}", *([f"control.steps={steps}"] if steps else [])]
        print(run_to_end(run_small(preset, changes)))
        return
    print(run_to_end(run_demo(seed, max_staleness, steps)))


@app.command()
def chaos(
    file: ConfigFile,
    overrides: Overrides = None,
    kills: Annotated[int, typer.Option(help="How often a part of the run is struck.", min=1)] = 100,
    every: Annotated[float, typer.Option(help="Seconds between two strikes, on average.", min=0.01)] = 10.0,
    seed: Annotated[int, typer.Option(help="Of what is struck how and when; the run's own is `seed=`.")] = 0,
    what: Annotated[str, typer.Option(help="What is done, of these.")] = "kill,stop,starve,disk",
    parts: Annotated[str, typer.Option(help="To whom, of these.")] = "engine,trainer,judge,controller,agent",
    reference: Annotated[
        Path | None,
        typer.Option(help="The same run undisturbed; else it is run first.", show_default=False, metavar="RUN_FOLDER"),
    ] = None,
) -> None:
    """Kill, stop and starve parts of a run at random moments, and fill its disk: what of its promises holds, and at
    what pace it goes on."""
    from freerun.bench.chaos import asked_for, chaos

    asked = asked_for(file, overrides or [], kills, every, seed, what, parts, reference)
    verdict = run_to_end(chaos(asked), lambda: "stopped: what was struck has ended")
    for line in [*verdict.lines(), verdict.last_line]:
        print(line)
    if not verdict.is_good:
        raise typer.Exit(1)


def _train(prepared: Any, start: Any) -> None:
    from freerun.run import training
    from freerun.run.resume import can_go_on, how_to_go_on, newest_step

    try:
        outcome = run_to_end(training.train(prepared, start=start), lambda: how_to_go_on(start.folder), saves=True)
    except FreerunError as error:
        if can_go_on(start.folder) and not (error.is_users and newest_step(start.folder) == start.state.version):
            print(how_to_go_on(start.folder), file=sys.stderr)
        raise
    print(f"done: {len(outcome.steps)} steps; look at {outcome.folder.report}")


def _sft(prepared: Any, start: Any) -> None:
    from freerun.run.supervised import sft

    _learn_from_what_is_given(sft, prepared, start, "supervised", "pass@1")


def _dpo(prepared: Any, start: Any) -> None:
    from freerun.run.preferences import dpo

    _learn_from_what_is_given(dpo, prepared, start, "preferences", "right pairs")


def _learn_from_what_is_given(learn: Any, prepared: Any, start: Any, called: str, passed: str) -> None:
    from freerun.commands.progress import LessonProgress
    from freerun.run.resume import how_to_go_on

    going = learn(prepared, [LessonProgress(prepared.config.control.steps, called, passed)], start)
    folder = run_to_end(going, lambda: how_to_go_on(start.folder), saves=True)
    print(f"done: the model is in {folder.checkpoints / 'last'}; look at {folder.report}")


def _dry_run(config: Any, origins: Any, command: str = "train") -> None:
    """Exit code 2 if anything would fail."""
    from freerun.commands.dry_run import dry_run

    trial = run_to_end(dry_run(config, origins, command), lambda: "stopped")
    for line in trial.works:
        print(line)
    sys.stdout.flush()
    for line in trial.fails:
        print(f"freerun: {line}", file=sys.stderr)
    if trial.fails:
        raise typer.Exit(2)


def _load(file: Path, overrides: list[str] | None) -> tuple[Any, Any]:
    from freerun.config.load import load_config

    return load_config(file, overrides or [])


def main() -> NoReturn:
    """The console script. A user's mistake is one line and code 2; any other expected failure its cause and code 1."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    allow_many_files()
    name_by_uuid()
    sys.exit(end_with(app))


if __name__ == "__main__":
    main()
