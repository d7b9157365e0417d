"""Model folders that cannot be used, as transformers and peft write them: each command says it in one line that names
the fix, and starts nothing."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from freerun.models.tiny import EOS, PAD, write_tokenizer
from freerun.models.weight_files import SINGLE
from tests.architectures import random_folder
from tests.models.test_remote_code import RAN, remote_folder
from tests.typed import freerun

VOCABULARY = {token: index for index, token in enumerate([PAD, EOS, *"abcdefgh>"])}
TEMPLATE = "{% for message in messages %}{{ message['content'] }}>{% endfor %}"
LOST = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, data, a run's file, and a run that has learned a step."""
    root = tmp_path_factory.mktemp("good")
    with_tokenizer(random_folder("qwen3", root / "model"))
    rows = [{"prompt": [{"role": "user", "content": letter}], "answer": letter} for letter in "abcdefgh"]
    pairs = [{"prompt": row["prompt"], "chosen": row["answer"], "rejected": "h"} for row in rows]
    for name, content in (("train", rows), ("pairs", pairs)):
        (root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content))
    run = {
        **{"name": "run", "runs": str(root / "runs"), "model": {"path": str(root / "model")}},
        **{"data": {"source": str(root / "train.jsonl"), "max_prompt_tokens": 8}, "reward": {"judge": "exact"}},
        **{"rollout": {"max_new_tokens": 4, "group_size": 2}, "control": {"steps": 1, "groups_per_step": 4}},
    }
    (root / "run.yaml").write_text(json.dumps(run))
    done = freerun("sft", root / "run.yaml")
    assert done.returncode == 0, done.stderr
    return root


def with_tokenizer(folder: Path, template: str | None = TEMPLATE, **more: int) -> Path:
    write_tokenizer(folder, VOCABULARY | more, template)
    return folder


