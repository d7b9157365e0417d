"""A resume that fails changes nothing on the disk, whenever it fails: compared byte for byte with before."""

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from freerun.core import FreerunError
from freerun.observe.folder import RunFolder
from freerun.observe.records import read_steps
from freerun.run import training
from freerun.run.resume import resume
from freerun.train.checkpoint_folder import CONTROL
from freerun.train.checksums import CHECKSUMS
from tests.run.test_train import prepared

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """As a run that was killed leaves it: lines after the newest checkpoint, the last of them torn, a checkpoint that
    was begun, and one that the disk has damaged."""
    folder = tmp_path_factory.mktemp("killed")
    run = asyncio.run(training.train(prepared(folder, "control.steps=6", "train.save_every=2"))).folder
    last = json.loads(run.metrics.read_text().splitlines()[-1])
    with run.metrics.open("a") as metrics:
        metrics.write(json.dumps(last | {"step": 7, "version": 7}) + "\n" + '{"step": 8, "ver')
    with run.timeline.open("a") as timeline:
        timeline.write(',\n{"name": "tor')
    (run.checkpoints / "step-8.unfinished").mkdir()
    next((run.checkpoints / "step-6").glob("*.distcp")).unlink()
    return run


@pytest.fixture
def run(killed: RunFolder, tmp_path: Path) -> RunFolder:
    return RunFolder(Path(shutil.copytree(killed.path, tmp_path / "run")))


def everything(run: RunFolder) -> dict[str, bytes | None]:
    """Every file and folder of it, but for the logs, which tell what was tried."""
    paths = (path for path in run.path.rglob("*") if run.logs not in path.parents)
    return {str(path.relative_to(run.path)): path.read_bytes() if path.is_file() else None for path in paths}


def model_of_unknown_shape(run: RunFolder) -> str:
    """The checkpoint does not say what it is of, as those of earlier releases: only the trainer finds out."""
    checkpoint = run.checkpoints / "step-4"
    values = json.loads((checkpoint / CONTROL).read_text())
    del values["model"]
    (checkpoint / CONTROL).write_text(json.dumps(values))
    (checkpoint / CHECKSUMS).unlink()
    return "train.lora.rank=8"


def judge_that_cannot_be_loaded(run: RunFolder) -> str:
    (run.path.parent / "judge.py").write_text("import nothing_of_that_name\ndef anything(task, text): ...\n")
    return f"reward.judge={run.path.parent / 'judge.py'}:anything"


FAILURES: list[tuple[str, Callable[[RunFolder], str], str]] = [
    ("a bad value", lambda run: "train.lr=fast", r"train\.lr"),
    ("another model", lambda run: "train.lora.rank=8", "was trained with"),
    ("a plan that does not fit", lambda run: "engine.cache_tokens=8", r"cache_tokens"),
    ("other tasks", lambda run: "data.limit=30", "have changed since"),
    ("an engine that is not there", lambda run: "engine.urls=[http://127.0.0.1:9]", "127.0.0.1:9"),
    ("a judge", judge_that_cannot_be_loaded, "nothing_of_that_name"),
    ("the trainer", model_of_unknown_shape, "is damaged, or of another model"),
]


@pytest.mark.parametrize(("harm", "says"), [case[1:] for case in FAILURES], ids=[case[0] for case in FAILURES])
async def test_a_resume_that_fails_changes_nothing(run: RunFolder, harm: Callable[[RunFolder], str], says: str) -> None:
    override = harm(run)
    before = everything(run)
    with pytest.raises(FreerunError, match=says) as caught:
        await training.train(*resume(run.path, ["control.steps=9", override]))
    assert "\n" not in str(caught.value)
    assert everything(run) == before


async def test_the_next_resume_goes_on_as_if_none_had_failed(run: RunFolder) -> None:
    await training.train(*resume(run.path, ["control.steps=8"]))
    assert [record.step for record in read_steps(run.metrics)] == list(range(1, 9))
    assert (run.checkpoints / "step-6.damaged").is_dir()
    assert not list(run.checkpoints.glob("*.unfinished"))
    assert "goes on from" in run.notes.read_text()
