"""Every recipe is whole, and passes `freerun train --dry-run`, with a tiny model and no network."""

import json
from pathlib import Path

import pytest
import yaml

from tests.cli.test_bad_input import freerun
from tests.tiny import tiny_folder

EXAMPLES = Path(__file__).parents[2] / "examples"
RECIPES = sorted(file.parent.name for file in EXAMPLES.glob("*/run.yaml"))
OF_SMOLLM2 = [name for name in RECIPES if "models/smollm2" in (EXAMPLES / name / "run.yaml").read_text()]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_folder(tmp_path_factory.mktemp("tiny") / "model", max_position_embeddings=8192)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    template = "{% for message in messages %}{{ message.role + message.content + '<eos>' }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template}))
    return folder


@pytest.fixture(scope="module")
def word_problems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows such as GSM8K's, for recipes whose data is on the hub."""
    file = tmp_path_factory.mktemp("data") / "problems.jsonl"
    rows = [
        {"question": f"Ann has {n} eggs and eats 2. How many?", "answer": f"{n} - 2 = {n - 2}\n#### {n - 2}"}
        for n in range(2, 100)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_there_are_recipes() -> None:
    assert {"chain_sum", "gsm8k", "calculator_smollm2"} <= set(OF_SMOLLM2)
    listed = (EXAMPLES / "README.md").read_text()
    for recipe in RECIPES:
        assert f"({recipe}/)" in listed
        assert f"freerun train examples/{recipe}/run.yaml" in (EXAMPLES / recipe / "README.md").read_text()


@pytest.mark.parametrize("recipe", OF_SMOLLM2)
def test_a_recipe_passes_a_dry_run(
    recipe: str,
    model: Path,
    word_problems: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(EXAMPLES.parent)
    file = EXAMPLES / recipe / "run.yaml"
    given = yaml.safe_load(file.read_text())
    assert given["model"]["path"] == "models/smollm2"
    overrides = [f"model.path={model}"]
    for section in ("data", "held_out"):
        if given[section]["source"].startswith("hub:"):
            overrides += [f"{section}.source={word_problems}", f"{section}.subset=null"]
    code, plan = freerun("train", file, "--dry-run", *overrides, monkeypatch=monkeypatch, capsys=capsys)
    assert code == 0, plan
    assert "64 groups × 16 samples = 1024 samples a step" in plan
    assert "staleness  at most 4 version(s)" in plan
    assert "evaluator: an engine of its own" in plan
    assert " None " not in plan


@pytest.mark.parametrize("recipe", ["chain_sum", "calculator_smollm2"])
def test_held_out_sums_are_not_those_trained_on(recipe: str) -> None:
    """reasoning-gym makes task i of seed s from s + i, so nearby seeds have the same tasks."""
    given = yaml.safe_load((EXAMPLES / recipe / "run.yaml").read_text())
    data, held_out = given["data"], given["held_out"]
    seed = held_out["options"].pop("seed")
    assert data["options"].get("seed", 0) + data["limit"] <= seed
    assert data["options"] == held_out["options"]
