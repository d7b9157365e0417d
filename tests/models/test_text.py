"""Text by table is the tokenizer's own, whatever the tokens."""

import random
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from freerun.models.text import ByteTable, text_decoder
from freerun.models.tiny import make_model
from freerun.models.tokenizer import load_tokenizer

TEXT = ["naïve café 日本語 🙂🙃 ½ — so it goes", "def f(x):\n\treturn x ** 2  # ☃", "\x00\x7f\r\n ÿ Ā"]


def byte_level() -> Any:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        TEXT, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    )
    backend.add_special_tokens([AddedToken("<|end|>", special=True)])
    backend.add_tokens([AddedToken("<think>", special=False), AddedToken("é—", special=False), AddedToken("naïve")])
    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False)


TOKENIZER = byte_level()
TABLE = text_decoder(TOKENIZER)


@given(st.lists(st.integers(0, len(TOKENIZER) + 2), max_size=60), st.booleans())
def test_by_table_it_is_the_same_text(tokens: list[int], skip: bool) -> None:
    """Halves of characters and tokens that there are not included."""
    assert isinstance(TABLE, ByteTable)
    assert TABLE.decode(tokens, skip_special_tokens=skip) == TOKENIZER.decode(tokens, skip_special_tokens=skip)


def test_every_token_alone_and_a_long_answer() -> None:
    for token in range(len(TOKENIZER)):
        assert TABLE.decode([token]) == TOKENIZER.decode([token])
    dice = random.Random(0)
    tokens = [dice.randrange(len(TOKENIZER)) for _ in range(20_000)]
    assert TABLE.decode(tokens) == TOKENIZER.decode(tokens)


def test_other_tokenizers_decode_for_themselves(tmp_path: Path) -> None:
    make_model(tmp_path, "ab", seed=0)
    tokenizer = load_tokenizer(tmp_path)
    assert text_decoder(tokenizer) is tokenizer
    cleaned = byte_level()
    cleaned.clean_up_tokenization_spaces = True
    assert text_decoder(cleaned) is cleaned
