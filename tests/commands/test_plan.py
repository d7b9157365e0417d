"""`freerun plan` and `--dry-run`, on machines that are not here."""

from pathlib import Path

import pytest

from freerun.commands.dry_run import describe
from freerun.commands.plan import describe_plan
from freerun.config.load import load_config
from freerun.config.preset import preset_names
from freerun.core import ConfigError
from freerun.run.prepare import prepare
from tests.cli.test_bad_input import freerun
from tests.tiny import tiny_folder

PUBLISHED = [name for name in preset_names() if not name.endswith("-small")]


def told(name: str, **machines: float) -> str:
    return describe_plan(load_config(Path(name))[0], **machines)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_preset_says_who_would_run_where(name: str) -> None:
    lines = told(name).splitlines()
    begins = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert begins[:7] == ["preset", "model", "machines", "memory", "weights", "batch", "fits"]
    assert "by its published shape" in lines[1]
    fits = next(line for line in lines if line.startswith("fits"))
    assert fits.startswith("fits       yes")
    assert ("of them for a token (8 of 128 experts a layer)" in lines[1]) == ("-a" in name and name.startswith("sea"))
    assert ("pipeline parallel over 12 stages" in told(name)) == (name == "sea-235b-a22b")


def test_machines_that_are_alike_share_a_line() -> None:
    text = told("areal-1.5b-math")
    assert "machines   16, with 128 GPU(s), 96 generate and 32 train\n" in text
    assert "machine 1 to machine 12, each (8 × GPU, 80.0 GiB): 8 engine(s)\n" in text
    assert "machine 13 to machine 16, each (8 × GPU, 80.0 GiB): 8 trainer rank(s)\n" in text
    assert "96 GPU(s), such as GPU 0: engine " in text
    assert "32 GPU(s), such as GPU 96: trainer " in text


def test_other_machines_than_the_presets() -> None:
    text = told("areal-1.5b-math", machines=1, gpus=8, gpu_gib=140)
    assert "machine 1 (8 × GPU, 140.0 GiB): 6 engine(s), 2 trainer rank(s)" in text
    text = told("areal-32b-code", machines=2)
    assert "fits       no: machine 2: GPU 8" in text
    assert "the largest model that fits is deepseek-ai/DeepSeek-R1-Distill-Qwen-14B" in text
    assert "30.53B parameters, 3.35B of them for a token" in told("sea-30b-a3b", gpu_gib=40)
    with pytest.raises(ConfigError, match="`freerun demo --preset sea-8b-small` makes it"):
        told("sea-8b-small")


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    name = Path("sea-8b")
    asked = ("train.lr=1e-3", "--gpu-memory", "200")
    code, text = freerun("plan", name, *asked, monkeypatch=monkeypatch, capsys=capsys)
    assert code == 0
    assert "(8 × GPU, 200.0 GiB): 8 trainer rank(s)" in text
    code, dry = freerun("train", name, "--dry-run", monkeypatch=monkeypatch, capsys=capsys)
    assert (code, "is not in the Hugging Face cache" in dry) == (2, True), "it would fail: the model is not here"
    code, errors = freerun("train", name, monkeypatch=monkeypatch, capsys=capsys)
    assert code == 2
    assert "hf download Qwen/Qwen3-8B" in errors
    assert errors.count("\n") == 1


def test_a_dry_run_imagines_the_machines_that_are_to_join(tmp_path: Path) -> None:
    tiny_folder(tmp_path / "model")
    (tmp_path / "data.jsonl").write_text('{"prompt": "ab>", "answer": "ba"}\n' * 8)
    paths = [f"model.path={tmp_path / 'model'}", f"data.source={tmp_path / 'data.jsonl'}", "control.groups_per_step=4"]
    nodes = ["launcher=nodes", "resources.machines=3", "cluster.listen=0.0.0.0:7000"]
    text = describe(prepare(*load_config(None, [*paths, *nodes])))
    assert "machines   3, with 0 GPU(s)\n" in text
    assert "machine 1 to machine 2, each (" in text
    assert "machine 3 (" in text
    assert "waits 300 s for them at 0.0.0.0:7000" in text
    assert "machines" not in describe(prepare(*load_config(None, paths)))
