"""Hugging Face folders in and out of the decoder: safetensors, one file or sharded, tied or untied.

Our layout fuses q, k, v and gate, up, and has the matrices of all experts of a layer one below the other; `PARTS` and
`EXPERT_NAMES` say of which Hugging Face tensors each of ours is made, in order.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from freerun.core import ConfigError
from freerun.core.files import atomic_folder
from freerun.models.decoder import Decoder
from freerun.models.own import OwnDecoder
from freerun.models.quantised import quantise_layers, quantised
from freerun.models.rope import inverse_frequencies
from freerun.models.shape import Backend, Shape, read_shape
from freerun.models.unwritten import MARK, is_unwritten, made_up
from freerun.models.weight_files import EXPERT_NAMES, INDEX, KNOWN_TYPES, SINGLE, read_index

PARTS = {
    "attention_norm": ["input_layernorm"],
    "qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "out": ["self_attn.o_proj"],
    "q_norm": ["self_attn.q_norm"],
    "k_norm": ["self_attn.k_norm"],
    "mlp_norm": ["post_attention_layernorm"],
    "gate_up": ["mlp.gate_proj", "mlp.up_proj"],
    "down": ["mlp.down_proj"],
}
OUTSIDE = {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
SHARD_BYTES = 5_000_000_000
_KNOWN = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_WEIGHTS = re.compile(r"\.(safetensors|bin|pt|pth|gguf|h5|msgpack|onnx|ckpt)(\.|$)")
"""Files of weights, in whatever format, and their indices."""
_LAYER = re.compile(r"layers\.(\d+)\.(\w+)\.(weight|bias)")


class Common(Protocol):
    """Where weights are that several processes have in common."""

    def __call__(self, likes: Mapping[str, Tensor], read: Callable[[str], Tensor]) -> dict[str, Tensor]:
        """All of those, which are on the meta device; `read` has each of them from the model's files."""
        ...


def load_decoder(
    folder: Path,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    backend: Backend = "auto",
    common: Common | None = None,
    bits: int = 16,
) -> Decoder:
    """The model in that folder. Nothing is initialised first: that alone takes seconds at a billion parameters.

    With `common`, its weights are there if its code is ours, and must not change. With 8 or 4 `bits`, its linear layers
    take so many a number, and do not learn.
    """
    shape = read_shape(folder, backend)
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "torch cannot use a GPU here: install a torch that is built for CUDA (see `freerun doctor`), or hide "
            "the GPU with CUDA_VISIBLE_DEVICES="
        )
    if shape.backend == "transformers":
        from freerun.models.borrowed import load_borrowed  # transformers takes seconds

        if bits < 16:
            raise ConfigError(f"train.lora.bits={bits} works with Freerun's own code for a model alone: leave it at 16")
        return load_borrowed(folder, shape, dtype, device)
    with torch.device("meta"):
        decoder = OwnDecoder(shape).to(dtype)
        sizes = {name: parameter.shape for name, parameter in decoder.named_parameters()}
        if bits < 16:
            quantise_layers(decoder, bits)
    with _weights(folder, shape, sizes, device, dtype) as wide:
        read = _narrowed(wide, bits, decoder) if bits < 16 else wide
        likes = dict(decoder.named_parameters())
        tensors = common(likes, read) if common else {name: read(name) for name in likes}
    decoder.load_state_dict(tensors, strict=False, assign=True)  # strict: a tied head has no tensor of its own
    if shape.tied:
        decoder.head.weight = decoder.embed.weight
    decoder.inv_freq = inverse_frequencies(shape).to(device)  # stays float32 whatever the weights are
    return decoder


@contextmanager
def _weights(
    folder: Path, shape: Shape, sizes: Mapping[str, torch.Size], device: str, dtype: torch.dtype
) -> Iterator[Callable[[str], Tensor]]:
    """What reads one of our tensors, of which `sizes` has the size."""
    if is_unwritten(shape):
        yield lambda name: made_up(name, sizes[name], device).to(dtype)
        return
    with _Folder(folder) as files:

        def read(name: str) -> Tensor:
            parts = [files.read(part) for part in hugging_face_names(name, shape)]
            if odd := [part.dtype for part in parts if part.dtype not in _KNOWN]:
                raise ConfigError(f"{folder}: {name} is of type {odd[0]}: give the model as it was before that")
            whole = torch.cat(parts)
            if whole.shape != sizes[name]:
                raise ConfigError(f"{folder}: {name} has shape {tuple(whole.shape)}, not {tuple(sizes[name])}")
            return whole.to(device, dtype)

        yield read


