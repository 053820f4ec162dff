import statistics

import pytest

from benchmarks.links.conditions import DeliverySchedule, LinkConditions


def test_each_way_takes_half_of_the_round_trip() -> None:
    schedule = DeliverySchedule(LinkConditions(rtt_seconds=0.02))
    assert [schedule.due(arrived, 10) for arrived in (1.0, 1.0, 1.5)] == pytest.approx([1.01, 1.01, 1.51])


def test_jitter_spreads_evenly_around_the_delay() -> None:
    schedule = DeliverySchedule(LinkConditions(rtt_seconds=0.02, jitter_seconds=0.004))
    delays = [schedule.due(float(arrived), 1) - arrived for arrived in range(1, 2001)]
    assert 0.006 <= min(delays) < 0.0062
    assert 0.0138 < max(delays) <= 0.014
    assert statistics.mean(delays) == pytest.approx(0.01, abs=0.0003)


def test_jitter_never_lets_bytes_overtake_each_other() -> None:
    schedule = DeliverySchedule(LinkConditions(rtt_seconds=0.02, jitter_seconds=0.01))
    arrivals = [1 + 0.0001 * index for index in range(500)]
    due = [schedule.due(arrived, 1) for arrived in arrivals]
    assert due == sorted(due)
    assert len(set(due)) > 10


def test_jitter_is_that_of_the_seed_and_the_stream() -> None:
    def delays(seed: int, stream: str) -> list[float]:
        schedule = DeliverySchedule(LinkConditions(rtt_seconds=1.0, jitter_seconds=0.5, seed=seed), stream)
        return [schedule.due(2.0 * arrived, 1) for arrived in range(5)]

    assert delays(1, "a") == delays(1, "a")
    assert delays(1, "a") != delays(2, "a")
    assert delays(1, "a") != delays(1, "b")


def test_bandwidth_makes_chunks_wait_for_each_other() -> None:
    schedule = DeliverySchedule(LinkConditions(rtt_seconds=0.2, bytes_per_second=1000))
    assert [schedule.due(1.0, 500), schedule.due(1.0, 500), schedule.due(5.0, 100)] == pytest.approx([1.6, 2.1, 5.2])


def test_changed_conditions_hold_from_the_next_chunk_on_and_keep_the_order() -> None:
    schedule = DeliverySchedule(LinkConditions(rtt_seconds=2.0))
    assert schedule.due(1.0, 1) == 2.0
    schedule.change(LinkConditions())
    assert schedule.due(1.1, 1) == 2.0
    assert schedule.due(3.0, 1) == 3.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"rtt_seconds": -1.0},
        {"rtt_seconds": 1.0, "jitter_seconds": 0.6},
        {"jitter_seconds": -0.1},
        {"bytes_per_second": 0},
    ],
)
def test_conditions_that_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"time|bandwidth"):
        LinkConditions(**wrong)  # type: ignore[arg-type]
