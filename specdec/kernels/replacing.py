"""Giving a loaded model its kernels, and saying which."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from specdec.kernels.choosing import DEFAULT, INVARIANT, ONE_COPY, PLAIN, TWO_COPIES, Choice, choose_kernels
from specdec.kernels.kernel import has_onednn
from specdec.kernels.linear import RowLinear
from specdec.kernels.measuring import Seconds, Shape, measure_kernels
from specdec.kernels.profile import load_seconds, save_seconds
from specdec.models.errors import ModelError
from specdec.runner.free_memory import free_memory_bytes

LinearKernel = Literal["auto", "default", "invariant"]

_MIN_ELEMENTS = 1 << 16
"""A smaller weight stays in the processor's cache, and calling a kernel costs more than the kernel."""
_COPIES_SHARE = 0.25
"""Of free memory, what second copies of the weights may take."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Place:
    """A linear layer and where it stands."""

    holder: nn.Module
    name: str
    weight: torch.Tensor
    """(out_features, in_features), contiguous."""
    bias: torch.Tensor | None
    is_shared: bool
    """Something else reads the weight too: the embeddings, if they are tied."""

    @property
    def shape(self) -> Shape:
        return (self.weight.shape[0], self.weight.shape[1])


def give_kernels(model: PreTrainedModel, setting: LinearKernel) -> None:
    """Replace the linear layers of a model on CPU, in place. What cannot be replaced stays as it is.

    With `auto`, kernels are chosen for each shape by what they take on this machine: measured now, in well under a
    second for the embedded models, or found in the user's cache. With `invariant`, every element of every product is
    summed in one order, whatever the number of rows. Weights whose plain form nothing reads any more are dropped.

    Args:
        model: on any device; only on CPU, in float32 or bfloat16, something is done.
        setting: `default` leaves everything to PyTorch.

    Raises:
        ModelError: `invariant` is not to be had.
    """
    if setting == "default":
        return
    if setting == "invariant":
        _check_invariant(model)
    if model.device.type != "cpu" or model.dtype not in (torch.float32, torch.bfloat16):
        return
    places = list(_places(model, 0 if setting == "invariant" else _MIN_ELEMENTS))
    began = time.perf_counter()
    choices = dict.fromkeys(map(_kind, places), INVARIANT) if setting == "invariant" else _choose(places, model.dtype)
    _log.debug("linear kernels were chosen within %.2f s", time.perf_counter() - began)
    copy_bytes = 0
    counts = Counter(map(_kind, places))
    # One at a time, so that a weight that is dropped is gone before the next one is copied.
    while places:
        place = places.pop()
        choice = choices[_kind(place)]
        if choice != DEFAULT:
            layer = RowLinear(place.weight, place.bias, choice.kernels, keep_weight=place.is_shared)
            copy_bytes += layer.copy_bytes if layer.weight is not None else 0
            setattr(place.holder, place.name, layer)
    kinds = "; ".join(
        f"{count} of {shape[0]} x {shape[1]}: {choices[shape, is_shared]}"
        for (shape, is_shared), count in counts.items()
    )
    _log.info("linear kernels by number of rows: %s; %d bytes of second copies", kinds, copy_bytes)


def _kind(place: _Place) -> tuple[Shape, bool]:
    return place.shape, place.is_shared


def _places(model: PreTrainedModel, min_elements: int) -> Iterator[_Place]:
    """The linear layers of a model that are large enough."""
    readers = Counter(id(weight) for module in model.modules() for weight in module.parameters(recurse=False))
    for holder in list(model.modules()):
        for name, layer in list(holder.named_children()):
            if type(layer) is nn.Linear and layer.weight.numel() >= min_elements and layer.weight.is_contiguous():
                yield _Place(holder, name, layer.weight, layer.bias, is_shared=readers[id(layer.weight)] > 1)
            elif type(layer) is Conv1D and layer.weight.numel() >= min_elements:
                weight = layer.weight.t().contiguous()
                yield _Place(holder, name, weight, layer.bias, is_shared=False)


def _choose(places: Sequence[_Place], dtype: torch.dtype) -> dict[tuple[Shape, bool], Choice]:
    """Kernels for each kind of place; second copies only where memory allows them for all."""
    weights: dict[Shape, list[torch.Tensor]] = {}
    for place in places:
        weights.setdefault(place.shape, []).append(place.weight)
    seconds = _seconds(weights, dtype)
    choices = {_kind(place): choose_kernels(seconds[place.shape], TWO_COPIES) for place in places}
    copy_bytes = 0
    for place in places:
        layouts = choices[_kind(place)].layouts | ({"plain"} if place.is_shared else set())
        copy_bytes += (len(layouts) - 1) * place.weight.numel() * place.weight.element_size()
    allowed_bytes = int(_COPIES_SHARE * free_memory_bytes(torch.device("cpu")))
    if copy_bytes <= allowed_bytes:
        return choices
    _log.info("second copies of weights would take %d bytes, and %d are allowed", copy_bytes, allowed_bytes)
    return {
        _kind(place): choose_kernels(seconds[place.shape], PLAIN if place.is_shared else ONE_COPY) for place in places
    }


def _seconds(weights: Mapping[Shape, Sequence[torch.Tensor]], dtype: torch.dtype) -> dict[Shape, Seconds]:
    """What each kernel takes for each shape: as was measured once, or measured now."""
    known = {shape: load_seconds(shape, dtype) for shape in weights}
    found = {shape: seconds for shape, seconds in known.items() if seconds is not None}
    measured = measure_kernels({shape: members for shape, members in weights.items() if shape not in found})
    for shape, seconds in measured.items():
        save_seconds(shape, dtype, seconds)
    return found | measured


def _check_invariant(model: PreTrainedModel) -> None:
    if model.device.type != "cpu" or model.dtype not in (torch.float32, torch.bfloat16):
        raise ModelError(
            f"--linear-kernel invariant is for float32 and bfloat16 on CPU, and the model is {model.dtype} on "
            f"{model.device}; choose auto"
        )
    if not has_onednn(model.dtype):
        raise ModelError(
            f"--linear-kernel invariant needs oneDNN's packed weights, which PyTorch {torch.__version__} does not have "
            "on this machine; choose auto"
        )
