"""One thread a process: the models are tiny, and the machine's cores are for the processes under test."""

import gc
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch

from freerun.machine.host import processors

torch.set_num_threads(1)

LONGEST = ("tests/test_wheel.py", "tests/weights/test_tcp.py", "tests/train/test_ranks.py")
"""Files that would come last, and that all others would wait for."""
pytest_plugins = ["tests.lacking"]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """How many tests `make test` runs at a time: one where they would share a GPU."""
    return 1 if torch.cuda.is_available() else min(processors(), 4)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.nodeid.partition("::")[0] not in LONGEST)


def pytest_collection_finish() -> None:
    """What is imported by now stays: without it, to look for garbage takes a hundredth of the time."""
    gc.collect()
    gc.freeze()
