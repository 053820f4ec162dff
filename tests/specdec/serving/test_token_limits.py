from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from specdec.errors import ResourceExhaustedError
from specdec.serving.token_limits import Limits, Quota, Rate


@dataclass
class Use:
    expected_tokens: int = 0
    used_tokens: int = 0


class Clock:
    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def run(quota: Quota, expected: int = 0, used: int = 0) -> None:
    with quota.admitted(Use(expected, used)):
        pass


def wait_of(quota: Quota, expected: int = 0) -> float | None:
    with pytest.raises(ResourceExhaustedError) as refused:
        run(quota, expected)
    return refused.value.retry_seconds


def test_without_limits_everything_is_admitted(clock: Clock) -> None:
    quota = Quota(Limits(), clock)
    for _ in range(1000):
        run(quota, 10**9, 10**9)


def test_a_rate_may_come_at_once_and_then_as_it_fills(clock: Clock) -> None:
    quota = Quota(Limits(requests=Rate(4, "s")), clock)
    for _ in range(4):
        run(quota)
    assert wait_of(quota) == pytest.approx(0.25)
    clock.seconds += 0.25
    run(quota)
    assert wait_of(quota) == pytest.approx(0.25)
    clock.seconds += 1000
    for _ in range(4):
        run(quota)
    assert wait_of(quota) == pytest.approx(0.25)


def test_a_rate_a_minute_fills_in_a_minute(clock: Clock) -> None:
    quota = Quota(Limits(requests=Rate(2, "m")), clock)
    run(quota)
    run(quota)
    assert wait_of(quota) == pytest.approx(30)


def test_what_runs_at_once_is_bounded(clock: Clock) -> None:
    quota = Quota(Limits(concurrent=2), clock)
    with ExitStack() as running:
        for _ in range(2):
            running.enter_context(quota.admitted(Use()))
        retry_seconds = wait_of(quota)
        assert retry_seconds is not None
        assert retry_seconds > 0
        assert quota.num_running == 2
    assert quota.num_running == 0
    run(quota)


def test_tokens_are_taken_before_and_settled_after(clock: Clock) -> None:
    quota = Quota(Limits(tokens=Rate(600, "m")), clock)
    use = Use(expected_tokens=500)
    with quota.admitted(use):
        assert wait_of(quota, 200) == pytest.approx(10)
        use.used_tokens = 100
    run(quota, 500, 500)
    assert wait_of(quota, 1) == pytest.approx(0.1)


def test_more_tokens_than_expected_are_owed(clock: Clock) -> None:
    quota = Quota(Limits(tokens=Rate(600, "m")), clock)
    run(quota, 10, 700)
    assert wait_of(quota, 1) == pytest.approx(10.1)


def test_a_failed_request_takes_no_tokens(clock: Clock) -> None:
    quota = Quota(Limits(tokens=Rate(600, "m")), clock)
    with pytest.raises(LookupError), quota.admitted(Use(expected_tokens=600)):
        raise LookupError
    run(quota, 600)


def test_a_refused_request_takes_nothing(clock: Clock) -> None:
    quota = Quota(Limits(requests=Rate(2, "m"), tokens=Rate(600, "m")), clock)
    run(quota, 600, 600)
    for _ in range(5):
        wait_of(quota, 600)
    clock.seconds += 60
    run(quota, 600, 600)


def test_a_request_beyond_the_limit_is_never_asked_to_come_back(clock: Clock) -> None:
    quota = Quota(Limits(tokens=Rate(600, "m")), clock)
    assert wait_of(quota, 601) is None
    run(quota, 600)


def test_changed_limits_hold_at_once_and_forgive_nothing(clock: Clock) -> None:
    quota = Quota(Limits(requests=Rate(10, "m")), clock)
    for _ in range(10):
        run(quota)
    quota.change(Limits(requests=Rate(60, "m")))
    assert wait_of(quota) == pytest.approx(1)
    quota.change(Limits())
    run(quota)
    quota.change(Limits(requests=Rate(1, "m")))
    run(quota)
    assert wait_of(quota) == pytest.approx(60)
    quota.change(Limits(concurrent=1))
    with quota.admitted(Use()):
        wait_of(quota)


@pytest.mark.parametrize("text", ["", "10", "10/h", "/s", "-1/s", "0/s", "1.5/s", "10/s ", "9999999999999/s"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="10/s or 600/m"):
        Rate.parse(text)
