"""One thread a process: the models are tiny, and the machine's cores are for the processes under test."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"

import torch

torch.set_num_threads(1)
