"""Four ranks, however they are laid out, learn what one learns alone; and none of them ever holds the entire model."""

import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from freerun.core import ConfigError, TrainerError
from freerun.models.checkpoint import load_decoder, save_decoder
from freerun.models.own import random_decoder
from freerun.models.shape import shape_of
from freerun.train.config import TrainConfig
from freerun.train.learner import Learner
from freerun.train.ranks import ALONE, Ranks
from freerun.train.rendezvous import meet
from tests.tiny import TINY, tiny_decoder, tiny_folder
from tests.train.processes import meeting_point, together
from tests.train.test_learner import random_batch
from tests.train.test_ranks import assert_close

LAYOUTS: dict[str, dict[str, Any]] = {
    "each sequence by four": {"context": 4},
    "two teams of two": {"context": 2},
    "two machines hold copies": {"shard": "machine"},
    "teams on machines that hold copies": {"shard": "machine", "context": 2},
}
ODD = {"num_attention_heads": 12, "num_key_value_heads": 6, "tie_word_embeddings": False}
"""Four ranks have three query heads each, and no whole number of key/value heads."""
LESSONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sequences": (
        {"objective": "gspo", "recompute": True, "corrections": ["sequence"], "optimizer_state": "offload"},
        {},
    ),
    "critic": ({"objective": "ppo", "advantages": "gae", "kl": {"coef": 0.1}, "minibatches": 2}, ODD),
}
LARGE = TINY | {
    "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6, "vocab_size": 8192, "head_dim": 64,
    "num_attention_heads": 8, "num_key_value_heads": 4,
}  # fmt: skip
THREE = {"objective": "ppo", "advantages": "gae", "kl": {"coef": 0.1}}
"""The weights in three: policy, critic, reference."""


def lesson(config: dict[str, Any], model: dict[str, Any], ranks: Ranks) -> dict[str, torch.Tensor]:
    train = TrainConfig.model_validate({"lr": 1e-2, "micro_batch_tokens": 40, **config})
    learner = Learner(tiny_decoder(dtype=torch.float64, **model), train, longest=12, ranks=ranks)
    learner.step(random_batch(0))
    return learner.policy.tensors()


def loaded(folder: Path, ranks: Ranks) -> tuple[int, dict[str, torch.Tensor]]:
    """What loading takes of this process's memory at most, and the policy's weights. What it imports is loaded first,
    by a small one."""
    train = TrainConfig.model_validate(THREE)
    Learner.from_folder(folder / "small", train, ranks=ranks)
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
    before = memory("VmRSS")
    learner = Learner.from_folder(folder / "large", train, ranks=ranks)
    return memory("VmHWM") - before, learner.policy.tensors()


def memory(kind: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(kind))


def rank(number: int, url: str, folder: Path) -> None:
    torch.set_num_threads(1)
    machine = f"machine {number // 2}"
    ranks = Ranks.join(number, 4, url, "cpu", machine=machine)
    results: dict[str, Any] = {"listens": listening(url) if ranks.is_first else None}
    for layout, how in LAYOUTS.items():
        laid_out = Ranks(number, 4, machine=machine, **how)
        results |= {f"{layout}: {name}": lesson(*what, laid_out) for name, what in LESSONS.items()}
    results["uneven heads"] = refusal(lambda: lesson({}, {"num_attention_heads": 6}, Ranks(number, 4, context=4)))
    lonely = "machine 1" if number == 3 else "machine 0"
    results["uneven machines"] = refusal(lambda: Ranks(number, 4, machine=lonely, shard="machine"))
    peak, results["loaded"] = loaded(folder, ranks)
    results["peaks"] = ranks.everyones(peak)
    if ranks.is_first:
        torch.save(results, folder / "results")
    torch.distributed.destroy_process_group()


def refusal(work: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        work()
    return str(refused.value)


def listening(url: str) -> list[str]:
    """The addresses on which somebody listens at that port, as the kernel writes them."""
    port = f":{int(url.split(':')[-1]):04X}"
    rows = [line.split() for file in ("tcp", "tcp6") for line in Path(f"/proc/net/{file}").read_text().splitlines()[1:]]
    return [row[1].removesuffix(port) for row in rows if row[1].endswith(port) and row[3] == "0A"]


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("four")
    tiny_folder(folder / "small")
    save_decoder(random_decoder(shape_of(LARGE), "cpu", torch.float32), folder / "large")
    together(rank, 4, meeting_point(), folder)
    return folder, torch.load(folder / "results")


@pytest.mark.parametrize("name", LESSONS)
def test_four_ranks_learn_what_one_does(four: tuple[Path, dict[str, Any]], name: str) -> None:
    one = lesson(*LESSONS[name], ALONE)
    start = dict(tiny_decoder(dtype=torch.float64, **LESSONS[name][1]).named_parameters())
    assert all((tensor - start[key]).abs().max() > 1e-3 for key, tensor in one.items()), "all of it learns"
    for layout in LAYOUTS:
        assert_close(one, four[1][f"{layout}: {name}"], 1e-9)


def test_no_rank_loads_more_than_its_share_and_a_tensor(four: tuple[Path, dict[str, Any]]) -> None:
    folder, results = four
    decoder = load_decoder(folder / "large")
    sizes = [parameter.nbytes for parameter in decoder.parameters()]
    assert sum(sizes) > 100e6
    shares = 3 * sum(sizes) / 4
    assert max(results["peaks"]) < shares + max(sizes) + 8e6, "three models' shares, a tensor, odds and ends"
    assert results["loaded"].keys() == {name for name, _ in decoder.named_parameters()}
    for name, parameter in decoder.named_parameters():
        assert torch.equal(results["loaded"][name], parameter)


def test_ranks_meet_on_the_given_address_alone(four: tuple[Path, dict[str, Any]]) -> None:
    assert four[1]["listens"] == ["0100007F"]


def test_what_does_not_divide_is_refused_in_a_line(four: tuple[Path, dict[str, Any]]) -> None:
    assert four[1]["uneven heads"] == (
        "train.context_parallel=4 does not divide the model's 6 heads: set one of 1, 2, 3, 6"
    )
    assert four[1]["uneven machines"] == (
        "train.shard=machine needs as many ranks on each machine (3 on machine 0, 1 on machine 1): set train.shard=all"
    )
    with pytest.raises(ValueError, match=r"ranks=3 is no multiple of train\.context_parallel=2, .*set train\.ranks=2"):
        TrainConfig(ranks=3, context_parallel=2)


def test_a_place_where_ranks_cannot_meet_is_refused_in_a_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(TrainerError, match=rf"first rank cannot listen at {where} .*in use.*choose another port"):
            meet(0, 2, f"tcp://{where}", "cpu", "127.0.0.1")
    with pytest.raises(TrainerError, match=r"tcp://127\.0\.0\.1: it should be tcp://HOST:PORT"):
        meet(0, 2, "tcp://127.0.0.1", "cpu", "127.0.0.1")
    with pytest.raises(ConfigError, match=r"no network interface here has the address 192\.0\.2\.1"):
        meet(1, 2, "tcp://127.0.0.1:1", "cpu", "192.0.2.1")