def told(good: Path, command: str, model: Path) -> str:
    """The one line with which that command refuses the model."""
    before = sorted(good.rglob("*"))
    if command == "export":
        run = model.parent / "run"
        shutil.copytree(good / "runs" / "run", run)
        config = run / "config.yaml"
        config.write_text(config.read_text().replace(f"{good / 'model'}", str(model)))
        done = freerun("export", run, model.parent / "out")
        assert not (model.parent / "out").exists()
    elif command.startswith("serve"):
        done = freerun(*command.split(), model, "--port", "0")
    else:
        source = good / ("pairs.jsonl" if command == "dpo" else "train.jsonl")
        settings = (f"model.path={model}", f"data.source={source}", "name=other")
        name, *options = command.split()
        done = freerun(name, good / "run.yaml", *settings, *options)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert done.stderr.startswith("freerun: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert sorted(good.rglob("*")) == before, "something was started"
    return done.stderr


RUNS = ("train", "train --dry-run", "sft", "dpo")
SERVES = ("serve", "serve --score")


def configured(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def changed(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    tensors: dict[str, Any] = load_file(folder / SINGLE)
    change(tensors)
    save_file(tensors, folder / SINGLE, {"format": "pt"})


def unknown(folder: Path) -> None:
    configured(folder, model_type="gpt9", architectures=["Gpt9ForCausalLM"])


def lacking(folder: Path) -> None:
    changed(folder, lambda tensors: tensors.pop(LOST))


def borrowed_and_lacking(folder: Path) -> None:
    shutil.rmtree(folder)
    with_tokenizer(random_folder("gemma2", folder))
    lacking(folder)


def cut(folder: Path) -> None:
    changed(folder, lambda tensors: tensors.update({LOST: tensors[LOST][:-1].contiguous()}))


def classifying(folder: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    model.save_pretrained(folder)


def adapted(folder: Path) -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder)
    return get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"]))


def adapter_alone(folder: Path) -> None:
    model = adapted(folder)
    shutil.rmtree(folder)
    model.save_pretrained(folder)


def adapter_beside_a_configuration(folder: Path) -> None:
    adapted(folder).save_pretrained(folder)
    (folder / SINGLE).unlink()


def adapter_inside(folder: Path) -> None:
    save_file(dict(adapted(folder).base_model.model.state_dict()), folder / SINGLE, {"format": "pt"})


def quantised(folder: Path) -> None:
    configured(folder, quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})


def quantised_without_a_word(folder: Path) -> None:
    packed = torch.zeros(6, 32, dtype=torch.int32)
    changed(folder, lambda tensors: tensors.update({LOST.replace(".weight", ".qweight"): packed}) or tensors.pop(LOST))


def in_8_bits(folder: Path) -> None:
    changed(folder, lambda tensors: tensors.update({LOST: tensors[LOST].to(torch.float8_e4m3fn)}))


def pickled(folder: Path) -> None:
    torch.save(load_file(folder / SINGLE), folder / "pytorch_model.bin")
    (folder / SINGLE).unlink()


def of_another_format(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "model.gguf").write_bytes(b"GGUF")


def remote(folder: Path) -> None:
    shutil.rmtree(folder)
    with_tokenizer(remote_folder(folder))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (unknown, "model_type 'gpt9' is not known, neither to Freerun nor to transformers: take another model"),
        (remote, "set model.trust_remote_code=true if you trust it (--trust-remote-code of `freerun serve`)"),
        (lacking, f"holds no tensor {LOST}, which its config.json asks for: copy or download it again"),
        (borrowed_and_lacking, f"holds no tensor {LOST}, which its config.json asks for: copy or download it again"),
        (cut, f"{LOST} has shape [31, 48], and config.json asks for [32, 48]: they are of two models"),
        (classifying, "it is a Qwen3ForSequenceClassification, which writes no text; give a language model"),
        (adapter_alone, "holds an adapter alone: merge it into "),
        (adapter_beside_a_configuration, "holds an adapter alone: merge it into "),
        (adapter_inside, "it has an adapter inside; merge that by peft's merge_and_unload"),
        (quantised, "quantization_config is not supported; give the model as it was before quantisation"),
        (quantised_without_a_word, "its weights are quantised; give the model as it was before quantisation"),
        (in_8_bits, f"{LOST} is of type F8_E4M3, and must be one of F32, BF16, F16, F64: give the model as it was"),
        (pickled, "has no model.safetensors (it has pytorch_model.bin): give a folder with the weights as safetensors"),
        (of_another_format, "has no config.json (it has model.gguf): give a Hugging Face model folder"),
    ],
)
def test_every_command_says_it_in_a_line(good: Path, spoil: Callable[[Path], None], says: str, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(good / "model", model)
    spoil(model)
    for command in (*RUNS, *SERVES, "export"):
        assert says in told(good, command, model), command


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (
            None,
            "its prompt is a list of messages, but the tokenizer has no chat template: give it as text, or",
        ),
        ("{% for m in messages %}", "Jinja was looking for the following tags: 'endfor'"),
        (
            "{{ messages[0].content + 1 }}",
            '(can only concatenate str (not "int") to str): correct one of them, or set ',
        ),
        ("{{ raise_exception('no users here') }}", "chat template refuses the prompt (no users here): correct one of"),
    ],
)
def test_chat_templates(good: Path, template: str | None, says: str, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(good / "model", model)
    with_tokenizer(model, template)
    for command in RUNS:
        assert says in told(good, command, model), command


def test_a_tokenizer_of_another_model(good: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(good / "model", model)
    with_tokenizer(model, TEMPLATE, **{letter: 60 + place for place, letter in enumerate("ijkl")})
    for command in (*RUNS, *SERVES):
        assert "has tokens up to number 63, and the model 48 by its config.json: they are of two models" in told(
            good, command, model
        )
    assert "its tokenizer knows other tokens" in told(good, "export", model)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (model / file).unlink()
    shutil.rmtree(tmp_path / "run")
    for command in (*RUNS, *SERVES, "export"):
        assert "has no tokenizer.json; copy the model's tokenizer files there" in told(good, command, model)


def test_code_of_the_folder_is_served_where_it_is_trusted(good: Path, tmp_path: Path) -> None:
    """As far as to its tokenizer, which is another model's."""
    model = remote_folder(tmp_path / "model")
    write_tokenizer(model, VOCABULARY | {"i": 60}, TEMPLATE)
    for command in SERVES:
        assert "--trust-remote-code" in told(good, command, model)
        assert not (model / RAN).exists()
    for command in SERVES:
        assert "has tokens up to number 60" in told(good, f"{command} --trust-remote-code", model)
        assert (model / RAN).exists()


def test_weights_that_nobody_asked_for_are_named(good: Path, tmp_path: Path) -> None:
    """Not those that are written twice, or that older versions of transformers wrote."""
    model = tmp_path / "model"
    shutil.copytree(good / "model", model)
    configured(model, tie_word_embeddings=True)
    for name, added in (("usual", "model.layers.0.self_attn.rotary_emb.inv_freq"), ("odd", "eye")):
        changed(model, lambda tensors, added=added: tensors.update({added: torch.ones(4)}))  # type: ignore[misc]
        done = freerun("sft", good / "run.yaml", f"model.path={model}", f"runs={tmp_path}", f"name={name}")
        assert done.returncode == 0, done.stderr
        notes = tmp_path / name / "notes.jsonl"
        says = f"eye of {model} will not be used: its config.json describes a model without"
        assert (notes.is_file() and says in notes.read_text()) is (name == "odd")
    dry = freerun("train", good / "run.yaml", "--dry-run", f"model.path={model}")
    assert "3 tensor(s) of them are not used" in dry.stdout
