"""Plain values survive the way from one process to the other."""

import json
from collections import deque
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from freerun.sandbox.inside import codec

NUMBERS = st.integers() | st.floats(allow_nan=False) | st.complex_numbers(allow_nan=False) | st.fractions()
ATOMS = st.none() | st.booleans() | st.text() | st.binary() | NUMBERS | st.decimals(allow_nan=False)


@given(
    st.recursive(
        ATOMS,
        lambda inner: st.one_of(
            *(st.lists(inner).map(kind) for kind in (list, tuple, deque)), st.dictionaries(ATOMS, inner)
        ),
        max_leaves=10,
    )
    | st.sets(ATOMS)
    | st.frozensets(ATOMS)
    | st.just(range(1, 9, 2))
)
def test_plain_values_arrive_unchanged(value: Any) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError

    packed = codec.Packer(refuse).pack(value)
    arrived = codec.Unpacker(refuse).unpack(json.loads(json.dumps(packed)))
    assert arrived == value
    assert type(arrived) is type(value)
