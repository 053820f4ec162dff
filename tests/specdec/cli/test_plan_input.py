import pytest

from specdec.cli.plan_input import parse_acceptance, parse_mix, parse_pass_costs
from specdec.planning.pass_costs import PassPoint


def test_one_number_of_milliseconds() -> None:
    assert parse_pass_costs("30").seconds(100) == pytest.approx(0.03)


def test_points() -> None:
    assert parse_pass_costs("9:31.5, 1:30").points == (PassPoint(1, 0.03), PassPoint(9, 0.0315))


def test_points_with_sequences() -> None:
    assert parse_pass_costs("5x1:30,40x8:42").points == (PassPoint(5, 0.03, 1), PassPoint(40, 0.042, 8))


@pytest.mark.parametrize("text", ["", "x", "1:", "1:2:3", "x1:3", "5x:3", "1:30;2:40", "1:30,2x1:40", "-3", "0"])
def test_costs_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_pass_costs(text)


def test_acceptance() -> None:
    assert parse_acceptance("0.8").rates == (0.8,)
    assert parse_acceptance(".8,0.75, 0.5").rates == (0.8, 0.75, 0.5)


def test_requests() -> None:
    long, short = parse_mix(["2000:100:0.5", "10:20"]).kinds
    assert (long.prompt_tokens, long.output_tokens, long.weight) == (2000, 100, 0.5)
    assert (short.prompt_tokens, short.output_tokens, short.weight) == (10, 20, 1.0)


@pytest.mark.parametrize("kind", ["", "10", "10:20:1:1", "a:b", "0:5", "5:5:0"])
def test_requests_that_are_none(kind: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_mix([kind])
