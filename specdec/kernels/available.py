"""Compiled kernels, where Numba and the processor have them. The first time they are asked for takes seconds."""

from __future__ import annotations

import functools
from types import ModuleType


@functools.cache
def fused_kernels() -> ModuleType | None:
    """The functions of `fused.py`."""
    try:
        from specdec.kernels import fused
    except ImportError:
        return None
    return fused


@functools.cache
def byte_kernels() -> ModuleType | None:
    """Those of `byte_products.py`."""
    try:
        from specdec.kernels import byte_products
    except ImportError:
        return None
    return byte_products if byte_products.NUM_LANES else None


@functools.cache
def tiled_kernels() -> ModuleType | None:
    """Those of `tiled.py`."""
    try:
        from specdec.kernels import tiled
    except ImportError:
        return None
    return tiled


@functools.cache
def drawing_kernels() -> ModuleType | None:
    """Those of `drawing.py`."""
    try:
        from specdec.kernels import drawing
    except ImportError:
        return None
    return drawing
