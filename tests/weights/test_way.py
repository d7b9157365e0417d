"""The way that versions travel is what is configured, or follows from where trainer and engines are."""

from typing import Any

import msgspec
import pytest

from freerun.core import ConfigError
from freerun.weights.config import WeightsConfig
from freerun.weights.way import WeightsWay, choose_way

HERE, TWO_HERE, APART = (["local"], ["local"]), (["local"] * 2, ["local"]), (["one"], ["two", "one"])


def chosen(config: dict[str, Any], where: tuple[list[str], list[str]], device: str, **more: Any) -> WeightsWay:
    return choose_way(WeightsConfig.model_validate(config), *where, device, **more)


def test_auto_goes_by_where_things_are() -> None:
    assert chosen({}, HERE, "cpu").name == "shm"
    assert chosen({}, HERE, "cuda").name == "ipc"
    assert chosen({}, TWO_HERE, "cuda").name == "shm", "one GPU's memory does not hold what several have"
    assert chosen({}, APART, "cpu").name == "tcp"
    assert chosen({}, APART, "cuda", engines_on_gpus=True).name == "nccl"
    assert chosen({}, APART, "cuda").name == "tcp", "who fetches for another engine has no GPU"
    assert chosen({"deltas": True}, APART, "cuda", engines_on_gpus=True).name == "tcp"


def test_what_is_configured_is_checked() -> None:
    way = chosen({"way": "tcp", "deltas": True}, HERE, "cpu", engine_dtype="bfloat16")
    assert way == WeightsWay("tcp", "bfloat16", True)
    assert msgspec.json.decode(msgspec.json.encode(way), type=WeightsWay) == way
    assert chosen({"way": "files", "folder": "/shared"}, APART, "cpu").folder == "/shared"
    for config, where, said in [
        ({"way": "files"}, APART, "set weights.folder to a folder that trainer and engines share"),
        ({"way": "shm"}, APART, "several machines: use auto or tcp"),
        ({"way": "ipc"}, HERE, "a trainer with one GPU: use auto"),
        ({"way": "nccl", "deltas": True}, APART, "works with TCP only"),
    ]:
        with pytest.raises(ConfigError, match=said):
            chosen(config, where, "cpu")  # type: ignore[arg-type]
