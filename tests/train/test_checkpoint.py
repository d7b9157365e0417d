"""A learner that is saved and loaded goes on bit for bit; a checkpoint is whole or not there."""

import random
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict import get_state_dict

from freerun.core import TrainerError
from freerun.train.checkpoint import CheckpointWriter, NotWritten, load_checkpoint
from freerun.train.checkpoint_folder import CONTROL, CheckpointFolder
from freerun.train.config import EntropyConfig, LoraConfig, TrainConfig
from freerun.train.drift import Reference
from freerun.train.learner import Learner
from freerun.train.optimizer import EIGHT_BIT_MOMENTS
from tests.tiny import tiny_decoder
from tests.train.test_learner import random_batch

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

CONFIG = TrainConfig(
    lr=1e-2, warmup_steps=4, decay_steps=9, minibatches=3, weight_decay=0.1, entropy=EntropyConfig(coef=0.1, floor=9.0)
)


def learner(seed: int = 0, config: TrainConfig = CONFIG, tied: bool = True) -> Learner:
    """Some of its matrices are large enough for moments of 8 bits."""
    decoder = tiny_decoder(seed, tie_word_embeddings=tied, intermediate_size=128)
    return Learner(decoder, config, temperature=0.9, seed=5)


def learn(who: Learner, versions: range) -> list[dict[str, float]]:
    every = [who.step(random_batch(version, version)).metrics for version in versions]
    return [{name: value for name, value in metrics.items() if name != "tokens_per_s"} for metrics in every]


def save(who: Learner, folder: Path, keep: int = 2) -> Path:
    writer = CheckpointWriter(keep)
    writer.begin(who, folder, "{}")
    writer.finish()
    return folder / f"step-{who.version}"


def assert_equal_weights(one: Learner, other: Learner) -> None:
    mine, others = one.policy.tensors(), other.policy.tensors()
    assert all(torch.equal(others[name], tensor) for name, tensor in mine.items())


def assert_equal(one: Learner, other: Learner) -> None:
    assert one.version == other.version
    mine, others = one.state(), other.state()
    assert mine["model"].keys() == others["model"].keys()
    assert all(torch.equal(mine["model"][name], others["model"][name]) for name in mine["model"])
    assert mine["optimizer"].keys() == others["optimizer"].keys()
    for name, tensors in mine["optimizer"].items():
        assert tensors.keys() >= {"step", "exp_avg", "exp_avg_sq"} or tensors.keys() == {"step", *EIGHT_BIT_MOMENTS}
        assert all(torch.equal(tensors[key], others["optimizer"][name][key]) for key in tensors)


@pytest.mark.parametrize("earlier_release", [False, True])
def test_what_is_known_of_drift_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier_release: bool
) -> None:
    """Checkpoints of earlier releases do not have it, and can be loaded."""
    first, second = learner(), learner(seed=9)
    learn(first, range(2))
    if earlier_release:
        state = first.state
        monkeypatch.setattr(first, "state", lambda: {k: v for k, v in state().items() if k != "drift"})
    load_checkpoint(save(first, tmp_path), second)
    assert_equal_weights(first, second)
    assert first._causes.reference != Reference()
    assert second._causes.reference == (Reference() if earlier_release else first._causes.reference)


@pytest.mark.parametrize(("tied", "kind"), [(True, "32bit"), (False, "32bit"), (True, "8bit"), (True, "offload")])
def test_a_loaded_learner_goes_on_bit_for_bit(tmp_path: Path, tied: bool, kind: str) -> None:
    """Schedules and the shuffling of minibatches included."""
    config = CONFIG.model_copy(update={"optimizer_state": kind})
    unbroken, first = learner(config=config, tied=tied), learner(config=config, tied=tied)
    whole = learn(unbroken, range(7))
    learn(first, range(4))
    loaded = learner(seed=99, config=config, tied=tied)  # other weights, all of which must go
    load_checkpoint(save(first, tmp_path), loaded)
    assert learn(loaded, range(4, 7)) == whole[4:]
    assert_equal(loaded, unbroken)


@pytest.mark.parametrize(
    ("saved", "then", "says"), [("8bit", "32bit", "8bit"), ("offload", "8bit", "32bit, or offload")]
)
def test_moments_of_another_kind_are_refused_in_a_line(tmp_path: Path, saved: str, then: str, says: str) -> None:
    before, after = (learner(config=CONFIG.model_copy(update={"optimizer_state": kind})) for kind in (saved, then))
    learn(before, range(1))
    with pytest.raises(TrainerError, match=f"resume with train.optimizer_state={says}$"):
        load_checkpoint(save(before, tmp_path), after)


def test_moments_in_the_machines_memory_are_the_usual_ones(tmp_path: Path) -> None:
    before, after = learner(config=CONFIG.model_copy(update={"optimizer_state": "offload"})), learner(seed=9)
    learn(before, range(2))
    load_checkpoint(save(before, tmp_path), after)
    assert_equal(before, after)


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize(
    "changes", [{}, {"lora": {"rank": 2}}, {"optimizer_state": "offload"}, {"optimizer_state": "8bit"}]
)
def test_the_state_is_what_torch_would_save(changes: dict[str, Any], steps: int) -> None:
    """By the same names: what an earlier release has saved by torch's own function can be loaded. Below an adapter
    nothing is saved."""
    who = learner(config=CONFIG.model_copy(update=TrainConfig.model_validate(changes).model_dump(include=set(changes))))
    learn(who, range(steps))
    policy, ours = who.policy, who.policy.state()
    model, optimizer = get_state_dict(policy._owner, policy._optimizer)
    learned = {name for name, p in policy._owner.named_parameters(remove_duplicate=False) if p.requires_grad}
    kept = {name: tensor for name, tensor in model.items() if name in learned or "lora" not in changes}
    theirs: dict[str, Any] = {"model": kept, "optimizer": optimizer["state"]}
    assert ours["model"].keys() == theirs["model"].keys()
    assert all(torch.equal(ours["model"][name], tensor) for name, tensor in theirs["model"].items())
    assert ours["optimizer"].keys() == theirs["optimizer"].keys()
    for name, moments in theirs["optimizer"].items():
        assert ours["optimizer"][name].keys() == moments.keys()
        assert all(torch.equal(ours["optimizer"][name][key], moment) for key, moment in moments.items())


