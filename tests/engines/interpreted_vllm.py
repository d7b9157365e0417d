"""`python interpreted_vllm.py ARGUMENTS`: vLLM's server with those arguments, in its own environment, where there is no
GPU, with the model runner that is made of Triton kernels. They are interpreted, which takes ten times as long.

vLLM looks whether Triton can compile for the device that it finds. This file stays the main program, so each process
that vLLM starts reads it first, and is told that it can.
"""

import os
import runpy
from types import SimpleNamespace

os.environ["TRITON_INTERPRET"] = "1"

from triton.backends import backends

backends["cpu"] = SimpleNamespace(compiler=None, driver=SimpleNamespace(is_active=lambda: True))

if __name__ == "__main__":
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=False)
else:
    from vllm.v1.sample.ops import topk_topp_sampler

    topk_topp_sampler.HAS_TRITON = False  # the one kernel that the interpreter cannot read
