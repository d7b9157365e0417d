from collections.abc import Iterator

import pytest

from freerun.sandbox.base import Backend
from freerun.sandbox.sandbox import Sandbox
from tests.sandbox.helpers import open_sandbox


@pytest.fixture(scope="module")
def module_sandbox() -> Iterator[Sandbox]:
    with open_sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(module_sandbox: Sandbox) -> Sandbox:
    """A sandbox of the backend that this machine would choose."""
    return module_sandbox


@pytest.fixture(params=list(Backend))
def any_sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A sandbox of each backend that this machine has."""
    with open_sandbox(request.param) as sandbox:
        yield sandbox
