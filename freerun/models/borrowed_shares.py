"""A borrowed decoder for ranks that share its weights: it has none at first, and knows where in the model's folder the
rows of each are.

transformers renames and stacks what it reads from a folder, by rules of its own for each architecture. What they amount
to is found out by undoing them on small tensors, each of whose numbers is another: the numbers say which piece of a
folder is which part of which tensor. Where pieces lie one below the other, as nearly always, they are known that way,
experts that a folder has one by one included. Of anything else the model is loaded whole, by every rank.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from freerun.models.borrowed import BorrowedDecoder, load_borrowed, made_borrowed, to_checkpoint
from freerun.models.shape import Shape
from freerun.models.weight_files import stored_tensors

Pieces = dict[str, list[str]]
"""For each of a decoder's tensors those of the folder that it is made of, one below the other."""
_WIDTHS = (12, 5, 3)
"""The sizes of the small tensors behind their rows: the first can be cut in two, three or four."""


def borrowed_to_share(folder: Path, shape: Shape) -> BorrowedDecoder:
    """Its parameters are on the meta device, and `pieces` says where their rows are. Or all of it is there, and a note
    says why."""
    decoder = _hollow(shape)
    tensors = dict(decoder.named_parameters()) | decoder.fixed()
    pieces = find_pieces(tensors, shape)
    if odd := next(iter(_not_in_pieces(tensors, pieces, folder)), None):
        decoder = load_borrowed(folder, shape, torch.float32, "cpu")
        decoder.notes.append(
            f"each rank loads the whole {shape.family} model before it keeps its share: its folder has "
            f"{odd.removeprefix('model.')} in a form that cannot be read row by row"
        )
        return decoder
    decoder.pieces = pieces
    return decoder


def _hollow(shape: Shape) -> BorrowedDecoder:
    """Buffers that no folder has, such as the frequencies of rotations, are as the architecture computes them. A
    parameter takes no memory: none is written to before it is on the meta device."""
    hook = register_module_parameter_registration_hook(cast(Any, _without_numbers))
    try:
        with torch.random.fork_rng(devices=[]):
            return made_borrowed(shape)
    finally:
        hook.remove()


def _without_numbers(module: nn.Module, name: str, parameter: Any) -> nn.Parameter | None:
    if not isinstance(parameter, nn.Parameter) or parameter.is_meta:  # a tied one comes twice
        return None
    return nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)


def find_pieces(tensors: Mapping[str, Tensor], shape: Shape) -> Pieces:
    """Those of which it can be said."""
    small, names, starts, end = dict[str, Tensor](), list[str](), list[int](), 0
    for name, tensor in tensors.items():
        size = (*tensor.shape[:1], *_WIDTHS[: max(tensor.dim() - 1, 0)])
        small[name] = torch.arange(end, end + prod(size)).view(size)
        names.append(name)
        starts.append(end)
        end += prod(size)
    found: dict[str, list[tuple[int, str, Tensor]]] = {}
    for piece, numbers in _undone(small, shape).items():
        first = int(numbers.flatten()[0])
        found.setdefault(names[bisect_right(starts, first) - 1], []).append((first, piece, numbers))
    return {name: [piece for _, piece, _ in parts] for name, parts in found.items() if _below(small[name], parts)}


def _undone(small: Mapping[str, Tensor], shape: Shape) -> dict[str, Tensor]:
    """Nothing, where rules go by the sizes of a model."""
    try:
        return to_checkpoint(small, shape)
    except (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError):
        return {}


def _below(whole: Tensor, parts: list[tuple[int, str, Tensor]]) -> bool:
    """Whether it is these parts, in the order of their first numbers, one below the other: with the matrices of a stack
    one below the other, too."""
    parts.sort()
    pieces = [numbers for _, _, numbers in parts]
    if pieces[0].dim() == whole.dim() - 1:
        whole = whole.flatten(0, 1)
    if whole.dim() == 0:
        return len(pieces) == 1 and torch.equal(pieces[0], whole)
    fits = all(numbers.dim() == whole.dim() and numbers.shape[1:] == whole.shape[1:] for numbers in pieces)
    return fits and torch.equal(torch.cat(pieces), whole)


def _not_in_pieces(tensors: Mapping[str, Tensor], pieces: Pieces, folder: Path) -> Iterator[str]:
    """Those whose pieces are not known, or not in the folder, or of other sizes."""
    stored = stored_tensors(folder)
    for name, tensor in tensors.items():
        shapes = [stored[piece].shape for piece in pieces.get(name, ()) if piece in stored]
        known = bool(shapes) and len(shapes) == len(pieces[name]) and (tensor.dim() > 1 or len(shapes) == 1)
        widths = {shape[1:] for shape in shapes}
        fit = widths <= {tuple(tensor.shape[1:]), tuple(tensor.shape[2:])} and len(widths) == 1
        if not (known and fit and sum(map(prod, shapes)) == tensor.numel()):
            yield name
