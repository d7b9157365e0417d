"""Versions through files, and the subscriber that goes by the handle."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from freerun.core import WeightsError
from freerun.core.reports import WeightsHandle
from freerun.weights.files import FilePublisher
from freerun.weights.shm import ShmPublisher
from freerun.weights.subscribe import AnySubscriber
from tests.weights.test_shm import tensors


def test_a_version_arrives_as_it_was_by_files_and_by_memory(tmp_path: Path) -> None:
    subscriber = AnySubscriber()
    for publisher in (FilePublisher(tmp_path), ShmPublisher(tmp_path)):
        for version in range(4):
            got = subscriber.fetch(publisher.publish(version, tensors(version)))
            for name, tensor in tensors(version).items():
                assert torch.equal(got[name], tensor)


def test_old_files_go_and_damage_is_noticed(tmp_path: Path) -> None:
    publisher, subscriber = FilePublisher(tmp_path), AnySubscriber()
    handles = [publisher.publish(version, tensors(version)) for version in range(3)]
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(WeightsError, match="version 0 is not at"):
        subscriber.fetch(handles[0])
    with open(handles[2].location, "r+b") as file:
        file.seek(-5, 2)
        file.write(b"x")
    with pytest.raises(WeightsError, match="damaged"):
        subscriber.fetch(handles[2])
    with pytest.raises(WeightsError, match="only go up"):
        publisher.publish(2, tensors(2))
    with pytest.raises(WeightsError, match="shm, files, ipc"):
        subscriber.fetch(replace(handles[1], backend="pigeon"))
    assert isinstance(handles[1], WeightsHandle)
