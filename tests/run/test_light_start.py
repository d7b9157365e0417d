"""A process of a run imports what it uses and no more: on a CPU that leaves out half of what torch could import."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import tiny_folder

HEAVY = {
    *("torch._dynamo", "torch.distributed.tensor", "torch.distributed.checkpoint"),
    *("sympy", "transformers", "peft", "datasets"),
}

ENGINE = """
from freerun.engines.config import EngineConfig
from freerun.engines.embedded.server import _engine
_engine(folder, EngineConfig().on("cpu"))
"""
TRAINER = """
from freerun.core import Batch, FinishReason, Group, Sample, Task
from freerun.train.config import TrainConfig
from freerun.train.worker import TrainerProcess
from freerun.weights.shm import ShmPublisher
def answer(reward):
    return Sample([3, 4, 5], [False, True, True], [0.0, -1.0, -1.0], [-1, 0, 0], FinishReason.STOP, reward=reward)
config = TrainConfig(lora={"rank": LORA_RANK}).on("cpu")
TrainerProcess._expect_checkpoints = lambda self: None  # what it imports beside the next steps
worker = TrainerProcess(folder, config, 1.0, 0, ShmPublisher(folder.parent))
assert worker.step(Batch(0, [Group(0, Task("t", "", []), [answer(0.0), answer(1.0)], 0)])).version == 1
"""


@pytest.mark.parametrize("lora_rank", [0, 2])
def test_a_trainer_on_a_cpu_takes_a_step_without_the_compiler(lora_rank: int, tmp_path: Path) -> None:
    only_what_it_needs(TRAINER.replace("LORA_RANK", str(lora_rank)), tmp_path)


def test_a_checkpoint_on_a_cpu_is_written_without_the_compiler(tmp_path: Path) -> None:
    saves = """
from freerun.train.protocol import Checkpoint
assert not worker.checkpoint(Checkpoint(1, str(folder.parent / "checkpoints"), "{}", "")).refused
worker.written(None)
assert (folder.parent / "checkpoints" / "step-1" / ".metadata").exists()
"""
    only_what_it_needs(TRAINER.replace("LORA_RANK", "0") + saves, tmp_path, {"torch._dynamo", "transformers"})


def test_an_engine_on_a_cpu_is_ready_without_the_compiler(tmp_path: Path) -> None:
    only_what_it_needs(ENGINE, tmp_path)


def only_what_it_needs(work: str, tmp_path: Path, heavy: set[str] = HEAVY) -> None:
    """Do the work in a fresh interpreter, and look at what was imported."""
    folder = tiny_folder(tmp_path / "model")
    code = f"import sys\nfrom pathlib import Path\nfolder = Path({str(folder)!r})\n{work}\n"
    code += f"heavy = sorted({heavy!r} & set(sys.modules))\nassert not heavy, heavy"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
