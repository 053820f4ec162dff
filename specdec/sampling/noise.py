"""Random numbers that are a pure function of (seed, stream, position, token): the same on every machine and device.

Draft and target never exchange random numbers; both compute the noise of a position and get the same bits, so the
drafter can guess what the target will draw (Daliri, Musco and Suresh 2024, "Coupling without communication and drafter-
invariant speculative decoding"). For the same reason a request that is retried elsewhere goes on with the same text.

The integers come from SplitMix64 (Steele, Lea and Flood 2014), used as a counter-based generator. They are turned
into floating-point noise with additions, multiplications and divisions in float64 only: IEEE 754 defines their results
to the last bit, which library logarithms do not promise. Each operation is its own kernel, so nothing is fused.
"""

import enum
import math
from collections.abc import Sequence

import numpy as np
import torch

from specdec.kernels.available import drawing_kernels

_MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
_LN_2 = 0.6931471805599453
_SQRT_HALF = 0.7071067811865476
_SERIES = tuple(2.0 / (2 * k + 1) for k in range(6, -1, -1))  # of 2 artanh(z) = log((1 + z) / (1 - z)), highest first


class Stream(enum.IntEnum):
    """Purposes of random numbers; numbers of different streams are independent."""

    TARGET = 0
    """Noise of the target's own token (coupled rule); the drafter reads it too."""
    DRAFT = 1
    """What the drafter samples with, where draft tokens are not coupled."""
    ACCEPT = 2
    """The accept test of the rejection and block rules."""
    RESIDUAL = 3
    """The recovered or bonus token of the rejection and block rules."""


def mix64(value: int) -> int:
    """SplitMix64's finaliser on a 64-bit integer."""
    value = ((value ^ (value >> 30)) * MIX_1) & _MASK
    value = ((value ^ (value >> 27)) * MIX_2) & _MASK
    return value ^ (value >> 31)


def noise_key(seed: int, position: int, stream: Stream) -> int:
    """The 64-bit key of one position's noise in one stream.

    Args:
        seed: of the request, below 2**64.
        position: absolute index in the sequence of the token that is drawn.
        stream: the purpose.
    """
    return mix64((seed_key(seed) + (4 * position + stream + 1) * GAMMA) & _MASK)


def seed_key(seed: int) -> int:
    """The part of a `noise_key` that is of the seed alone."""
    return mix64((seed + GAMMA) & _MASK)


def noise_keys(seed_keys: Sequence[int], positions: Sequence[int], stream: Stream) -> torch.Tensor:
    """`noise_key` of many positions at once, by the `seed_key` of each; (positions,), int64 with the same bits."""
    of_seeds = torch.from_numpy(np.array(seed_keys, dtype=np.uint64).view(np.int64))
    places = torch.from_numpy(np.array(positions, dtype=np.int64))
    return _mix64(of_seeds + (4 * places + (stream + 1)) * _signed(GAMMA))


def below(bound: int, seed: int, position: int, stream: Stream, base_length: int, nth: int = 0) -> int:
    """A uniform integer in [0, bound) for one decision of one round; each value is within 2**-64 of its probability.

    Args:
        bound: at least 1.
        seed: of the request.
        position: absolute index of the token that is decided.
        stream: the purpose.
        base_length: committed length that the round began with; decisions of different rounds are independent.
        nth: tells several decisions of one position and purpose apart.
    """
    round_seed = mix64((seed + (base_length + 1) * GAMMA) & _MASK)
    return (mix64((noise_key(round_seed, position, stream) + (nth + 1) * GAMMA) & _MASK) * bound) >> 64


