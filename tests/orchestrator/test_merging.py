"""Several streams as one."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from orchestrator.merging import merged


class Streams:
    """Counts how many of its streams are open."""

    def __init__(self) -> None:
        self.num_open = 0

    async def count(self, name: str, items: int, failure: Exception | None = None) -> AsyncGenerator[str, None]:
        self.num_open += 1
        try:
            for number in range(items):
                await asyncio.sleep(0)
                yield f"{name}{number}"
            if failure is not None:
                raise failure
        finally:
            self.num_open -= 1


@pytest.mark.parametrize("names", ["a", "ab", "abcde"])
async def test_everything_comes_and_each_stream_in_order(names: str) -> None:
    streams = Streams()
    items = [item async for item in merged([streams.count(name, 5) for name in names])]
    assert sorted(items) == [f"{name}{number}" for name in names for number in range(5)]
    for name in names:
        assert [item for item in items if item.startswith(name)] == [f"{name}{number}" for number in range(5)]
    assert streams.num_open == 0


async def test_a_single_stream_has_nothing_around_it() -> None:
    alone = Streams().count("a", 5)
    assert merged([alone]) is alone


@pytest.mark.parametrize("others", ["", "bc"])
async def test_a_failure_closes_the_others(others: str) -> None:
    streams = Streams()
    failing = streams.count("a", 2, ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        async for _ in merged([failing, *(streams.count(name, 1000) for name in others)]):
            pass
    assert streams.num_open == 0


@pytest.mark.parametrize("names", ["a", "abc"])
async def test_closing_closes_all(names: str) -> None:
    streams = Streams()
    everything = merged([streams.count(name, 1000) for name in names])
    await anext(everything)
    await everything.aclose()
    assert streams.num_open == 0


async def test_streams_run_ahead_by_a_bounded_number_of_items() -> None:
    produced = 0

    async def stream() -> AsyncGenerator[int, None]:
        nonlocal produced
        for number in range(1000):
            produced += 1
            yield number

    everything = merged([stream(), stream()])
    await anext(everything)
    await asyncio.sleep(0.05)
    assert produced <= 8
    await everything.aclose()
