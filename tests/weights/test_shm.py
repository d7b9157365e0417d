"""Versions through shared memory: equal, complete, in order, or an error; with a real second process."""

import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from freerun.core import WeightsError
from freerun.weights.shm import ShmPublisher, ShmSubscriber


def tensors(version: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(version)
    return {
        "a": torch.randn(3, 5, generator=generator),
        "b": torch.randn(7, generator=generator).bfloat16(),
        "c": torch.randn(64, 33, generator=generator),
    }


def test_a_version_arrives_as_it_was(tmp_path: Path) -> None:
    publisher, subscriber = ShmPublisher(tmp_path), ShmSubscriber()
    for version in range(5):
        handle = publisher.publish(version, tensors(version))
        got = subscriber.fetch(handle)
        assert got.keys() == tensors(version).keys()
        for name, tensor in tensors(version).items():
            assert torch.equal(got[name], tensor)
            assert got[name].dtype == tensor.dtype


LITTLE_MEMORY = """
import sys, torch
from pathlib import Path
from freerun.core import WeightsError
from freerun.weights.shm import ShmPublisher
try:
    ShmPublisher(Path(sys.argv[1])).publish(0, {"a": torch.zeros(2**20)})
except WeightsError as error:
    print(error)
"""


def test_too_little_memory_is_said_and_kills_nobody(tmp_path: Path) -> None:
    """In a file system of 1 MiB, as containers have one of 64."""
    mounted = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    mount = f"mount -t tmpfs -o size=1m none {tmp_path}"
    if subprocess.run([*mounted, mount], capture_output=True, check=False).returncode:
        pytest.skip("needs user namespaces, or root that may mount")
    publish = [*mounted, f'{mount} && exec "$@"', "sh", sys.executable, "-c", LITTLE_MEMORY, str(tmp_path)]
    done = subprocess.run(publish, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "weights need two slots of more than" in done.stdout
    assert f"MiB in {tmp_path}, where there is less" in done.stdout


def test_a_copy_does_not_change_under_its_reader(tmp_path: Path) -> None:
    publisher = ShmPublisher(tmp_path)
    got = ShmSubscriber().fetch(publisher.publish(0, tensors(0)))
    for version in range(1, 5):
        publisher.publish(version, tensors(version))
    assert torch.equal(got["a"], tensors(0)["a"])


def test_the_previous_version_stays_and_the_one_before_is_gone(tmp_path: Path) -> None:
    publisher, subscriber = ShmPublisher(tmp_path), ShmSubscriber()
    handles = [publisher.publish(version, tensors(version)) for version in range(3)]
    assert torch.equal(subscriber.fetch(handles[1])["a"], tensors(1)["a"])
    with pytest.raises(WeightsError, match=r"version 0 is gone: .* holds version 2"):
        subscriber.fetch(handles[0])


def test_versions_only_go_up(tmp_path: Path) -> None:
    publisher = ShmPublisher(tmp_path)
    publisher.publish(3, tensors(0))
    with pytest.raises(WeightsError, match="only go up"):
        publisher.publish(3, tensors(0))


def test_damage_is_noticed(tmp_path: Path) -> None:
    handle = ShmPublisher(tmp_path).publish(0, tensors(0))
    path = Path(handle.location)
    with open(path, "r+b") as file:
        file.seek(-40, 2)
        byte = file.read(1)
        file.seek(-40, 2)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(WeightsError, match="damaged"):
        ShmSubscriber().fetch(handle)
    with open(path, "r+b") as file:  # a writer that died in the middle
        file.seek(8)
        file.write(struct.pack("<q", -1))
    with pytest.raises(WeightsError, match="incomplete"):
        ShmSubscriber().fetch(handle)
    with pytest.raises(WeightsError, match="not at"):
        ShmSubscriber().fetch(replace(handle, location=str(tmp_path / "nowhere")))


WRITER = """
import sys, torch
from pathlib import Path
from freerun.weights.shm import ShmPublisher
publisher = ShmPublisher(Path(sys.argv[1]))
for version in range(100_000):
    handle = publisher.publish(version, {"a": torch.full((200_000,), float(version))})
    print(handle.version, handle.location, handle.checksum, flush=True)
"""


def test_a_reader_beside_a_busy_writer_never_sees_half_a_version(tmp_path: Path) -> None:
    """A writer that never waits, killed with -9 at the end: what is read is whole, or refused."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    whole, refused = 0, 0
    try:
        for line, _ in zip(writer.stdout, range(150), strict=False):
            version, location, checksum = line.split()
            from freerun.core.reports import WeightsHandle

            try:
                got = ShmSubscriber().fetch(WeightsHandle("shm", int(version), location, checksum))["a"]
            except WeightsError:
                refused += 1
                continue
            assert got.min() == got.max() == int(version)
            whole += 1
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()
    assert whole + refused == 150
    assert whole > 0
