"""`python launch.py ARGUMENTS`: SGLang's server with those arguments, none of whose ports is open beyond the loopback
address. It runs in SGLang's own environment and imports nothing of Freerun.

Workers meet at a store of torch's, and the one that torch makes by itself listens on every address and asks nobody for
a key. So it is made here, on a socket of ours, and torch is told that there is one.

This file stays the main program, so each process that SGLang starts reads it first, under another name, and changes
there what servers without a GPU need changed.
"""

import os
import runpy
import socket
import sys
from typing import Any

from torch._C._distributed_c10d import TCPStore

LOOPBACK = "127.0.0.1"
ROUTES = "--enable-return-routed-experts"


def main() -> None:
    listening = socket.create_server((LOOPBACK, 0))
    port = listening.getsockname()[1]
    store = TCPStore(LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())
    os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
    sys.argv += ["--nccl-port", str(port)]
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=False)
    del store  # which has lived as long as the server


def note_experts_without_a_gpu() -> None:
    """SGLang notes which experts tokens went through in memory that it pins for a GPU, whether there is one or not."""
    from sglang.srt.mem_cache.pool_host import common

    def not_pinned(dims: Any, dtype: Any, device: str, allocator: Any, **_: Any) -> Any:
        return allocator.allocate(dims, dtype=dtype, device=device)

    common.ALLOC_MEMORY_FUNCS["cpu"] = not_pinned


if __name__ == "__main__":
    main()
elif ROUTES in sys.argv and "cpu" in sys.argv:
    note_experts_without_a_gpu()