def gumbel(key: int | torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise of tokens.

    Args:
        key: from `noise_key`, or several from `noise_keys`, in a shape that goes with that of `token_ids`.
        token_ids: int64, any shape.

    Returns:
        float64, shape of both. Each value is -log(-log(u)), where u is one of the 2**32 midpoints of equal parts
        of (0, 1).
    """
    return _gumbel_of_bits(_noise_bits(key, token_ids))


def gumbel_reference(key: int, token_id: int) -> float:
    """`gumbel` for one token in plain Python; equal to it bit for bit."""
    u = _unit(mix64((key + (token_id + 1) * GAMMA) & _MASK))
    return -log_reference(-log_reference(u))


def gumbel_argmax(logits: torch.Tensor, key: int) -> int:
    """Sample from softmax(logits): the token with the largest logit + noise.

    Args:
        logits: (vocab_size,), float32, the highest of which is a number; -inf excludes a token.
        key: of the position.

    Returns:
        The token id.
    """
    (token,) = gumbel_argmax_of_rows(logits[None], torch.tensor([_signed(key)]))
    if token is None:
        raise ValueError("the highest logit is no number")
    return token


def gumbel_argmax_of_rows(logits: torch.Tensor, keys: torch.Tensor) -> list[int | None]:
    """`gumbel_argmax` of each row.

    Args:
        logits: (rows, vocab_size), float32.
        keys: (rows,), int64, of the positions; see `noise_keys`.

    Returns:
        The token ids; None for a row whose highest is no number: no token is left, or the model gave none.
    """
    kernels = drawing_kernels() if logits.device.type == "cpu" else None
    if kernels is None:
        return plain_argmax_of_rows(logits, keys)
    favourites, highest = _favourites(logits)
    places = favourites.numpy()
    places[~np.isfinite(highest.numpy())] = -1
    chosen = np.empty(len(places), dtype=np.int64)
    array = np.ascontiguousarray(logits.numpy())
    kernels.draw(array, keys.numpy().view(np.uint64), places, kernels.FEWEST_BITS, chosen)
    return [token if token >= 0 else None for token in chosen.tolist()]


def plain_argmax_of_rows(logits: torch.Tensor, keys: torch.Tensor) -> list[int | None]:
    """As `gumbel_argmax_of_rows`, with noise for every token, on any device, which is waited for once."""
    tokens = torch.arange(logits.shape[1], device=logits.device)
    chosen = (logits.double() + gumbel(keys.to(logits.device)[:, None], tokens)).argmax(-1)
    is_number = logits.amax(-1).isfinite()
    return [token if token >= 0 else None for token in torch.where(is_number, chosen, -1).tolist()]


def first_highest(numbers: torch.Tensor) -> tuple[int, float]:
    """Index and value of the highest of some float32 numbers, (any,); the first if there are several."""
    # NumPy's takes a ninth of the time of PyTorch's on CPU, and every token of every text is chosen here.
    array = numbers.numpy() if numbers.device.type == "cpu" else numbers
    index = int(array.argmax())
    return index, float(array[index])


def first_highest_of_rows(rows: torch.Tensor) -> tuple[list[int], list[float]]:
    """`first_highest` of each row of some float32 numbers, (rows, any): the indices, and the values.

    A device is asked once for all of them.
    """
    if rows.device.type == "cpu":
        index, highest = _favourites(rows)
        return index.tolist(), highest.tolist()
    return first_highest_on_device(rows)


def first_highest_on_device(rows: torch.Tensor) -> tuple[list[int], list[float]]:
    """As `first_highest_of_rows`, found where they are; one way to the host."""
    index, highest = _favourites(rows)
    # In one tensor for one way to the host, and as integers: float32 would round large indices.
    indices, bits = torch.stack([index, highest.view(torch.int32).long()]).cpu()
    return indices.tolist(), bits.int().view(torch.float32).tolist()


def _favourites(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each row the first index of the highest, int64, and that, where they are."""
    if rows.device.type == "cpu":
        array = rows.numpy()
        index = array.argmax(-1)
        return torch.from_numpy(index), torch.from_numpy(array[np.arange(len(index)), index])
    favourites = rows.argmax(-1)
    return favourites, rows.gather(1, favourites[:, None])[:, 0]


def _noise_bits(key: int | torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """32 random bits of each token, as int64; `key` is of all of them, or one for each."""
    start = key + _signed(GAMMA) if isinstance(key, torch.Tensor) else _signed((key + GAMMA) & _MASK)
    return _shift_right(_mix64(token_ids * _signed(GAMMA) + start), 32)


def _gumbel_of_bits(bits: torch.Tensor) -> torch.Tensor:
    u = (bits.double() + 0.5) * 2.0**-32
    return _log(_log(u).neg_()).neg_()


def _unit(value: int) -> float:
    return ((value >> 32) + 0.5) * 2.0**-32


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _shift_right(value: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift; that of int64 tensors copies the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _mix64(value: torch.Tensor) -> torch.Tensor:
    value = (value ^ _shift_right(value, 30)) * _signed(MIX_1)
    value = (value ^ _shift_right(value, 27)) * _signed(MIX_2)
    return value ^ _shift_right(value, 31)


def _log(x: torch.Tensor) -> torch.Tensor:
    """Natural logarithm of positive float64, the same bits everywhere; relative error below 1e-11."""
    mantissa, exponent = torch.frexp(x)
    low = mantissa < _SQRT_HALF
    mantissa = torch.where(low, mantissa * 2.0, mantissa)
    exponent = (exponent - low.to(exponent.dtype)).double()
    z = (mantissa - 1.0) / (mantissa + 1.0)
    square = z * z
    series = torch.full_like(z, _SERIES[0])
    for coefficient in _SERIES[1:]:
        series.mul_(square).add_(coefficient)
    return exponent.mul_(_LN_2).add_(series.mul_(z))


def log_reference(x: float) -> float:
    """`_log` for one number in plain Python; equal to it bit for bit. Compiled as it stands, too."""
    mantissa, exponent = math.frexp(x)
    if mantissa < _SQRT_HALF:
        mantissa, exponent = mantissa * 2.0, exponent - 1
    z = (mantissa - 1.0) / (mantissa + 1.0)
    square = z * z
    series = _SERIES[0]
    for coefficient in _SERIES[1:]:
        series = series * square + coefficient
    return exponent * _LN_2 + series * z


MAX_GUMBEL = -log_reference(-log_reference(_unit(_MASK)))
"""The largest noise there is (22.87): a token whose logit lies further below another's score can never overtake it."""
