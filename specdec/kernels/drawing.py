"""The draw of the coupled rule from rows of logits, compiled: the token with the highest logit plus noise.

As `specdec.sampling.noise` does it, to the last bit: the same integers, and float64 operations that are neither fused
nor put in another order. One reading of a row does all: the 32 random bits of each token are held against the fewest
that would bring it level with the best so far, and only of the few that have as many the noise is computed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from specdec.kernels.compiling import compiled_exactly
from specdec.sampling.noise import GAMMA, MIX_1, MIX_2, log_reference

_GAMMA, _MIX_1, _MIX_2 = np.uint64(GAMMA), np.uint64(MIX_1), np.uint64(MIX_2)
_30, _27, _31, _32 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)
_log: Any = njit(log_reference)

_LEAST, _MOST = -4.0, 23.0
"""All noise there is lies between them: from -3.13 to 22.87."""
_STEPS = 8.0
"""Of the table for each unit of noise."""
_SLACK, _RELATIVE_SLACK = 1e-6, 1e-15
"""More than all rounding there is; the second of a score."""


def _fewest_bits() -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """For each step of noise, bits below which a token is sure to have less of it; the last step nothing passes."""
    noise = np.arange(_LEAST, _MOST, 1 / _STEPS)
    # The inverse of -log(-log(u)); 2 of 2**32 are far more than its rounding.
    fewest = np.maximum(np.floor(np.exp(-np.exp(-noise)) * 2.0**32) - 2.0, 0.0)
    return np.append(fewest, 2.0**32).astype(np.uint64)


FEWEST_BITS = _fewest_bits()


@njit(inline="always")
def _noise(bits: Any) -> Any:
    return -_log(-_log((np.float64(bits) + 0.5) * 2.0**-32))


@njit(inline="always")
def _bits(start: Any, token: Any) -> Any:
    value = token * _GAMMA + start
    value = (value ^ (value >> _30)) * _MIX_1
    value = (value ^ (value >> _27)) * _MIX_2
    return (value ^ (value >> _31)) >> _32


@compiled_exactly("float32[:,::1]", "uint64[::1]", "int64[::1]", "uint64[::1]", "int64[::1]")
def draw(
    logits: np.ndarray[tuple[int, int], np.dtype[np.float32]],
    keys: np.ndarray[tuple[int], np.dtype[np.uint64]],
    favourites: np.ndarray[tuple[int], np.dtype[np.int64]],
    fewest_bits: np.ndarray[tuple[int], np.dtype[np.uint64]],
    chosen: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> None:
    """Draw a token from each row.

    Args:
        logits: (rows, vocab_size); -inf excludes a token.
        keys: (rows,), of the positions; see `noise_key`.
        favourites: (rows,), where the highest logit of each row is; negative: nothing is drawn from it.
        fewest_bits: `FEWEST_BITS`.
        chosen: (rows,), the tokens, or -1.
    """
    for row in range(logits.shape[0]):
        chosen[row] = -1
        favourite = favourites[row]
        if favourite < 0:
            continue
        start = keys[row] + _GAMMA
        best = -np.inf
        bar = np.float64(logits[row, favourite]) + _noise(_bits(start, np.uint64(favourite)))
        slack = _SLACK + _RELATIVE_SLACK * abs(bar)
        for token in range(logits.shape[1]):
            logit = np.float64(logits[row, token])
            missing = min(max(bar - logit - slack, _LEAST), _MOST)
            bits = _bits(start, np.uint64(token))
            if bits < fewest_bits[np.int64((missing - _LEAST) * _STEPS)]:
                continue
            score = logit + _noise(bits)
            if score > best:
                best, chosen[row] = score, token
                bar = max(bar, best)
