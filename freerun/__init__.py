"""Freerun: asynchronous reinforcement learning for language models, from a laptop to a cluster."""

__version__ = "0.1.0"
