"""Imports point one way, as DESIGN draws them, and heavy or optional libraries stay in their own files."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import freerun

ROOT = Path(freerun.__file__).parent

MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "machine": set(),
    "sandbox": {"machine"},
    "models": set(),
    "observe": {"machine"},
    "weights": set(),
    "data": set(),
    "rewards": {"sandbox", "machine", "models"},
    "engines": {"models", "weights", "machine"},
    "train": {"models", "weights", "machine"},
    "rollouts": {"engines", "rewards", "machine"},
    "control": {"train", "engines", "rollouts", "data", "rewards"},
    "config": {"control", "train", "engines", "rollouts", "data", "rewards", "models", "weights"},
    "plan": {"config", "train", "engines", "rewards", "models", "weights", "machine"},
    "run": {"plan", "config", "control", "observe", "train", "engines", "weights", "rollouts", "data", "rewards"}
    | {"models", "machine"},
    "commands": {
        "run",
        "plan",
        "config",
        "control",
        "observe",
        "train",
        "engines",
        "weights",
        "data",
        "rewards",
        "rollouts",
    }
    | {"models", "sandbox", "machine"},
    "bench": {"commands", "run", "config", "control", "observe", "train", "engines", "rollouts", "data", "rewards"}
    | {"models", "sandbox", "machine", "weights"},
    "cli": {"bench", "commands", "run", "config", "machine"},
}
"""Besides itself and core, which everybody may."""

HOMES = {
    "datasets": {"data/hub.py"},
    "reasoning_gym": {"data/gym.py", "rewards/gym.py", "rollouts/environments/reasoning_gym.py"},
    "math_verify": {"rewards/math/fallback.py"},
    "sympy": {"rewards/math/fallback.py"},
    "verifiers": {
        *("data/tasksets.py", "rewards/taskset.py"),
        *("rollouts/environments/verifiers.py", "rollouts/environments/verifiers_harness.py"),
    },
    "textarena": {"rollouts/environments/textarena.py"},
    "gymnasium": {"rollouts/environments/gymnasium.py"},
    "mcp": {"rollouts/mcp.py"},
    "openai": {
        "rollouts/environments/verifiers_harness.py",
        *("bench/exact/clients.py", "bench/exact/speakers.py"),
    },
    "anthropic": {"bench/exact/clients.py", "bench/exact/speakers.py"},
    **{
        framework: {"bench/exact/frameworks.py"}
        for framework in ("agents", "langchain_core", "langchain_openai", "langgraph", "pydantic_ai")
    },
    "huggingface_hub": {"models/hub.py"},
    "transformers": {
        *("models/tokenizer.py", "models/borrowed.py", "models/borrowed_shape.py", "models/classifier.py"),
        "bench/transformers_baseline.py",
    },
    "triton": {
        *("engines/embedded/kernels.py", "engines/embedded/product_kernels.py", "engines/embedded/guess_kernels.py"),
        *("engines/embedded/sampling_kernels.py", "engines/embedded/sampling_slots.py"),
        *("engines/embedded/fused.py", "engines/embedded/few_rows.py", "engines/embedded/gpu.py"),
        "engines/embedded/guess_bursts.py",
        *("models/expert_kernels.py", "engines/embedded/expert_kernels.py", "engines/embedded/experts.py"),
        *("train/kernels.py", "train/moments_kernel.py", "models/quantised_kernel.py"),
        *("models/fp8_kernels.py", "models/fp8_gpu.py", "engines/embedded/fp8.py"),
    },
    "peft": set(),  # the tests read our adapters with it
    "starlette": {
        *("rollouts/gateway/server.py", "bench/gateway.py"),
        *("engines/server/app.py", "engines/server/replies.py", "engines/server/routes.py"),
        *("engines/server/middleware.py", "engines/embedded/server.py", "engines/embedded/openapi.py"),
        *("engines/embedded/serving/routes.py", "engines/embedded/serving/service.py", "engines/scoring/server.py"),
        "observe/web/server.py",
    },
    "uvicorn": {
        "commands/watch.py",
        *("engines/server/app.py", "engines/embedded/server.py", "engines/external/serve.py"),
        *("rollouts/gateway/server.py", "engines/scoring/server.py"),
    },
    "sglang": {"engines/external/inside_sglang/launch.py"},
    "vllm": {"engines/external/inside_vllm/freerun_worker.py"},
    "zmq": {"train/remote.py", "train/sockets.py", "train/worker.py"},
    "aiohttp": {
        "engines/http.py",
        "engines/external/client.py",
        "engines/scoring/client.py",
        "rollouts/agents/http.py",
    },
    "ray": {"run/ray.py"},
    **{name: {f"observe/loggers/{name}.py"} for name in ("wandb", "tensorboard", "trackio", "mlflow", "opentelemetry")},
    "prometheus_client": {"observe/loggers/prometheus.py"},
    "typer": {"cli/main.py", "cli/bench.py", "cli/bench_parts.py", "cli/bench_machines.py", "cli/stopping.py"},
}


def imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def files() -> Iterator[tuple[str, Path]]:
    for file in sorted(ROOT.rglob("*.py")):
        yield file.relative_to(ROOT).as_posix(), file


def test_every_room_has_its_arrows() -> None:
    rooms = {name.split("/")[0] for name, _ in files() if "/" in name}
    assert rooms == set(MAY_IMPORT)


def arrows() -> Iterator[tuple[str, str, str]]:
    """Every import of one room by another: the file, and the two rooms."""
    for name, file in files():
        room = name.split("/")[0]
        for imported in imports(file):
            parts = imported.split(".")
            if "/" in name and parts[0] == "freerun" and len(parts) > 1 and parts[1] not in (room, "core"):
                yield name, room, parts[1]


def test_arrows_point_one_way() -> None:
    assert [f"{name} imports {to}" for name, room, to in arrows() if to not in MAY_IMPORT[room]] == []


def test_every_arrow_is_used() -> None:
    """What a room may import and does not is an invitation."""
    used = {(room, to) for _, room, to in arrows()}
    assert [
        f"{room} → {to}" for room, below in MAY_IMPORT.items() for to in sorted(below) if (room, to) not in used
    ] == []


def test_no_arrow_goes_round() -> None:
    seen: set[str] = set()
    while len(seen) < len(MAY_IMPORT):
        ready = {room for room, below in MAY_IMPORT.items() if below <= seen} - seen
        assert ready, f"a circle among {set(MAY_IMPORT) - seen}"
        seen |= ready


def test_libraries_stay_home() -> None:
    wrong = [
        f"{name} imports {library}"
        for name, file in files()
        for library in {imported.split(".")[0] for imported in imports(file)}
        if library in HOMES and name not in HOMES[library]
    ]
    assert wrong == []


def test_the_controller_needs_no_torch() -> None:
    """Control, the configuration and everything the controller talks through, in a fresh interpreter."""
    code = """
import sys, importlib, pkgutil
import freerun.control, freerun.config
for package in (freerun.control, freerun.config):
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
import freerun.plan.plan, freerun.run.starter
import freerun.engines.http, freerun.train.remote, freerun.rollouts.single_turn, freerun.rewards.service
heavy = {"torch", "transformers", "datasets", "math_verify", "sympy"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)