def _narrowed(wide: Callable[[str], Tensor], bits: int, decoder: Decoder) -> Callable[[str], Tensor]:
    """What reads codes and scales, a pair of them of one wide weight: codes first."""
    layers, scales = set(decoder.adaptable), dict[str, Tensor]()

    def read(name: str) -> Tensor:
        layer, _, kind = name.rpartition(".")
        if kind == "scale":
            return scales.pop(layer)
        if kind == "bias" or layer not in layers:
            return wide(name)
        codes, scales[layer] = quantised(wide(name), bits)
        return codes

    return read


def empty_decoder(shape: Shape) -> Decoder:
    """On the meta device: names and sizes, no weights."""
    if shape.backend == "transformers":
        from freerun.models.borrowed import empty_borrowed

        return empty_borrowed(shape)
    with torch.device("meta"):
        return OwnDecoder(shape)


def decoder_to_share(folder: Path, device: str = "cpu", backend: Backend = "auto") -> Decoder:
    """The model in that folder for ranks that share its weights: on the meta device, its weights nowhere yet
    (`read_rows` has them), all else of it on `device`."""
    shape = read_shape(folder, backend)
    if shape.backend == "transformers":
        from freerun.models.borrowed_shares import borrowed_to_share

        borrowed = borrowed_to_share(folder, shape)
        if pieces := borrowed.pieces:
            with _Folder(folder) as files:
                for name, tensor in borrowed.fixed().items():
                    tensor.copy_(files.read(pieces[name][0]))
        return borrowed
    with torch.device("meta"):
        decoder = OwnDecoder(shape)
    decoder.inv_freq = inverse_frequencies(shape).to(device)
    return decoder


def read_rows(folder: Path, name: str, decoder: Decoder, shape: torch.Size, rows: range) -> Tensor:
    """Some rows of one of the decoder's tensors, which has that shape; nothing else is read. The file is mapped for
    that long only, so that its pages do not add up beside what they are copied to."""
    if is_unwritten(decoder.shape):
        return made_up(name, shape, "cpu")[rows.start : rows.stop]
    names = decoder.pieces[name] if decoder.pieces else hugging_face_names(name, decoder.shape)
    with _Folder(folder) as files:
        parts = [files.open_slice(part) for part in names]
        if odd := [part.get_dtype() for part in parts if part.get_dtype() not in KNOWN_TYPES]:
            raise ConfigError(f"{folder}: {name} is of type {odd[0]}: give the model as it was before that")
        each = shape[1] if len(parts[0].get_shape()) < len(shape) else 1  # of a stack the folder has the matrices
        wanted = (shape[0] * each, *shape[1:]) if each == 1 else (shape[0] * each, *shape[2:])
        lengths = [part.get_shape()[0] for part in parts]
        found = [(sum(lengths), *part.get_shape()[1:]) for part in parts]
        if any(one != wanted for one in found):
            raise ConfigError(f"{folder}: {name} has shape {found[0]}, not {wanted}")
        pieces, start = [], 0
        for part, length in zip(parts, lengths, strict=True):
            begin, end = (min(max(at * each - start, 0), length) for at in (rows.start, rows.stop))
            pieces.append(part[begin:end])
            start += length
        return torch.cat(pieces).view(len(rows), *shape[1:])


def save_decoder(decoder: Decoder, folder: Path, like: Path | None = None) -> None:
    """As `save_tensors`."""
    tensors = {name: parameter.detach() for name, parameter in decoder.named_parameters()}
    save_tensors(tensors | decoder.fixed(), decoder.shape, folder, like)


def save_tensors(tensors: Mapping[str, Tensor], shape: Shape, folder: Path, like: Path | None = None) -> None:
    """Write an ordinary Hugging Face folder; tokenizer and templates are copied from the folder `like`.

    The folder appears complete or not at all.
    """
    dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    raw = {k: v for k, v in shape.raw.items() if k not in ("torch_dtype", "dtype", MARK)} | {"dtype": dtype}
    with atomic_folder(folder) as unfinished:
        _write_shards(dict(to_hugging_face(tensors, shape)), unfinished)
        (unfinished / "config.json").write_text(json.dumps(raw, indent=2) + "\n")
        for file in sorted(like.iterdir()) if like else []:
            if file.is_file() and file.name != "config.json" and not _WEIGHTS.search(file.name):
                shutil.copy(file, unfinished / file.name)


