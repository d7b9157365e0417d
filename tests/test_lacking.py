"""The line at the end of the tests."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.lacking import lacks

TESTS = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_skipped(number): pytest.skip("judging code needs bubblewrap (without it: nothing): apt install bubblewrap")

def test_run(): pass
"""


def test_it_counts_by_what_is_lacking() -> None:
    tests = Counter({"needs a GPU": 2, "needs kernel headers: apt install linux-libc-dev": 1, "not on a Sunday": 1})
    assert lacks(tests, Counter({"needs a GPU": 3})) == (
        "not run here, for lack of: a GPU (2 tests and 3 files); "
        "kernel headers, which `apt install linux-libc-dev` brings (1 test); not on a Sunday (1 test)"
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_one_line_whoever_runs_the_tests(workers: int, tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_none.py").write_text("import pytest\npytest.skip('needs a GPU', allow_module_level=True)")
    options = [
        "-p",
        "xdist",
        "-p",
        "tests.lacking",
        "-p",
        "no:cacheprovider",
        f"--rootdir={tmp_path}",
        "-n",
        str(workers),
    ]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # others take seconds to be imported
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    line = "not run here, for lack of: bubblewrap, which `apt install bubblewrap` brings (3 tests); a GPU (1 file)"
    assert line in ran.stdout.splitlines()
