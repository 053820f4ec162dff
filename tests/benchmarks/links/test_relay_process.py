import asyncio
import os
import statistics
from collections.abc import Iterator

import pytest

from benchmarks.links.conditions import LinkConditions
from benchmarks.links.echo_probe import EchoProbe, EchoServer
from benchmarks.links.relay_process import RelayFailedError, RelayProcess


@pytest.fixture
def echo() -> Iterator[EchoServer]:
    with EchoServer() as server:
        yield server


def probe(address: str, count: int) -> list[float]:
    with EchoProbe(address) as open_probe:
        open_probe.rtt_seconds()
        return [open_probe.rtt_seconds() for _ in range(count)]


@pytest.mark.parametrize("rtt_ms", [0.5, 5, 20, 80])
async def test_round_trips_take_what_was_asked_for(echo: EchoServer, rtt_ms: float) -> None:
    async with RelayProcess(echo.address, LinkConditions(rtt_seconds=rtt_ms / 1e3)) as relay:
        seconds = await asyncio.to_thread(probe, relay.address, 12)
    assert min(seconds) >= rtt_ms / 1e3
    # The best of them: what the relay can do, whatever else this machine is busy with.
    assert min(seconds) < 1.1 * rtt_ms / 1e3 + 0.002


async def test_jitter_is_around_the_round_trip(echo: EchoServer) -> None:
    conditions = LinkConditions(rtt_seconds=0.04, jitter_seconds=0.01)
    async with RelayProcess(echo.address, conditions) as relay:
        seconds = await asyncio.to_thread(probe, relay.address, 40)
    assert min(seconds) < 0.036
    assert min(seconds) >= 0.02
    assert max(seconds) > 0.044
    assert 0.034 < statistics.median(seconds) < 0.055


async def test_a_burst_comes_through_as_a_burst(echo: EchoServer) -> None:
    """Delays are deadlines: forty chunks sent within milliseconds take one delay, not forty."""
    async with RelayProcess(echo.address, LinkConditions(rtt_seconds=0.1)) as relay:
        host, _, port = relay.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        loop = asyncio.get_running_loop()
        began = loop.time()
        for index in range(40):
            writer.write(bytes([index]))
            await asyncio.sleep(0.001)
        assert await reader.readexactly(40) == bytes(range(40))
        assert 0.1 <= loop.time() - began < 0.8
        writer.close()
        await writer.wait_closed()


async def test_commands(echo: EchoServer) -> None:
    async with RelayProcess(echo.address) as relay:
        with EchoProbe(relay.address) as open_probe:
            assert await asyncio.to_thread(open_probe.rtt_seconds) < 0.2
            await relay.change(LinkConditions(rtt_seconds=0.3))
            assert await asyncio.to_thread(open_probe.rtt_seconds) >= 0.3
            await relay.change(LinkConditions())
            await relay.freeze()
            waiting = asyncio.create_task(asyncio.to_thread(open_probe.rtt_seconds))
            await asyncio.sleep(0.3)
            assert not waiting.done()
            await relay.thaw()
            assert await waiting >= 0.3
            await relay.refuse()
            with pytest.raises(ConnectionRefusedError):
                EchoProbe(relay.address)
            await relay.accept()
            with EchoProbe(relay.address) as second:
                await asyncio.to_thread(second.rtt_seconds)
            await relay.cut()
            with pytest.raises(ConnectionError):
                await asyncio.to_thread(open_probe.rtt_seconds)
        counts = await relay.counts()
        assert counts.num_connections == 2
        assert counts.num_cut >= 1
        assert counts.num_delivered_bytes == 4 * 2 * 64


async def test_a_port_in_use(echo: EchoServer) -> None:
    with pytest.raises(RelayFailedError, match="in use"):
        async with RelayProcess(echo.address, listen=echo.address):
            pass


async def test_the_process_ends_with_the_context(echo: EchoServer) -> None:
    async with RelayProcess(echo.address) as relay:
        assert relay._process is not None
        number = relay._process.pid
        os.kill(number, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)
    with pytest.raises(RelayFailedError, match="not started"):
        await relay.cut()
