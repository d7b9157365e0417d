"""Tiny models that were taught what to say to a few prompts, in a second or two."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from freerun.models.attention import PackedAttention
from freerun.models.checkpoint import load_decoder, save_decoder
from freerun.models.decoder import Decoder
from freerun.models.tiny import make_model
from freerun.models.tokenizer import load_tokenizer

CHARACTERS = "".join(map(chr, range(32, 127))) + "\n"


def taught_folder(folder: Path, template: str, lessons: Mapping[str, str]) -> Path:
    """A model that answers these prompts with these texts, at temperature 0, and ends there."""
    make_model(folder, CHARACTERS, seed=0)
    settings = json.loads((folder / "tokenizer_config.json").read_text()) | {"chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer, decoder = load_tokenizer(folder), load_decoder(folder)
    rows = [(tokenizer.encode(prompt), tokenizer.encode(answer)) for prompt, answer in lessons.items()]
    sequences = [[*prompt, *answer, tokenizer.eos_token_id] for prompt, answer in rows]
    tokens = torch.tensor([token for sequence in sequences for token in sequence])
    positions = torch.cat([torch.arange(len(sequence)) for sequence in sequences])
    is_answer = torch.cat([torch.arange(len(s)) >= len(row[0]) for s, row in zip(sequences, rows, strict=True)])[1:]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for work this small, a second one costs more than it does
    try:
        _teach(decoder, tokens, positions, [len(sequence) for sequence in sequences], is_answer)
    finally:
        torch.set_num_threads(threads)
    save_decoder(decoder, folder, like=folder)
    return folder


def _teach(decoder: Decoder, tokens: Tensor, positions: Tensor, lengths: list[int], is_answer: Tensor) -> None:
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=5e-3, weight_decay=0.0)
    for _ in range(400):
        hidden = decoder(tokens, positions, PackedAttention(lengths))
        losses = cross_entropy(decoder.logits(hidden[:-1][is_answer]), tokens[1:][is_answer], reduction="none")
        if losses.max() < 0.1:
            return
        optimizer.zero_grad()
        torch.autograd.backward(losses.mean())
        optimizer.step()
    raise AssertionError("the tiny model learns nothing")