@pytest.mark.parametrize("earlier_release", [False, True])
def test_below_an_adapter_nothing_is_saved_and_what_was_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier_release: bool
) -> None:
    config = CONFIG.model_copy(update={"lora": LoraConfig(rank=2)})
    whole, again = learner(config=config), learner(config=config)
    learn(whole, range(2))
    with monkeypatch.context() as before:
        if earlier_release:  # which wrote all weights
            before.setattr(import_module("freerun.train.trained"), "is_adapted", lambda _: False)
        checkpoint = save(whole, tmp_path)
    names = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    assert any(name.endswith("down.weight") for name in names) == earlier_release
    load_checkpoint(checkpoint, again)
    assert_equal(again, whole)
    assert learn(again, range(2, 4)) == learn(whole, range(2, 4))


def test_the_state_is_copied_before_training_goes_on(tmp_path: Path) -> None:
    who, same = learner(), learner()
    learn(who, range(2))
    learn(same, range(2))
    writer = CheckpointWriter(2)
    writer.begin(who, tmp_path, '{"controller": 1}')
    learn(who, range(2, 5))
    writer.finish()
    loaded = learner(99)
    load_checkpoint(tmp_path / "step-2", loaded)
    assert_equal(loaded, same)
    assert (tmp_path / "step-2" / CONTROL).read_text() == '{"controller": 1}'


def test_random_numbers_go_on_too(tmp_path: Path) -> None:
    who = learner()
    learn(who, range(1))
    checkpoint = save(who, tmp_path)
    drawn = random.random(), torch.rand(3)
    random.seed(0)
    torch.manual_seed(0)
    load_checkpoint(checkpoint, learner())
    assert random.random() == drawn[0]
    assert torch.equal(torch.rand(3), drawn[1])


def test_hyper_parameters_are_the_configurations(tmp_path: Path) -> None:
    who = learner()
    learn(who, range(1))
    changed = learner(config=CONFIG.model_copy(update={"weight_decay": 0.5, "betas": (0.5, 0.6)}))
    load_checkpoint(save(who, tmp_path), changed)
    groups = changed.policy._optimizer.param_groups
    assert [group["weight_decay"] for group in groups] == [0.5, 0.0]
    assert groups[0]["betas"] == (0.5, 0.6)


def test_the_newest_are_kept_and_a_version_is_written_once(tmp_path: Path) -> None:
    who = learner()
    for version in range(4):
        learn(who, range(version, version + 1))
        save(who, tmp_path)
    assert list(CheckpointFolder(tmp_path).finished()) == [3, 4]
    written = (tmp_path / "step-4" / ".metadata").stat().st_mtime_ns
    save(who, tmp_path)
    assert (tmp_path / "step-4" / ".metadata").stat().st_mtime_ns == written


def test_a_checkpoint_that_failed_leaves_nothing_and_the_next_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older one is still there; what a kill -9 leaves before the rename is no checkpoint."""
    who = learner()
    learn(who, range(1))
    save(who, tmp_path, keep=1)
    learn(who, range(1, 2))

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as failing:
        failing.setattr("freerun.core.files._flush_to_disk", full)
        with pytest.raises(NotWritten, match="could not be written: No space left on device"):
            save(who, tmp_path, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"], "it takes no room"
    shutil.copytree(tmp_path / "step-1", tmp_path / "step-9.unfinished")
    assert list(CheckpointFolder(tmp_path).finished()) == [1]
    CheckpointFolder(tmp_path).remove_unfinished()
    save(who, tmp_path, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-2"]


def test_a_folder_of_weights_is_not_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "step-7").mkdir()
    (tmp_path / "step-7" / "model.safetensors").write_text("")
    (tmp_path / "last").mkdir()
    assert CheckpointFolder(tmp_path).finished() == {}
    assert CheckpointFolder(tmp_path / "nothing").finished() == {}


def test_what_does_not_fit_or_is_damaged_says_so(tmp_path: Path) -> None:
    who = learner()
    learn(who, range(1))
    checkpoint = save(who, tmp_path)
    other = Learner(tiny_decoder(hidden_size=16), CONFIG)
    with pytest.raises(TrainerError, match="step-1 is damaged, or of another model: "):
        load_checkpoint(checkpoint, other)
    llama = Learner(tiny_decoder(model_type="llama"), CONFIG)
    with pytest.raises(TrainerError, match=r"it has decoder\.layers\.0\.k_norm\.weight, which the model"):
        load_checkpoint(checkpoint, llama)
    (checkpoint / ".metadata").unlink()
    with pytest.raises(TrainerError, match="is damaged"):
        load_checkpoint(checkpoint, who)
