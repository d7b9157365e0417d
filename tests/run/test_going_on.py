"""What a resume that cannot be leaves as it was, and what a disk has done to checkpoints: on a real run's folder."""

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from freerun.commands.export import export
from freerun.config.text import origins_in
from freerun.control.state import read_state
from freerun.core import ConfigError, TrainerError
from freerun.observe.folder import RunFolder
from freerun.run import training
from freerun.run.resume import resume
from freerun.train.checkpoint_folder import CONTROL, TENSORS, CheckpointFolder
from freerun.train.checksums import CHECKSUMS, write_checksums
from tests.run.test_train import prepared

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Six steps, of which the fourth and the sixth are kept."""
    folder = tmp_path_factory.mktemp("trained")
    return asyncio.run(training.train(prepared(folder, "control.steps=6", "train.save_every=2"))).folder


@pytest.fixture
def run(trained: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy, in a place of its own: a run's folder may be moved."""
    return RunFolder(Path(shutil.copytree(trained.path, tmp_path / "moved")))


def forget_the_model(folder: RunFolder) -> None:
    """As an older Freerun left it: neither what the weights are of, nor checksums."""
    for checkpoint in CheckpointFolder(folder.checkpoints).finished().values():
        values = json.loads((checkpoint / CONTROL).read_text())
        del values["model"]
        (checkpoint / CONTROL).write_text(json.dumps(values))
        (checkpoint / CHECKSUMS).unlink()


async def test_a_resume_that_fails_late_leaves_the_configuration_and_the_next_goes_on(run: RunFolder) -> None:
    """Only the trainer can find out, for the checkpoint does not say what it is of."""
    forget_the_model(run)
    before = run.config.read_text()
    with pytest.raises(TrainerError, match="step-6 is damaged, or of another model") as caught:
        await training.train(*resume(run.path, ["train.lora.rank=8", "control.steps=8"]))
    assert caught.value.detail == "", "one line, not the trainer's traceback"
    assert run.config.read_text() == before
    outcome = await training.train(*resume(run.path, ["control.steps=7", "train.lr=0.01"]))
    assert [record.step for record in outcome.steps] == [1, 2, 3, 4, 5, 6, 7]
    assert origins_in(run.config.read_text())["train.lr"] == "command line"
    assert read_state(run.checkpoints / "step-7" / CONTROL).model["family"] == "qwen3", "now it is said"


def change_model(run: RunFolder, out: Path, change: dict[str, object]) -> Path:
    """A folder of the same weights, but for what the model makes of them."""
    shutil.copytree(run.checkpoints / "last", out)
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | change))
    return out


LLAMA: dict[str, object] = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (LLAMA, "family qwen3 there and llama here, qk_norm True there and False here"),
        ({"rope_theta": 5e5}, "rope_theta 10000.0 there and 500000.0 here"),
        ({"rms_norm_eps": 1e-5}, "norm_eps 1e-06 there and 1e-05 here"),
    ],
)
def test_another_model_is_refused_by_what_differs(
    run: RunFolder, tmp_path: Path, change: dict[str, object], says: str
) -> None:
    other = change_model(run, tmp_path / "other", change)
    with pytest.raises(ConfigError, match=r"step-6 is of another model than .*other") as caught:
        resume(run.path, ["control.steps=8", f"model.path={other}"])
    assert says in str(caught.value)


def test_another_tokenizer_lora_and_critic_are_refused(run: RunFolder, tmp_path: Path) -> None:
    other = change_model(run, tmp_path / "other", {})
    text = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(text.replace('"a": 2', '"b": 2', 1).replace('"b": 3', '"a": 3', 1))
    with pytest.raises(ConfigError, match="its tokenizer knows other tokens"):
        resume(run.path, ["control.steps=8", f"model.path={other}"])
    with pytest.raises(ConfigError, match=r"was trained with train\.lora\.rank=0 and train\.lora\.alpha=0"):
        resume(run.path, ["control.steps=8", "train.lora.rank=8"])
    with pytest.raises(ConfigError, match="has no critic"):
        resume(run.path, ["control.steps=8", "train.advantages=gae"])


