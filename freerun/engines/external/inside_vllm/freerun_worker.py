"""What vLLM's workers do for Freerun: named by `--worker-extension-cls freerun_worker.FreerunWorker`, with this folder
on PYTHONPATH. It runs in vLLM's own environment and imports nothing of Freerun.

vLLM mixes this class into its worker, so `self` is one. It has two model runners: the first one's sampler keeps top-k
and top-p in a part of its own, and only the second one can tell which experts tokens went through.
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
        """Called before all else. The `config.json` of the model that is served."""
        sampler = self.model_runner.sampler
        if hasattr(sampler, "topk_topp_sampler"):
            if current_platform.is_cpu():
                _let_seeds_and_pieces_of_prompts_meet(self.model_runner)
            _note_logprobs_before_truncation(sampler.topk_topp_sampler)
        else:
            _note_logits_before_truncation(sampler)
        config: dict[str, Any] = self.model_runner.model_config.hf_text_config.to_dict()
        return config

    def freerun_load(self, folder: str) -> None:
        """Take the weights from a folder of Hugging Face safetensors, while nothing is sampled."""
        model = self.model_runner.get_model()
        if current_platform.is_cpu():
            _pack_experts_again(model)
        self.model_runner.reload_weights(weights_iterator=_tensors(Path(folder)))
        if current_platform.is_cpu():
            _pack_tied_head(model)


def _tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"there are no safetensors in {folder}")
    for file in files:
        with safe_open(file, framework="pt") as opened:
            names: list[str] = list(opened.keys())
            yield from ((name, opened.get_tensor(name)) for name in names)


def _pack_experts_again(model: Any) -> None:
    """On CPUs experts compute with packed weights, too. vLLM packs them where it sets up the kernel, and does so once:
    weights that come later would be read as if they were packed. Without a kernel, it sets up one again."""
    for layer in model.modules():
        method: Any = getattr(layer, "quant_method", None)
        if hasattr(method, "moe_kernel"):
            method.moe_kernel = None


def _pack_tied_head(model: Any) -> None:
    """On CPUs linear layers compute with a packed copy of their weights. A head that is tied to the embedding gets no
    weights of its own when a model is loaded again, so nothing packs it anew, and it would go on with the old ones."""
    head, embedding = getattr(model, "lm_head", None), getattr(getattr(model, "model", None), "embed_tokens", None)
    if head is not None and embedding is not None and head is not embedding and head.weight is embedding.weight:
        head.quant_method.process_weights_after_loading(head)


def _note_logprobs_before_truncation(sampler: Any) -> None:
    """vLLM's processed log-probabilities are among the tokens that top-k and top-p leave; a trainer's are among all."""
    if getattr(sampler, "changed_by_freerun", False):
        return
    sample = sampler.forward

    def forward(logits: torch.Tensor, generators: Any, k: Any, p: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        if k is None and p is None:
            sampled, logprobs = sample(logits, generators, k, p)
        else:
            logprobs = logits.log_softmax(dim=-1, dtype=torch.float32)  # before `sample`, which may change the logits
            sampled, _ = sample(logits, generators, k, p)
        return sampled, logprobs

    sampler.forward, sampler.changed_by_freerun = forward, True


def _note_logits_before_truncation(sampler: Any) -> None:
    """The same for the second model runner, which makes log-probabilities of the logits that its sampler returns."""
    if getattr(sampler, "changed_by_freerun", False):
        return
    sample = sampler._sample_random

    def sample_random(
        logits: torch.Tensor, rows: Any, rows_np: Any, positions: Any, k: Any, p: Any, fused: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        whole = logits if k is None and p is None else logits.clone()  # which `sample` may change
        sampled, _ = sample(logits, rows, rows_np, positions, k, p, fused)
        return sampled, whole

    sampler._sample_random, sampler.changed_by_freerun = sample_random, True


def _let_seeds_and_pieces_of_prompts_meet(runner: Any) -> None:
    """A prompt that is read in several pieces draws a token with each, and all but the last are thrown away. vLLM then
    turns the generator of a request with a seed back by one draw, which those of CPUs cannot do: the server would end.
    Here the draw stays, so a seed gives the same answer where the prompt is read in the same pieces."""
    if getattr(runner, "changed_by_freerun", False):
        return
    keep_books = runner._bookkeeping_sync

    def without_those_of_pieces(*args: Any, **kwargs: Any) -> Any:
        batch = runner.input_batch
        pieces = runner.discard_request_mask.np[: batch.num_reqs].nonzero()[0].tolist()
        taken = {index: batch.generators.pop(index) for index in pieces if index in batch.generators}
        try:
            return keep_books(*args, **kwargs)
        finally:
            batch.generators.update(taken)

    runner._bookkeeping_sync, runner.changed_by_freerun = without_those_of_pieces, True
