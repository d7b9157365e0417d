"""A process for nodes to run: says where it is, and does what its kind says."""

import os
import sys
import time

from freerun.core import ConfigError
from freerun.machine.parent import RUN_KEY, announce_ready, announce_refusal, end_with_parent

if __name__ == "__main__":
    end_with_parent()
    kind = sys.argv[1]
    print(f"began as {kind}", flush=True)
    if kind == "refuses":
        announce_refusal(ConfigError("train.lr: is too high"))
        sys.exit(1)
    announce_ready(f"{os.getpid()} {os.environ[RUN_KEY]}")
    if kind == "fails":
        raise ValueError("the cause")
    time.sleep(600)
