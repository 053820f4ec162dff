"""Arrays of whole numbers on devices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specdec.runner.integers import Integers
from tests.specdec.models.pretended_devices import FIRST, SECOND, pretended_devices


def test_arrays_keep_their_shapes_and_numbers() -> None:
    arrays: list[np.ndarray] = [np.array([[1, 2, 3], [4, 5, 6]]), np.array([7], dtype=np.int32), np.zeros((2, 0))]
    for found, array in zip(Integers(*arrays).on(torch.device("cpu")), arrays, strict=True):
        assert found.dtype == torch.int64
        assert found.shape == array.shape
        assert found.tolist() == array.tolist()


def test_each_device_gets_its_copy_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended_devices(monkeypatch):
        numbers = Integers(np.arange(3))
        (first,), (second,) = numbers.on(FIRST), numbers.on(SECOND)
        assert (first.device, second.device) == (FIRST, SECOND)
        assert numbers.on(FIRST)[0] is first
