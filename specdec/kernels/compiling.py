"""Compiling with Numba, for the processor that this runs on.

What is compiled is kept on disk where there is a place for it (`NUMBA_CACHE_DIR`, else beside the source, else in the
user's cache); else it takes seconds at each start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit

# Sums in any order, but NaN stays NaN: whoever samples must see that a model is broken.
_FAST = {"reassoc", "contract", "arcp", "nsz"}


def compiled(*arguments: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Compile a function for arguments of these types, now. It runs without the interpreter's lock."""
    return _compiled(arguments, fastmath=_FAST)


def compiled_exactly(*arguments: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As `compiled`, with floating-point operations as they are written."""
    return _compiled(arguments, fastmath=False)


def _compiled(
    arguments: tuple[str, ...], *, fastmath: set[str] | bool
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    signature = f"void({','.join(arguments)})"

    def compile_now(function: Callable[..., None]) -> Callable[..., None]:
        options: dict[str, Any] = {"fastmath": fastmath, "nogil": True, "error_model": "numpy"}
        try:
            return njit(signature, cache=True, **options)(function)
        except RuntimeError:
            # There is no directory that could be written to.
            return njit(signature, **options)(function)

    return compile_now
