"""Weights that processes have in common: once in memory, whole or not there, and never from a lender that is gone."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import pytest
import torch

from freerun.core.files import write_atomically
from freerun.models.checkpoint import load_decoder, save_decoder
from freerun.weights import common
from freerun.weights.common import Borrower, CommonFile, Lender
from tests.tiny import tiny_decoder

SIZES = {"a": (3, 5), "b": (7,), "c": (64, 33), "codes": (9, 2)}


def likes(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    made = {name: torch.empty(size, dtype=dtype, device="meta") for name, size in SIZES.items()}
    return made | {"codes": made["codes"].to(torch.int8)}


def tensors(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    made = {name: (9 * torch.randn(size, generator=generator)).to(dtype) for name, size in SIZES.items()}
    return made | {"codes": made["codes"].to(torch.int8)}


def refuse(name: str) -> torch.Tensor:
    raise AssertionError(f"{name} was read again")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_second_one_maps_what_the_first_has_written(tmp_path: Path, dtype: torch.dtype) -> None:
    expected = tensors(dtype)
    first = CommonFile(tmp_path)(likes(dtype), expected.__getitem__)
    second = CommonFile(tmp_path)(likes(dtype), refuse)
    for name, tensor in expected.items():
        for found in (first[name], second[name]):
            assert torch.equal(found, tensor)
            assert found.data_ptr() % 64 == 0
    second["a"].zero_()
    assert torch.equal(first["a"], expected["a"]), "a write is the writer's own copy"
    assert torch.equal(CommonFile(tmp_path)(likes(dtype), refuse)["a"], expected["a"])


def test_a_writer_that_dies_on_its_way_leaves_nothing_that_counts(tmp_path: Path) -> None:
    def dies(name: str) -> torch.Tensor:
        if name == "c":
            raise KeyboardInterrupt
        return tensors(torch.float32)[name]

    with pytest.raises(KeyboardInterrupt):
        CommonFile(tmp_path)(likes(torch.float32), dies)
    found = CommonFile(tmp_path)(likes(torch.float32), tensors(torch.float32).__getitem__)
    assert torch.equal(found["c"], tensors(torch.float32)["c"])


def test_without_room_each_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(common, "_SPARE_BYTES", 2**62)
    expected = tensors(torch.float32)
    found = CommonFile(tmp_path)(likes(torch.float32), expected.__getitem__)
    assert all(found[name] is tensor for name, tensor in expected.items())
    assert "has no room for 0.0 GiB of weights" in capsys.readouterr().err


def test_a_decoder_over_common_weights_is_the_decoder(tmp_path: Path) -> None:
    save_decoder(tiny_decoder(3), tmp_path / "model")
    plain = load_decoder(tmp_path / "model")
    for _ in range(2):
        shared = load_decoder(tmp_path / "model", common=CommonFile(tmp_path))
        for (name, theirs), (_, ours) in zip(plain.named_parameters(), shared.named_parameters(), strict=True):
            assert torch.equal(theirs, ours), name
        assert shared.head.weight is shared.embed.weight


PSS = """
import sys, torch
from pathlib import Path
from freerun.weights.common import CommonFile
folder, size = Path(sys.argv[1]), torch.Size([2**24])
def pss():
    return next(int(line.split()[1]) for line in open("/proc/self/smaps_rollup") if line.startswith("Pss:"))
before = pss()
found = CommonFile(folder)({"a": torch.empty(size, device="meta")}, lambda name: torch.ones(size))
total = found["a"].sum().item()
print("there", flush=True)
sys.stdin.readline()
found["a"].sum()
print(pss() - before, total, flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux")
def test_two_processes_have_it_once_in_memory(tmp_path: Path) -> None:
    """64 MiB, of which each is charged half."""
    both = [
        subprocess.Popen([sys.executable, "-c", PSS, str(tmp_path)], stdin=-1, stdout=-1, text=True) for _ in range(2)
    ]
    grown = []
    try:
        for one in both:
            assert one.stdout is not None
            assert one.stdout.readline() == "there\n"
        for one in both:
            assert one.stdin is not None
            assert one.stdout is not None
            one.stdin.write("\n")
            one.stdin.flush()
            kib, total = one.stdout.readline().split()
            assert float(total) == 2**24
            grown.append(int(kib) / 2**10)
    finally:
        for one in both:
            one.communicate("\n")
    assert 50 < sum(grown) < 64 + 30, f"{grown} MiB"


class _OnCpu(Lender):
    """Offers something else than GPU memory."""

    def put(self, content: bytes) -> None:
        write_atomically(self._offer, content)

    def die(self) -> None:
        os.close(self._lock)


def waiting(borrower: Borrower) -> tuple[Thread, list[bytes]]:
    found: list[bytes] = []
    thread = Thread(target=lambda: found.append(borrower.wait()), daemon=True)
    thread.start()
    return thread, found


def test_a_borrower_takes_what_a_living_lender_offers_and_nothing_else(tmp_path: Path) -> None:
    gone = _OnCpu(tmp_path)
    gone.put(b"stale")
    gone.die()
    thread, found = waiting(Borrower(tmp_path))
    lender = _OnCpu(tmp_path)
    assert not (tmp_path / "base-lent").exists(), "withdrawn before the next is there"
    lender.put(b"fresh")
    thread.join(10)
    assert found == [b"fresh"]
    lender.die()


def test_borrowers_end_with_their_lender(tmp_path: Path) -> None:
    lender, ended = _OnCpu(tmp_path), Event()
    end: Callable[[], None] = ended.set
    Thread(target=Borrower(tmp_path, end)._watch, daemon=True).start()
    assert not ended.wait(0.1)
    lender.die()
    assert ended.wait(10)


def test_a_lender_waits_until_those_of_the_one_before_are_gone(tmp_path: Path) -> None:
    (tmp_path / "base-lent.lock").touch()
    watching = os.open(tmp_path / "base-lent.lock", os.O_RDONLY)
    fcntl.flock(watching, fcntl.LOCK_SH)
    made = Event()

    def lend() -> None:
        Lender(tmp_path)
        made.set()

    Thread(target=lend, daemon=True).start()
    assert not made.wait(0.1)
    os.close(watching)
    assert made.wait(10)
