import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest
from grpc_health.v1 import health_pb2

from specdec.errors import ResourceExhaustedError
from specdec.serving.health import LIVENESS_NAME, Health

pytestmark = pytest.mark.timeout(30)

NAME = "specdec.v1.TargetService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


def request_of(name: str) -> Any:
    return health_pb2.HealthCheckRequest(service=name)


async def statuses(health: Health) -> list[int]:
    """Of the overall name, the service, and the liveness."""
    return [(await health.Check(request_of(name), None)).status for name in ("", NAME, LIVENESS_NAME)]


async def test_the_names_follow_what_the_service_says() -> None:
    health = Health([NAME])
    assert await statuses(health) == [NOT_SERVING, NOT_SERVING, SERVING]
    health.set_serving(True)
    assert await statuses(health) == [SERVING, SERVING, SERVING]
    health.set_serving(False)
    assert await statuses(health) == [NOT_SERVING, NOT_SERVING, SERVING]


async def test_a_closed_service_is_alive_and_never_serves_again() -> None:
    health = Health([NAME])
    health.set_serving(True)
    health.close()
    health.set_serving(True)
    assert not health.is_serving
    assert await statuses(health) == [NOT_SERVING, NOT_SERVING, SERVING]


async def test_a_failed_service_is_to_be_restarted() -> None:
    health = Health([NAME])
    health.set_serving(True)
    health.fail()
    health.set_serving(True)
    assert await statuses(health) == [NOT_SERVING, NOT_SERVING, NOT_SERVING]


async def test_a_watcher_of_an_unknown_name_is_told_so() -> None:
    watch = Health([NAME]).Watch(request_of("specdec.v1.Nothing"), None)
    assert (await anext(watch)).status == SERVICE_UNKNOWN


async def test_a_change_before_the_watcher_waits_is_not_lost() -> None:
    health = Health([NAME])
    watch = health.Watch(request_of(""), None)
    assert (await anext(watch)).status == NOT_SERVING
    health.set_serving(True)
    assert (await asyncio.wait_for(anext(watch), 5)).status == SERVING


async def test_a_watcher_that_stops_reading_holds_up_nobody() -> None:
    health = Health([NAME])
    stuck, attentive = health.Watch(request_of(""), None), health.Watch(request_of(""), None)
    await anext(stuck)
    await anext(attentive)
    for serving in (True, False, True):
        health.set_serving(serving)
        assert (await asyncio.wait_for(anext(attentive), 5)).status == (SERVING if serving else NOT_SERVING)
        assert (await statuses(health))[0] == (SERVING if serving else NOT_SERVING)


async def test_a_watcher_that_left_is_forgotten() -> None:
    health = Health([NAME])
    watch = health.Watch(request_of(""), None)
    await anext(watch)
    await watch.aclose()  # type: ignore[attr-defined]
    assert not health._watchers


async def test_readiness_is_logged_once_a_change(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    health = Health([NAME])
    for serving in (True, True, False, False):
        health.set_serving(serving)
    assert [record.getMessage() for record in caplog.records] == ["ready", "not ready"]


async def test_watchers_are_bounded_because_anybody_may_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.serving.health.MAX_WATCHERS", 2)
    health = Health([NAME])
    watches = [health.Watch(request_of(""), None) for _ in range(3)]
    for watch in watches[:2]:
        await anext(watch)
    with pytest.raises(ResourceExhaustedError, match="2 watch already"):
        await anext(watches[2])
    await cast("AsyncGenerator[Any, None]", watches[0]).aclose()
    last = health.Watch(request_of(""), None)
    assert (await anext(last)).status == NOT_SERVING
    for watch in (watches[1], last):
        await cast("AsyncGenerator[Any, None]", watch).aclose()
