"""What vLLM's workers do for Freerun: named by `--worker-extension-cls freerun_worker.FreerunWorker`, with this folder
on PYTHONPATH. It runs in vLLM's own environment and imports nothing of Freerun.

vLLM mixes this class into its worker, so `self` is one.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from vllm.platforms import current_platform


class FreerunWorker:
    model_runner: Any

    def freerun_model(self) -> dict[str, Any]:
        """The `config.json` of the model that is served."""
        config: dict[str, Any] = self.model_runner.model_config.hf_text_config.to_dict()
        return config

    def freerun_load(self, folder: str) -> None:
        """Take the weights from a folder of Hugging Face safetensors, while nothing is sampled."""
        self.model_runner.reload_weights(weights_iterator=_tensors(Path(folder)))
        if current_platform.is_cpu():
            _pack_tied_head(self.model_runner.get_model())


def _tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"there are no safetensors in {folder}")
    for file in files:
        with safe_open(file, framework="pt") as opened:
            names: list[str] = list(opened.keys())
            yield from ((name, opened.get_tensor(name)) for name in names)


def _pack_tied_head(model: Any) -> None:
    """On CPUs linear layers compute with a packed copy of their weights. A head that is tied to the embedding gets no
    weights of its own when a model is loaded again, so nothing packs it anew, and it would go on with the old ones."""
    head, embedding = getattr(model, "lm_head", None), getattr(getattr(model, "model", None), "embed_tokens", None)
    if head is not None and embedding is not None and head is not embedding and head.weight is embedding.weight:
        head.quant_method.process_weights_after_loading(head)
