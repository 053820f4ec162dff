"""A small run of the chaos suite; `make chaos` is the large one."""

from tests.chaos.run import ChaosOptions, run_chaos


async def test_no_token_is_lost_duplicated_or_changed_whatever_breaks() -> None:
    said: list[str] = []
    options = ChaosOptions(num_requests=20, num_faults=10, max_new_tokens=64, rtt_seconds=0.01, seed=5, max_seconds=60)
    report = await run_chaos(options, said.append)
    assert report.is_clean, "\n".join([*said, *report.lines()])
    assert report.num_faults == 10
    assert report.num_requests >= 20
