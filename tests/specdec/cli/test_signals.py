import asyncio
import os
import signal

import pytest

from specdec.cli.signals import StoppedBySignal, until_signal


async def test_the_result_of_work_that_ends_by_itself_is_returned() -> None:
    async def work() -> int:
        return 5

    assert await until_signal(work()) == 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_cancels_the_work_and_waits_for_its_cleaning_up(number: signal.Signals) -> None:
    cleaned = False

    async def work() -> None:
        nonlocal cleaned
        asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), number)
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0.05)
            cleaned = True

    with pytest.raises(StoppedBySignal) as stopped:
        await until_signal(work())
    assert cleaned
    assert stopped.value.exit_status == 128 + number


async def test_a_second_signal_cancels_the_cleaning_up() -> None:
    steps = []

    async def work() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(0.05, os.kill, os.getpid(), signal.SIGTERM)
        loop.call_later(0.15, os.kill, os.getpid(), signal.SIGINT)
        try:
            await asyncio.sleep(30)
        finally:
            steps.append("cleaning")
            await asyncio.sleep(30)
            steps.append("clean")

    with pytest.raises(StoppedBySignal) as stopped:
        await until_signal(work())
    assert steps == ["cleaning"]
    assert stopped.value.exit_status == 128 + signal.SIGTERM


async def test_failures_and_cancellation_from_elsewhere_pass_through() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await until_signal(fail())
    task = asyncio.create_task(until_signal(asyncio.sleep(30)))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
