"""The target's features by position: what came, where it belongs, and what cannot be features."""

from __future__ import annotations

import numpy
import pytest
import torch

from draft_service.feature_log import FeatureLog
from specdec.errors import InvalidArgumentError

SHAPE = (2, 3)
TOKEN_BYTES = 12


def of_positions(*positions: int) -> torch.Tensor:
    """Features that tell their position, in numbers that bfloat16 holds; (positions, states, hidden_size)."""
    return (torch.tensor(positions)[:, None, None] * torch.tensor([1.0, 2, -1, 4, -2, 8]).view(SHAPE)).bfloat16()


def log(max_tokens: int = 100) -> FeatureLog:
    return FeatureLog(*SHAPE, max_tokens)


def assert_at(found: FeatureLog, first: int, expected: list[int | None]) -> None:
    features, is_known = found.at(first, len(expected))
    blank = torch.zeros((1, *SHAPE), dtype=torch.bfloat16)
    assert torch.equal(features, torch.cat([blank if each is None else of_positions(each) for each in expected]))
    assert is_known.tolist() == [each is not None for each in expected]
    assert found.has_all(first, len(expected)) == (None not in expected)


def test_they_are_found_at_their_positions() -> None:
    found = log()
    found.add(of_positions(0, 1, 2), end=3)
    found.add(of_positions(3, 4), end=5)
    assert_at(found, 0, [0, 1, 2, 3, 4])
    assert_at(found, 2, [2, 3, 4, None])
    assert_at(found, 4, [4])
    # Nothing stands before the first token.
    assert_at(found, -1, [None, 0])
    assert_at(found, -3, [None, None])
    assert_at(found, 5, [None])
    assert_at(found, 9, [None, None])
    assert_at(found, 2, [2])
    assert_at(log(), 0, [None, None])


def test_gaps_stay_gaps() -> None:
    found = log()
    found.add(of_positions(2, 3), end=4)
    found.add(of_positions(), end=6)
    found.add(of_positions(7), end=8)
    assert_at(found, 0, [None, None, 2, 3, None, None, None, 7, None])
    assert_at(found, 3, [3, None])
    assert_at(found, 6, [None, 7])
    assert_at(found, 4, [None, None, None])


def test_the_last_ones_are_kept_within_bounds() -> None:
    found = log(max_tokens=4)
    for position in range(0, 60, 2):
        found.add(of_positions(position, position + 1), end=position + 2)
        assert sum(len(part) for _, part in found._parts) <= 4
    assert_at(found, 54, [None, None, 56, 57, 58, 59])
    # One part may be as large as what is taken at once.
    found.add(of_positions(60, 61, 62, 63), end=64)
    assert_at(found, 59, [None, 60, 61, 62, 63])


def test_more_than_there_are_positions_lose_their_beginning() -> None:
    found = log()
    found.add(of_positions(7, 8, 0, 1), end=2)
    assert_at(found, -1, [None, 0, 1])


def test_the_wire_is_little_endian_bfloat16() -> None:
    features = of_positions(4, 5, 6)
    data = (features.float().numpy().view("<u4") >> 16).astype("<u2").tobytes()
    assert torch.equal(log().read(data), features)
    assert log().read(b"").shape == (0, *SHAPE)
    assert len(log(3).read(data)) == 3


def test_the_largest_numbers_of_both_signs_are_taken() -> None:
    largest = torch.finfo(torch.bfloat16).max
    features = torch.tensor([largest, -largest, 0.0, -0.0, 1.0, -1.0], dtype=torch.bfloat16).view(1, *SHAPE)
    assert torch.equal(log().read(features.view(torch.int16).numpy().tobytes()), features)


@pytest.mark.parametrize("num_bytes", [1, TOKEN_BYTES - 1, TOKEN_BYTES + 1, 4 * TOKEN_BYTES])
def test_not_whole_tokens_or_too_many_are_refused(num_bytes: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"features have {num_bytes} bytes; a token has 12, and at most 3"):
        log(3).read(bytes(num_bytes))


@pytest.mark.parametrize("value", [numpy.nan, numpy.inf, -numpy.inf])
def test_what_is_no_finite_number_is_refused(value: float) -> None:
    numbers = numpy.zeros(12, dtype="<f4")
    numbers[7] = value
    with pytest.raises(InvalidArgumentError, match="not all finite"):
        log().read((numbers.view("<u4") >> 16).astype("<u2").tobytes())
