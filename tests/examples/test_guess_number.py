"""The recipe that plays a game: what it starts from is made, and its files pass a dry run."""

import json
from pathlib import Path
from types import ModuleType

import pytest

from freerun.core.resolve import Kind
from freerun.models.tokenizer import load_tokenizer
from tests.cli.test_bad_input import freerun

pytest.importorskip("textarena", reason="needs textarena: make install")

RECIPE = Path(__file__).parents[2] / "examples" / "guess_number"


@pytest.fixture(scope="module")
def prepare() -> ModuleType:
    found = Kind("script", "FUNCTION", "").find(f"{RECIPE / 'prepare.py'}:play")
    module: ModuleType = __import__(found.load().__module__)
    return module


@pytest.fixture(scope="module")
def made(prepare: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    vars(prepare)["GAMES"] = 16
    prepare.write_model(folder)
    prepare.write_games(folder / "games.jsonl")
    return folder


def test_the_tokenizer_knows_all_that_is_said(made: Path) -> None:
    tokenizer = load_tokenizer(made)
    rows = [json.loads(line) for line in (made / "games.jsonl").read_text().splitlines()]
    assert {len(row["prompt"]) for row in rows} == {1, 3, 5, 7}, "four guesses"
    for row in rows:
        text = tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True)
        tokens = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(tokens) == text
        assert tokenizer.pad_token_id not in tokens, "which also stands for what is not known"
        assert len(tokenizer.encode(row["answer"], add_special_tokens=False)) == 1


def test_it_passes_a_dry_run(made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("train", RECIPE / "run.yaml", "--dry-run", f"model.path={made}")
    code, plan = freerun(*given, monkeypatch=monkeypatch, capsys=capsys)
    assert code == 0, plan
    assert "16 groups × 16 samples = 256 samples a step" in plan
