"""The example of the library is short, runs with every real process, and learns."""

import os
import re
import subprocess
import sys
from pathlib import Path

from freerun.config.load import load_config
from freerun.rollouts.load import load_own

SCRIPT = Path(__file__).parents[2] / "examples" / "library" / "run.py"


def test_the_library_example_learns(tmp_path: Path) -> None:
    assert len(SCRIPT.read_text().splitlines()) < 40
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path], cwd=tmp_path, env=environment, text=True, capture_output=True, timeout=180
    )
    assert done.returncode == 0, done.stderr
    (first, last), *_ = re.findall(r"^reward ([0-9.]+) -> ([0-9.]+), ", done.stdout, re.MULTILINE)
    assert float(first) < 0.3
    assert float(last) > float(first) + 0.2
    config, _ = load_config(tmp_path / "run" / "config.yaml")
    assert load_own(config.rollout) is not None, "the run's folder names the rollout"
