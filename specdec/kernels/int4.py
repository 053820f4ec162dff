"""Weights of 4 bits that stay so: what a GGUF file of type Q4_0 or Q4_1 holds, multiplied on CPU as it is.

Both types are groups of 32 weights of a row, each `least + scale * q` with q from 0 to 15, and a float32 model that was
converted from them still consists of exactly these numbers. So they are read back from it, group by group, and checked.

Exact: q. Rounded to bfloat16 (8 bits, a relative error of up to 2^-9): the scale; the middle of the group, `least + 8 *
scale`, which the operator wants instead of the least; the rows that go in; and what comes out, whose sums are float32.
So this is bfloat16 arithmetic on slightly other weights, and is called so. All else stays float32, the LM head above
all: logits of bfloat16 tie (docs/experiments.md).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from specdec.kernels.packed import PackedLinear
from specdec.models.errors import ModelError

INT4 = "int4/bfloat16"
"""What a model with such weights calls its element type."""

GROUP_SIZE = 32
_LEVELS = 15
_MIDDLE = 8
_TOLERANCE = 0.02
"""Largest difference from the same weights in float32, relative to the largest value."""
_OPERATORS = ("_convert_weight_to_int4pack_for_cpu", "_weight_int4pack_mm_for_cpu")
_ADVICE = "choose --dtype bfloat16 or float32"


class Int4Linear(PackedLinear):
    """A linear layer on packed weights.

    Args:
        levels: (out_features, in_features), integers from 0 to 15.
        scale: (out_features, in_features / 32), float32.
        least: (out_features, in_features / 32), float32.
        bias: (out_features,)
    """

    packed: torch.Tensor
    scales_and_zeros: torch.Tensor
    bias: nn.Parameter | None

    def __init__(
        self, levels: torch.Tensor, scale: torch.Tensor, least: torch.Tensor, bias: torch.Tensor | None
    ) -> None:
        super().__init__(levels.shape[1], levels.shape[0])
        operators: Any = torch.ops.aten
        self.register_buffer("packed", operators._convert_weight_to_int4pack_for_cpu(levels.to(torch.int32), 1))
        pairs = torch.stack([scale.t(), (least + _MIDDLE * scale).t()], dim=-1)  # (groups, out_features, 2)
        self.register_buffer("scales_and_zeros", pairs.to(torch.bfloat16).contiguous())
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias, requires_grad=False))
        self._multiply: Any = operators._weight_int4pack_mm_for_cpu
        # Found faster than buffers, which a pass of one row can tell.
        self._weights = self.packed, GROUP_SIZE, self.scales_and_zeros

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        """See `PackedLinear`: bfloat16."""
        out: torch.Tensor = self._multiply(rows.bfloat16().contiguous(), *self._weights)
        return out if self.bias is None else out + self.bias


def check_int4(device: torch.device) -> None:
    """Refuse what cannot be, before any weights are loaded.

    Raises:
        ModelError: the device is no CPU, or PyTorch lacks the operators.
    """
    if device.type != "cpu":
        raise ModelError(f"dtype int4 is for CPU, and the device is {device}; {_ADVICE}")
    if not has_int4():
        raise ModelError(f"PyTorch {torch.__version__} has no 4-bit products on CPU; {_ADVICE}")


def has_int4() -> bool:
    """Whether PyTorch has 4-bit products on CPU. The operators are private to it, so they may go."""
    return all(hasattr(torch.ops.aten, name) for name in _OPERATORS)


def is_int4(model: nn.Module) -> bool:
    """Whether a model has packed weights."""
    return any(isinstance(module, Int4Linear) for module in model.modules())


@torch.no_grad()
def pack_int4(model: PreTrainedModel) -> None:
    """Pack the linear layers of a model in place, all but the LM head.

    Args:
        model: float32, on CPU.

    Raises:
        ModelError: a layer's weights are not of 4 bits.
    """
    embeddings: Any = model
    head = embeddings.get_output_embeddings()
    checked = set()
    names = {module: name for name, module in model.named_modules()}
    for holder in list(model.modules()):
        for name, layer in list(holder.named_children()):
            if layer is head or type(layer) not in (nn.Linear, Conv1D):
                continue
            linear: Any = layer
            weight: torch.Tensor = linear.weight.t() if type(layer) is Conv1D else linear.weight
            packed = _packed_layer(names[layer], weight, linear.bias)
            if weight.shape not in checked:
                _check_product(packed, weight)
                checked.add(weight.shape)
            setattr(holder, name, packed)
    if not checked:
        raise ModelError(f"{model.config.model_type} has no linear layers that could be packed; {_ADVICE}")


def read_levels(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """The 4-bit numbers behind dequantised weights, if that is what they are.

    Args:
        weight: (out_features, in_features), float32; in_features is a multiple of 32.

    Returns:
        As `Int4Linear` takes them: levels, uint8, scale and least, float32, with `least + scale * levels` equal to the
        weight bit by bit; or None.
    """
    groups = weight.reshape(-1, GROUP_SIZE)
    least, largest = groups.aminmax(dim=1, keepdim=True)
    spread = largest - least
    levels = torch.zeros_like(groups)
    scale = torch.zeros_like(least)
    left = torch.arange(groups.shape[0])
    # Nearly always the least weight of a group has level 0 and the largest 15; else fewer lie between them.
    for count in range(_LEVELS, 0, -1):
        trial_scale = spread[left] / count
        rows = groups[left]
        trial = ((rows - least[left]) / trial_scale).round_().nan_to_num_(0.0)
        found = (torch.addcmul(least[left], trial_scale, trial) == rows).all(dim=1)
        levels[left[found]] = trial[found]
        scale[left[found]] = trial_scale[found]
        left = left[~found]
        if not len(left):
            shape = (weight.shape[0], -1)
            return levels.to(torch.uint8).view(weight.shape), scale.view(shape), least.view(shape)
    return None


def _packed_layer(name: str, weight: torch.Tensor, bias: torch.Tensor | None) -> Int4Linear:
    read = read_levels(weight) if weight.shape[1] % GROUP_SIZE == 0 else None
    if read is None:
        raise ModelError(
            f"{name} does not consist of 4-bit numbers in groups of {GROUP_SIZE}, as GGUF files of type Q4_0 and Q4_1 "
            f"have them; {_ADVICE}"
        )
    try:
        return Int4Linear(*read, bias)
    except RuntimeError as error:
        raise ModelError(
            f"{name}, {weight.shape[0]} x {weight.shape[1]}, cannot be packed ({error}); {_ADVICE}"
        ) from error


def _check_product(layer: Int4Linear, weight: torch.Tensor) -> None:
    rows = torch.randn(4, layer.in_features, generator=torch.Generator().manual_seed(0))
    found = layer(rows)
    expected = nn.functional.linear(rows, weight, layer.bias)
    if float((found - expected).abs().max()) > _TOLERANCE * float(expected.abs().max()):
        raise ModelError(f"4-bit products come out wrong on this processor; {_ADVICE}")
