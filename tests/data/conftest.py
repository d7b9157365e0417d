import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "<s> {{ m.role }} : {{ m.content }} "
    "{% endfor %}"
    "{% if add_generation_prompt %}<s> assistant :{% endif %}"
)


def build_tokenizer(chat_template: str | None) -> Any:
    """Words to numbers; plain text starts with <s>, which the chat template writes itself."""
    words = ["<unk>", "<s>", "user", "assistant", "system", ":", "1", "+", "what", "is", "hello"]
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", bos_token="<s>")
    tokenizer.chat_template = chat_template
    return tokenizer


@pytest.fixture(scope="session")
def plain() -> Any:
    return build_tokenizer(None)


@pytest.fixture(scope="session")
def chatty() -> Any:
    return build_tokenizer(TEMPLATE)


@pytest.fixture
def jsonl(tmp_path: Path) -> Callable[..., str]:
    def write(*rows: dict[str, Any], name: str = "tasks.jsonl") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return write
