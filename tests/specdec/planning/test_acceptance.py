import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.planning.acceptance import Acceptance
from tests.specdec.planning.numbers import acceptances, probabilities


@given(st.floats(0, 0.999), st.integers(0, 12))
def test_one_rate_gives_the_geometric_sum(rate: float, k: int) -> None:
    assert Acceptance((rate,)).expected_tokens(k) == pytest.approx((1 - rate ** (k + 1)) / (1 - rate))


def test_by_position_by_hand() -> None:
    acceptance = Acceptance((0.9, 0.5, 0.2))
    # 1 + 0.9 + 0.9 * 0.5 + 0.9 * 0.5 * 0.2, and the last rate goes on.
    assert acceptance.expected_tokens(3) == pytest.approx(2.44)
    assert acceptance.expected_tokens(4) == pytest.approx(2.458)
    assert acceptance.expected_tokens(0) == 1


@given(acceptances, st.integers(0, 10))
def test_tokens_are_between_one_and_all(acceptance: Acceptance, k: int) -> None:
    assert 1 <= acceptance.expected_tokens(k) <= k + 1 + 1e-9
    assert acceptance.expected_tokens(k) <= acceptance.expected_tokens(k + 1)


@given(acceptances, probabilities, st.integers(0, 10))
def test_more_acceptance_anywhere_is_never_fewer_tokens(acceptance: Acceptance, more: float, k: int) -> None:
    for position in range(len(acceptance.rates)):
        rates = list(acceptance.rates)
        rates[position] = max(rates[position], more)
        assert Acceptance(tuple(rates)).expected_tokens(k) >= acceptance.expected_tokens(k)


@given(st.lists(probabilities, min_size=1, max_size=8))
def test_mean_lengths_give_back_the_tokens(rates: list[float]) -> None:
    acceptance = Acceptance(tuple(sorted(rates, reverse=True)))
    lengths = {k: acceptance.expected_tokens(k) for k in (2, 4, 8)}
    found = Acceptance.from_mean_lengths(lengths)
    for k, length in lengths.items():
        assert found.expected_tokens(k) == pytest.approx(length, abs=1e-6)


def test_mean_lengths_by_hand() -> None:
    found = Acceptance.from_mean_lengths({1: 1.8, 2: 2.2})
    assert found.rates == pytest.approx((0.8, 0.5))


@pytest.mark.parametrize("rates", [(), (1.1,), (-0.1,), (float("nan"),)])
def test_rates_that_cannot_be(rates: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="rate"):
        Acceptance(rates)


@pytest.mark.parametrize("lengths", [{}, {2: 3.5}, {2: 0.9}, {0: 1.0}])
def test_mean_lengths_that_cannot_be(lengths: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="rate|length"):  # noqa: RUF043
        Acceptance.from_mean_lengths(lengths)
