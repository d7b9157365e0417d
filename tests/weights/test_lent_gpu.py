"""A base that a trainer lends on a GPU: another process computes with the same memory, until the trainer ends."""

import subprocess
import sys
from pathlib import Path
from threading import Event

import pytest
import torch

from freerun.weights.common import Borrower

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

LENDER = """
import sys, torch
from pathlib import Path
from freerun.weights.common import Lender
lender = Lender(Path(sys.argv[1]))
big = torch.arange(2**28, dtype=torch.int32, device="cuda").view(2**14, 2**14).bfloat16()
small = torch.arange(7, dtype=torch.float32, device="cuda")
lender.offer({"big": big, "small": small, "codes": small.to(torch.int8)})
print("there", flush=True)
sys.stdin.readline()
"""
LIKES = {
    "big": torch.empty(2**14, 2**14, dtype=torch.bfloat16, device="meta"),
    "small": torch.empty(7, device="meta"),
    "codes": torch.empty(7, dtype=torch.int8, device="meta"),
}


def refuse(name: str) -> torch.Tensor:
    raise AssertionError(f"{name} was read")


def test_it_is_in_memory_once_and_borrowers_know_when_its_lender_has_ended(tmp_path: Path) -> None:
    torch.zeros(1, device="cuda")
    lender = subprocess.Popen([sys.executable, "-c", LENDER, str(tmp_path)], stdin=-1, stdout=-1, text=True)
    try:
        assert lender.stdout is not None
        assert lender.stdout.readline() == "there\n"
        free, _ = torch.cuda.mem_get_info()
        ended = Event()
        found = Borrower(tmp_path, ended.set)(LIKES, refuse)
        expected = torch.arange(2**28, dtype=torch.int32, device="cuda").view(2**14, 2**14).bfloat16()
        assert torch.equal(found["big"], expected)
        assert found["small"].tolist() == list(range(7))
        assert found["codes"].tolist() == list(range(7))
        del expected
        torch.cuda.empty_cache()
        assert free - torch.cuda.mem_get_info()[0] < 2**28, "of its 512 MiB, nothing is there twice"
        x = torch.randn(4, 2**14, device="cuda", dtype=torch.bfloat16)
        assert torch.isfinite(x @ found["big"].T).all()
        assert not ended.is_set()
        lender.kill()
        assert ended.wait(10)
    finally:
        lender.kill()
        lender.wait()
