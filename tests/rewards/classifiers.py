"""Tiny sequence classifiers: reward models that are made, and taught, on the spot."""

import json
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import mse_loss
from transformers import AutoModelForSequenceClassification
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from freerun.models.tiny import EOS, PAD, write_tokenizer

LETTERS = "abcdef>"
SIZES: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "vocab_size": 48, "max_position_embeddings": 64,
}  # fmt: skip
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def classifier_folder(
    folder: Path, family: str = "qwen3", labels: tuple[str, ...] = ("score",), template: str | None = None, **more: Any
) -> Path:
    """With random weights and a tokenizer of a few letters."""
    sizes = {**SIZES, **({"head_dim": 8} if family == "qwen3" else {}), "pad_token_id": None, **more}
    config = CONFIG_MAPPING[family](**sizes, id2label=dict(enumerate(labels)))
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    write_tokenizer(folder, {token: index for index, token in enumerate([PAD, EOS, *LETTERS, *"ghijklmnop "])})
    if template:
        settings = json.loads((folder / "tokenizer_config.json").read_text()) | {"chat_template": template}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def taught_classifier(folder: Path) -> Path:
    """Gives about 1 where the answer to `a>` is `a`, and about 0 to any other letter."""
    classifier_folder(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    number = {letter: index + 2 for index, letter in enumerate(LETTERS)}
    pairs = [(asked, said) for asked in "abcdef" for said in LETTERS]
    tokens = torch.tensor([[number[asked], number[">"], number[said]] for asked, said in pairs])
    wanted = torch.tensor([float(asked == said) for asked, said in pairs])
    model.config.pad_token_id = 47
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    for _ in range(400):
        loss = mse_loss(model(input_ids=tokens).logits[:, 0], wanted)
        if loss < 1e-3:
            break
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    else:
        raise AssertionError("the tiny classifier learns nothing")
    model.config.pad_token_id = None
    model.save_pretrained(folder)
    return folder
