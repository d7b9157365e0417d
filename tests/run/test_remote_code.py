"""A run of a model whose code is in its folder, with every real process, where that is trusted."""

from pathlib import Path

import pytest
import torch

from freerun.commands.export import export
from freerun.core import ConfigError
from freerun.models.checkpoint import load_decoder
from freerun.models.tiny import EOS, PAD, write_tokenizer
from freerun.observe.records import read_steps
from freerun.run import training
from tests.models.test_remote_code import remote_folder
from tests.run.test_train import prepared


async def test_it_learns_and_is_exported(tmp_path: Path) -> None:
    prepared(tmp_path)  # writes the data
    folder = remote_folder(tmp_path / "remote")
    write_tokenizer(folder, {token: index for index, token in enumerate([PAD, EOS, *"abcdef>"])})
    settings = (f"model.path={folder}", "control.steps=3")
    with pytest.raises(ConfigError, match="trust_remote_code"):
        prepared(tmp_path, *settings)
    outcome = await training.train(prepared(tmp_path, *settings, "model.trust_remote_code=true"))
    steps = read_steps(outcome.folder.metrics)
    assert [record.step for record in steps] == [1, 2, 3]
    assert max(record.trainer.get("engine_mismatch_max", 0.0) for record in steps) < 1e-3
    export(outcome.folder.path, tmp_path / "out", note=lambda _: None)
    assert (tmp_path / "out" / "modeling_square.py").is_file()
    saved, exported = (
        load_decoder(where, backend="remote") for where in (outcome.folder.checkpoints / "last", tmp_path / "out")
    )
    for mine, other in zip(saved.parameters(), exported.parameters(), strict=True):
        assert torch.equal(mine, other)
