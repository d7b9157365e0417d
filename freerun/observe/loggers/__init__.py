"""Loggers: what a run shows goes to Weights & Biases, TensorBoard, trackio, MLflow, Prometheus or OpenTelemetry, too.

Each is one file, the only one that imports its library, and runs in a process of its own (`child.py`), which the
controller feeds without ever waiting for it (`apart.py`). A logger that fails or hangs costs the run a note.
"""
