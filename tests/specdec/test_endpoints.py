"""Which orchestrator a client asks next, when, and when it gives up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from specdec.client import _FAILURES_PER_ADDRESS
from specdec.endpoints import Endpoint, Endpoints, Tries, retry_seconds_of
from specdec.errors import ResourceExhaustedError
from specdec.serving.channel import open_channel
from specdec.serving.refusals import STATUS_DETAILS_KEY


@pytest.fixture
async def endpoints() -> AsyncIterator[list[Endpoint]]:
    made = [Endpoint(name, open_channel("127.0.0.1:1", max_message_bytes=1 << 20)) for name in ("a", "b")]
    yield made
    await Endpoints(made).close()


def failure(
    code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE, retry_seconds: float | None = None
) -> grpc.aio.AioRpcError:
    trailing = grpc.aio.Metadata()
    if retry_seconds is not None:
        status = ResourceExhaustedError("full", retry_seconds).to_status()
        trailing.add(STATUS_DETAILS_KEY, status.SerializeToString())
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing)


async def test_they_are_asked_in_turn(endpoints: list[Endpoint]) -> None:
    both = Endpoints(endpoints)
    assert [both.choose().address for _ in range(4)] == ["a", "b", "a", "b"]


async def test_one_that_failed_is_passed_over_until_the_other_fails_too(endpoints: list[Endpoint]) -> None:
    both = Endpoints(endpoints)
    endpoints[0].failed(None)
    assert [both.choose().address for _ in range(3)] == ["b", "b", "b"]
    endpoints[1].failed(5.0)
    assert both.choose().address == "a"


async def test_rests_grow_and_end_with_an_answer(endpoints: list[Endpoint]) -> None:
    now = asyncio.get_running_loop().time()
    endpoint = endpoints[0]
    endpoint.failed(None)
    assert 0.05 <= endpoint.rests_until - now <= 0.2
    for _ in range(9):
        endpoint.failed(None)
    assert 1.0 <= endpoint.rests_until - now <= 2.1
    endpoint.worked()
    assert endpoint.rests_until == 0.0


async def test_the_advice_of_the_server_is_heeded(endpoints: list[Endpoint]) -> None:
    tries = Tries(Endpoints(endpoints[:1]), 2.0, max_failures=9)
    now = asyncio.get_running_loop().time()
    tries.failed(endpoints[0], failure(grpc.StatusCode.RESOURCE_EXHAUSTED, 0.3))
    assert (await tries.next()) is endpoints[0]
    assert asyncio.get_running_loop().time() - now >= 0.29
    tries.failed(endpoints[0], refused := failure(retry_seconds=30.0))
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await tries.next()
    assert raised.value is refused, "the wait would outlast the request"


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNAUTHENTICATED,
    ],
)
async def test_what_another_call_would_not_help_is_raised(endpoints: list[Endpoint], code: grpc.StatusCode) -> None:
    tries = Tries(Endpoints(endpoints), 9.0, max_failures=9)
    with pytest.raises(grpc.aio.AioRpcError):
        tries.failed(endpoints[0], failure(code))
    assert endpoints[0].rests_until == 0.0, "it is not its fault"


async def test_failures_in_a_row_are_bounded(endpoints: list[Endpoint]) -> None:
    tries = Tries(Endpoints(endpoints), 9.0, max_failures=2)
    for _ in range(2):
        tries.failed(endpoints[0], failure())
    tries.succeeded(endpoints[1])
    for _ in range(2):
        tries.failed(endpoints[0], failure(grpc.StatusCode.CANCELLED))
    with pytest.raises(grpc.aio.AioRpcError):
        tries.failed(endpoints[1], failure())


async def test_trying_again_lasts_for_seconds_however_many_endpoints_there_are(
    endpoints: list[Endpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rests of several run side by side, so each has to have its own share of the failures."""
    now = 100.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    both = Endpoints(endpoints)
    tries = Tries(both, 600.0, max_failures=_FAILURES_PER_ADDRESS * len(both))

    def fail_again() -> None:
        nonlocal now
        endpoint = both.choose()
        now = max(now, endpoint.rests_until)
        tries.failed(endpoint, failure())

    with contextlib.suppress(grpc.aio.AioRpcError):
        while True:
            fail_again()
    assert 8 < now - 100 < 30


async def test_damaged_advice_is_none() -> None:
    trailing = grpc.aio.Metadata((STATUS_DETAILS_KEY, b"\xff\xff"))
    assert retry_seconds_of(grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), trailing)) is None
    assert retry_seconds_of(failure(retry_seconds=1.5)) == 1.5