def hugging_face_names(name: str, shape: Shape | None = None) -> list[str]:
    """The Hugging Face tensors that one of ours is made of, in order. Without the model's shape, those of a layer's
    experts are not known."""
    if name.startswith("model."):  # transformers' code
        return [name.removeprefix("model.")]
    if inside := _LAYER.fullmatch(name):
        layer, module, kind = inside.groups()
        if module in ("router", "expert_gate_up", "expert_down"):
            assert shape
            return [f"model.layers.{layer}.{part}.{kind}" for part in _expert_parts(module, shape)]
        return [f"model.layers.{layer}.{part}.{kind}" for part in PARTS[module]]
    module, kind = name.split(".")
    return [f"{OUTSIDE[module]}.{kind}"]


def _expert_parts(module: str, shape: Shape) -> list[str]:
    assert shape.experts
    mixture, gate, up, down = EXPERT_NAMES[shape.family]
    if module == "router":
        return [f"{mixture}.gate"]
    parts = [gate, up] if module == "expert_gate_up" else [down]
    return [f"{mixture}.experts.{one}.{part}" for one in range(shape.experts.count) for part in parts]


def to_hugging_face(tensors: Mapping[str, Tensor], shape: Shape) -> Iterator[tuple[str, Tensor]]:
    """A decoder's tensors under Hugging Face's names, fused ones taken apart."""
    if shape.backend == "transformers":
        from freerun.models.borrowed import to_checkpoint

        yield from to_checkpoint(tensors, shape).items()
        return
    for name, tensor in tensors.items():
        yield from taken_apart(name, tensor, shape)


def taken_apart(name: str, tensor: Tensor, shape: Shape) -> Iterator[tuple[str, Tensor]]:
    """The rows of one of a decoder's tensors under the names that Hugging Face has them by."""
    names, module = hugging_face_names(name, shape), name.split(".")[-2]
    heads, kv_heads = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    rows = [heads, kv_heads, kv_heads] if module == "qkv" else len(tensor) // len(names)
    return zip(names, torch.split(tensor, rows), strict=True)


def _write_shards(tensors: dict[str, Tensor], folder: Path) -> None:
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if shards[-1] and size + tensor.nbytes > SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1][name] = tensor.cpu().contiguous()
        size += tensor.nbytes
    if len(shards) == 1:
        save_file(shards[0], folder / SINGLE, metadata={"format": "pt"})
        return
    where: dict[str, str] = {}
    for index, shard in enumerate(shards, start=1):
        file = f"model-{index:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        where |= dict.fromkeys(shard, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index_file = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / INDEX).write_text(json.dumps(index_file, indent=2) + "\n")


class _Folder:
    """The tensors of a folder, one file or many, opened once each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open = ExitStack()
        self._where = read_index(folder)
        if not self._where and not (folder / SINGLE).is_file():
            raise ConfigError(f"model.path: {folder} has no {SINGLE}; convert the checkpoint to safetensors")
        self._files: dict[str, Any] = {}

    def __enter__(self) -> "_Folder":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def read(self, name: str) -> Tensor:
        tensor: Tensor = self._asked(name, lambda file: file.get_tensor(name))
        return tensor

    def open_slice(self, name: str) -> Any:
        """A tensor to take rows from; what is not taken is not read."""
        return self._asked(name, lambda file: file.get_slice(name))

    def _asked(self, name: str, question: Callable[[Any], Any]) -> Any:
        """What the file that holds this tensor answers."""
        if self._where and name not in self._where:
            raise ConfigError(f"model.path: {self._folder} holds no tensor {name}; its config.json wants it")
        file = self._where.get(name, SINGLE)
        if file not in self._files:
            if not (self._folder / file).is_file():
                raise ConfigError(f"model.path: {self._folder} lacks {file}, which holds {name}")
            try:
                self._files[file] = self._open.enter_context(safe_open(self._folder / file, framework="pt"))
            except SafetensorError as error:
                raise ConfigError(
                    f"model.path: {self._folder / file} is damaged ({error}): copy or download it again"
                ) from None
        try:
            return question(self._files[file])
        except SafetensorError:
            raise ConfigError(f"model.path: {self._folder} holds no tensor {name}; its config.json wants it") from None
