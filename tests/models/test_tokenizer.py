"""The tokenizer of a folder is the one that transformers finds, and that of the folder's model."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from freerun.core import ConfigError
from freerun.models.bpe import write_bpe_tokenizer
from freerun.models.tiny import make_model
from freerun.models.tokenizer import load_tokenizer, refuse_of_another_model

TEXTS = ["ab", "<|im_start|>user\nab ab<|im_end|>", "a  b\n\n", "ü 🙂 ab"]
ADDED: dict[str, Any] = {"add_bos_token": True, "model_max_length": 77, "additional_special_tokens": ["<tool>"]}


@pytest.mark.parametrize("settings", [{}, ADDED, {"tokenizer_class": "TokenizersBackend"}])
def test_it_is_the_one_that_transformers_finds(settings: dict[str, Any], tmp_path: Path) -> None:
    write_bpe_tokenizer(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    ours, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert type(ours) is type(theirs)
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.special_tokens_map == theirs.special_tokens_map
    assert ours.chat_template == theirs.chat_template
    assert ours.model_max_length == theirs.model_max_length
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text)
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text))


def test_where_the_folder_names_the_plain_class_no_torch_is_imported(tmp_path: Path) -> None:
    make_model(tmp_path, "ab", seed=0)
    ours = (
        "import sys; from pathlib import Path; from freerun.models.tokenizer import load_tokenizer; "
        f"assert load_tokenizer(Path({str(tmp_path)!r})).encode('ab') == [2, 3]; sys.exit('torch' in sys.modules)"
    )
    theirs = "import sys; from transformers import PreTrainedTokenizerFast; sys.exit('torch' in sys.modules)"
    if subprocess.run([sys.executable, "-c", theirs], check=False).returncode:
        pytest.skip("needs a newer transformers: pip install -U transformers")
    subprocess.run([sys.executable, "-c", ours], check=True)


def test_one_of_another_model_is_refused(tmp_path: Path) -> None:
    make_model(tmp_path, "abcdef", seed=0, marks=("<user>",))
    tokenizer = load_tokenizer(tmp_path)
    refuse_of_another_model(tokenizer, tmp_path, 9)
    tokenizer.add_tokens(["<never written>"])
    refuse_of_another_model(tokenizer, tmp_path, 9)
    with pytest.raises(ConfigError, match="has tokens up to number 8, and the model 8 by"):
        refuse_of_another_model(tokenizer, tmp_path, 8)
