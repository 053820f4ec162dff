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
    """Features that tell their position; (positions, states, hidden_size)."""
    return torch.tensor(positions, dtype=torch.float16)[:, None, None] + torch.arange(6.0).view(SHAPE).half() / 16


def log(max_tokens: int = 100) -> FeatureLog:
    return FeatureLog(*SHAPE, max_tokens)


def assert_before(found: FeatureLog, first_row: int, expected: list[int | None], has_all: bool) -> None:
    features, complete = found.before(first_row, len(expected))
    blank = torch.zeros((1, *SHAPE), dtype=torch.float16)
    assert torch.equal(features, torch.cat([blank if each is None else of_positions(each) for each in expected]))
    assert complete == has_all


def test_a_row_gets_those_of_the_position_before_it() -> None:
    found = log()
    found.add(of_positions(0, 1, 2), end=3)
    found.add(of_positions(3, 4), end=5)
    # Nothing stands before the first token, and nothing is missing there.
    assert_before(found, 0, [None, 0, 1, 2, 3, 4], has_all=True)
    assert_before(found, 2, [1, 2, 3], has_all=True)
    assert_before(found, 4, [3], has_all=True)
    assert_before(found, 0, [None], has_all=True)
    assert_before(found, 5, [4, None], has_all=False)
    assert_before(found, 9, [None, None], has_all=False)
    assert_before(log(), 0, [None], has_all=True)
    assert_before(log(), 0, [None, None], has_all=False)


def test_gaps_stay_gaps() -> None:
    found = log()
    found.add(of_positions(2, 3), end=4)
    found.add(of_positions(), end=6)
    found.add(of_positions(7), end=8)
    assert_before(found, 0, [None, None, None, 2, 3, None, None, None, 7, None], has_all=False)
    assert_before(found, 3, [2, 3], has_all=True)
    assert_before(found, 4, [3, None], has_all=False)
    assert_before(found, 7, [None, 7], has_all=False)
    assert_before(found, 8, [7], has_all=True)


def test_the_last_ones_are_kept_within_bounds() -> None:
    found = log(max_tokens=4)
    for position in range(0, 60, 2):
        found.add(of_positions(position, position + 1), end=position + 2)
        assert sum(len(part) for _, part in found._parts) <= 4
    assert_before(found, 55, [None, None, 56, 57, 58, 59], has_all=False)
    # One part may be as large as what is taken at once.
    found.add(of_positions(60, 61, 62, 63), end=64)
    assert_before(found, 60, [None, 60, 61, 62, 63], has_all=False)


def test_more_than_there_are_positions_lose_their_beginning() -> None:
    found = log()
    found.add(of_positions(7, 8, 0, 1), end=2)
    assert_before(found, 0, [None, 0, 1], has_all=True)


def test_the_wire_is_little_endian_float16() -> None:
    features = of_positions(4, 5, 6)
    data = features.numpy().astype("<f2").tobytes()
    assert torch.equal(log().read(data), features)
    assert log().read(b"").shape == (0, *SHAPE)
    assert len(log(3).read(data)) == 3


@pytest.mark.parametrize("num_bytes", [1, TOKEN_BYTES - 1, TOKEN_BYTES + 1, 4 * TOKEN_BYTES])
def test_not_whole_tokens_or_too_many_are_refused(num_bytes: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"features have {num_bytes} bytes; a token has 12, and at most 3"):
        log(3).read(bytes(num_bytes))


@pytest.mark.parametrize("value", [numpy.nan, numpy.inf, -numpy.inf])
def test_what_is_no_finite_number_is_refused(value: float) -> None:
    numbers = numpy.zeros(12, dtype="<f2")
    numbers[7] = value
    with pytest.raises(InvalidArgumentError, match="not all finite"):
        log().read(numbers.tobytes())
