"""Two devices on a machine that has none: tensors without values, whose every operation checks where they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from accelerate.hooks import attach_align_device_hook_on_blocks
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from specdec.models.placement import move_between_parts_only
from specdec.runner.attention import ATTENTION_NAME

FIRST, SECOND = torch.device("cpu", 1), torch.device("cpu", 2)
"""Real tensors lose the number, and are computed with; those of `pretended_devices` keep it."""


class _CheckedIndices(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Indices may be on the host, which any CPU passes for otherwise, or where the tensor is."""

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten.index.Tensor:
            places = {index.device for index in args[1] if index is not None}
            if not places <= {torch.device("cpu"), args[0].device}:
                raise RuntimeError(f"a tensor on device {args[0].device} is indexed from {places}")
        return func(*args, **(kwargs or {}))


@contextmanager
def pretended_devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within, an operation over two devices raises, as it does on GPUs."""
    real, of_array = torch.tensor, torch.from_numpy

    def from_numpy(array: Any) -> torch.Tensor:
        made = of_array(array)
        return torch.empty(made.shape, dtype=made.dtype)

    def tensor(data: Any, *, device: torch.device | None = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        # It would be a real one.
        made = real(data, dtype=dtype)
        return made if device is None else torch.empty(made.shape, dtype=made.dtype, device=device)

    with monkeypatch.context() as patch, FakeTensorMode(), _CheckedIndices(), torch.no_grad():  # type: ignore[no-untyped-call]
        patch.setattr(torch, "tensor", tensor)
        patch.setattr(torch, "from_numpy", from_numpy)
        yield


def divided_model(config: PreTrainedConfig, placed: dict[str, torch.device]) -> PreTrainedModel:
    """A model of which each part is where it was placed; within `pretended_devices`."""
    model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, dtype=torch.bfloat16, attn_implementation=ATTENTION_NAME
    )
    moved: dict[int, tuple[torch.Tensor, torch.nn.Parameter]] = {}
    for path, device in placed.items():
        for module in model.get_submodule(path).modules():
            for name, weight in module.named_parameters(recurse=False):
                new = torch.nn.Parameter(weight.to(device), requires_grad=False)
                module.register_parameter(name, moved.setdefault(id(weight), (weight, new))[1])
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(device))
    # As transformers does by way of `dispatch_model`, which asks for addresses in memory besides.
    attach_align_device_hook_on_blocks(model, {"": FIRST, **placed}, offload=dict.fromkeys(placed, False))
    move_between_parts_only(model)
    return model