def cut(checkpoint: Path) -> None:
    file = next(checkpoint.glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:-100])


def flip(checkpoint: Path) -> None:
    file = next(checkpoint.glob("*.distcp"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (cut, r"\.distcp has [0-9,]+ bytes instead of "),
    (flip, r"\.distcp is not what was written"),
    (lambda checkpoint: next(checkpoint.glob("*.distcp")).unlink(), r"\.distcp is missing"),
    (lambda checkpoint: (checkpoint / TENSORS).unlink(), r"\.metadata is missing"),
    (lambda checkpoint: (checkpoint / CONTROL).unlink(), r"control\.json is missing"),
    (lambda checkpoint: (checkpoint / CONTROL).write_text("{"), r"control\.json has 1 bytes instead of "),
    (lambda checkpoint: (checkpoint / CHECKSUMS).write_text("{"), r"it cannot be read"),
]


@pytest.mark.parametrize(("harm", "says"), DAMAGES, ids=[says for _, says in DAMAGES])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    run: RunFolder, tmp_path: Path, harm: Callable[[Path], object], says: str
) -> None:
    newest = run.checkpoints / "step-6"
    harm(newest)
    _, start = resume(run.path, ["control.steps=8"])
    assert start.checkpoint == run.checkpoints / "step-4"
    assert list(start.damaged) == [newest]
    note, _ = start.notes
    assert note.startswith("step-6 is damaged (")
    with pytest.raises(ConfigError, match=says):
        export(newest, tmp_path / "out")
    said: list[str] = []
    assert export(run.path, tmp_path / "out", said.append) == run.checkpoints / "step-4"
    assert "step-4 is the newest that is whole" in said[0]
    harm(run.checkpoints / "step-4")
    with pytest.raises(ConfigError, match=f"no checkpoint of .* can be read .*{says}.*: begin a new run"):
        resume(run.path, ["control.steps=8"])


async def test_a_run_goes_on_past_a_damaged_checkpoint_and_keeps_it_aside(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(run.checkpoints / "step-6")
    outcome = await training.train(*resume(run.path, ["control.steps=8"]))
    assert [record.step for record in outcome.steps] == list(range(1, 9))
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["last", "step-4", "step-6.damaged", "step-8"]
    assert "note: step-6 is damaged (" in capsys.readouterr().out
    resume(run.path, ["control.steps=9"])


def test_a_state_that_nobody_understands_is_no_checkpoint(run: RunFolder) -> None:
    (run.checkpoints / "step-6" / CONTROL).write_text('{"version": "six"}')
    write_checksums(run.checkpoints / "step-6")
    assert resume(run.path, ["control.steps=8"])[1].checkpoint == run.checkpoints / "step-4"


def test_what_a_resume_cannot_mean_is_said(run: RunFolder) -> None:
    with pytest.raises(ConfigError, match=rf"it has no config\.yaml; you may mean {run.path}$"):
        resume(run.checkpoints / "step-6", [])
    for override in ("name=other", "runs=elsewhere"):
        with pytest.raises(ConfigError, match=f"{override}: a run that goes on keeps its folder"):
            resume(run.path, ["control.steps=8", override])


async def test_a_run_that_diverges_says_so_and_its_last_good_checkpoint_goes_on(tmp_path: Path) -> None:
    run = prepared(tmp_path, "control.steps=40", "train.save_every=2", "train.lr=1000", "train.weight_decay=0.01")
    with pytest.raises(TrainerError, match=r"^the policy has diverged at step \d+ .*: lower train\.lr, which is 1000"):
        await training.train(run)
    folder = RunFolder(tmp_path / "runs" / "test")
    kept = CheckpointFolder(folder.checkpoints).finished()
    assert kept
    assert not (folder.checkpoints / "last").exists(), "there is no good version to give away"
    assert folder.report.is_file()
    _, start = resume(folder.path, ["train.lr=1e-3"])
    assert start.checkpoint == list(kept.values())[-1]
