"""The same weights in transformers, to be measured against."""

import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from freerun.models.checkpoint import save_decoder
from freerun.models.decoder import Decoder


def generate_time(decoder: Decoder, batch: int, prompt: int, tokens: int) -> tuple[float, float]:
    """Seconds to the first token and to the last of `generate`, for a batch of random prompts, sampling."""
    model = _load(decoder)
    device = decoder.embed.weight.device
    inputs = torch.randint(2, decoder.shape.vocab_size, (batch, prompt), device=device)

    def run(count: int) -> float:
        start_s = time.monotonic()
        with torch.inference_mode():
            model.generate(inputs, min_new_tokens=count, max_new_tokens=count, do_sample=True, top_k=0, pad_token_id=0)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.monotonic() - start_s

    run(4)
    return run(1), run(tokens)


def _load(decoder: Decoder) -> Any:
    from transformers import AutoModelForCausalLM

    weight = decoder.embed.weight
    with tempfile.TemporaryDirectory() as folder:
        save_decoder(decoder, Path(folder) / "model")
        return AutoModelForCausalLM.from_pretrained(Path(folder) / "model", dtype=weight.dtype).to(weight.device)
