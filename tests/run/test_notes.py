"""What is told before a run begins, though nothing of it is wrong."""

from pathlib import Path

import pytest

from freerun.models.checkpoint import save_decoder
from freerun.models.tiny import EOS, PAD, write_tokenizer
from freerun.run.notes import notes_of
from tests.run.test_train import prepared
from tests.tiny import mixture, tiny_decoder


@pytest.mark.parametrize(
    ("overrides", "is_told"),
    [
        (["engine.kind=vllm"], True),
        (["engine.kind=vllm", "train.replay_router=false"], False),
        (["engine.kind=sglang"], False),
        ([], False),
    ],
)
def test_an_engine_that_does_not_tell_experts(
    overrides: list[str], is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("freerun.run.notes.choose_device", lambda _: "cpu")
    mixed = tmp_path / "mixture"
    save_decoder(tiny_decoder(**(mixture("mixtral") | {"vocab_size": 9})), mixed)
    write_tokenizer(mixed, {token: index for index, token in enumerate([PAD, EOS, *"abcdef>"])})
    prepared(tmp_path)  # the data
    run = prepared(tmp_path, f"model.path={mixed}", *overrides)
    assert any("train.replay_router has no effect" in note for note in notes_of(run)) is is_told
