"""A server of another maker that ends: the cause that its output names, in one line."""

import sys

import pytest

from freerun.core import ProcessDied
from freerun.engines.external.base import Command
from freerun.engines.external.program import Program

TRACEBACK = "Traceback (most recent call last):\n  File 'a.py', line 3\n"
PYDANTIC = """pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig
  Value error, Model Runner V2 requires Triton. [type=value_error, input_value=ArgsKwargs((), {})]
    For further information visit https://errors.pydantic.dev/2.14/v/value_error
"""


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (TRACEBACK + "ValueError: too few heads\nbye\n", "ended with code 3: ValueError: too few heads"),
        (TRACEBACK + PYDANTIC, "ended with code 3: Model Runner V2 requires Triton."),
        (
            f"(Worker pid=7) {TRACEBACK}(Worker pid=7) torch.OutOfMemoryError: full\n"
            "RuntimeError: see root cause above\n",
            "torch.OutOfMemoryError: full",
        ),
        ("nothing to say\n", "ended with code 3"),
    ],
)
async def test_the_cause_is_in_the_line(said: str, cause: str) -> None:
    script = f"import sys; sys.stderr.write({said!r}); sys.exit(3)"
    async with Program("X", Command([sys.executable, "-c", script], {})) as program:
        with pytest.raises(ProcessDied) as died:
            await program.watch()
    assert str(died.value).startswith("the X server ")
    assert str(died.value).endswith(cause)
    assert "\n" not in str(died.value)
