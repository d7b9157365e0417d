"""What changed is all that is sent, and makes exactly the new version."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from freerun.weights.delta import Elements, apply_delta, decode, encode, write_delta
from freerun.weights.slot import MappedSlots, SlotReader, SlotWriter
from freerun.weights.tcp import TcpPublisher, TcpSubscriber, pulled_slot
from tests.weights.test_tcp import KEY, equal, folder


@st.composite
def versions(draw: st.DrawFn) -> tuple[Elements, Elements]:
    """Two of the same tensor, with changes near and far apart."""
    kind = np.dtype(f"u{draw(st.sampled_from([1, 2, 4, 8]))}")
    old = np.zeros(draw(st.integers(0, 200_000)), kind)
    places = draw(st.lists(st.integers(0, max(len(old) - 1, 0)), max_size=30)) if len(old) else []
    new = old.copy()
    new[places] = draw(st.integers(0, 256**kind.itemsize - 1))
    for start in draw(st.lists(st.integers(0, len(old)), max_size=2)):
        new[start : start + draw(st.integers(0, 500))] = 1
    return old, new


@given(versions())
@settings(max_examples=150, deadline=None)
def test_changes_make_the_new_version(pair: tuple[Elements, Elements]) -> None:
    old, new = pair
    gaps, values = encode(old, new)
    made = old.copy()
    decode(gaps, values, made)
    assert np.array_equal(made, new)
    changed = int((old != new).sum())
    assert (gaps.nbytes > 0) == (changed > 0)
    assert gaps.nbytes + values.nbytes <= changed * (4 + new.itemsize), "never worse than plain places"


def weights(seed: int, changes: int = 0, dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    """Those of a seed, with some elements of one tensor changed, among them a zero's sign."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        "a": torch.randn(1000, 300, generator=generator).to(dtype),
        "same": torch.randn(5000, generator=generator).to(dtype),
        "scalar": torch.zeros((), dtype=dtype),
    }
    places = torch.randint(300_000, (changes,), generator=generator)
    tensors["a"].view(-1)[places] += 1
    if changes:
        tensors["scalar"] *= -1
    return tensors


def test_a_delta_is_a_slot_and_is_checked(tmp_path: Path) -> None:
    slots = [SlotWriter(tmp_path / name) for name in ("before", "now", "delta", "other")]
    before, now, delta, other = (slot.path for slot in slots)
    slots[0].write(4, weights(0).items())
    slots[1].write(5, weights(0, 3000).items())
    assert write_delta(before, now, slots[2])
    assert delta.stat().st_size < 0.05 * now.stat().st_size
    header = SlotReader(delta).header()
    content = SlotReader(delta).content(5, header.hex)
    apply_delta(content, before, tmp_path / "made", MappedSlots())
    assert (tmp_path / "made").read_bytes() == now.read_bytes()
    slots[3].write(4, weights(1).items())
    with pytest.raises(Exception, match="changes version 4, which is not here"):
        apply_delta(content, other, tmp_path / "made", MappedSlots())
    slots[1].write(6, weights(2).items())
    assert not write_delta(before, now, slots[2]), "nearly everything changed"
    slots[1].write(7, {"a": torch.zeros(3)}.items())
    assert not write_delta(before, now, slots[2]), "other tensors"


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[TcpPublisher]:
    made = TcpPublisher(folder(tmp_path / "trainer"), "127.0.0.1", KEY, dtype=torch.bfloat16, deltas=True)
    yield made
    made.server.close()


def test_only_what_changed_travels(publisher: TcpPublisher, tmp_path: Path) -> None:
    """And the whole to a late one, and to one that missed a version."""
    steady, sleepy = (TcpSubscriber(folder(tmp_path / name), KEY) for name in ("steady", "sleepy"))
    whole = sum(tensor.nbytes for tensor in weights(0).values())
    received = []
    for version in range(4):
        published = weights(0, 1000 * version, torch.float32)
        handle = publisher.publish(version, published)
        wanted = {name: tensor.bfloat16() for name, tensor in published.items()}
        assert equal(steady.fetch(handle), wanted)
        received.append(steady.received_bytes)
        if version != 1:
            assert equal(sleepy.fetch(handle), wanted)
            assert (sleepy.received_bytes > whole) == (version < 3)
    assert received[0] > whole
    assert max(received[1:]) < 0.1 * whole


def test_the_whole_is_taken_where_the_delta_is_wrong(publisher: TcpPublisher, tmp_path: Path) -> None:
    subscriber = TcpSubscriber(folder(tmp_path / "engine"), KEY)
    handle = publisher.publish(0, weights(0))
    subscriber.fetch(handle)
    with open(
        pulled_slot(tmp_path / "engine", handle.location), "r+b"
    ) as slot:  # what is here of the version before is not what it says
        slot.seek(1000)
        slot.write(b"damage")
    handle = publisher.publish(1, weights(0, 100))
    assert equal(subscriber.fetch(handle), weights(0, 100))
    assert subscriber.received_bytes > sum(tensor.nbytes for tensor in weights(0).values())
