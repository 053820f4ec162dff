"""The orchestrators that a client may ask: which one next, and when."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc import status_pb2

from specdec.errors import from_status
from specdec.serving.refusals import STATUS_DETAILS_KEY
from specdec.v1 import generation_pb2_grpc

_FIRST_REST_SECONDS = 0.1
_LAST_REST_SECONDS = 2.0
_PASSING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""How calls end whose server is not there, or cuts them when it goes. That this side cancels is no `AioRpcError`."""


class Endpoint:
    """One orchestrator, and for how long it is left alone after failures.

    Args:
        address: for messages.
        channel: to it.
    """

    def __init__(self, address: str, channel: grpc.aio.Channel) -> None:
        self.address = address
        self.channel = channel
        self.stub = generation_pb2_grpc.GenerationServiceStub(channel)
        self.rests_until = 0.0
        """In seconds of the event loop's clock."""
        self._num_failures = 0

    def worked(self) -> None:
        """It answered."""
        self._num_failures = 0
        self.rests_until = 0.0

    def failed(self, retry_seconds: float | None) -> None:
        """It did not: leave it alone, twice as long each time in a row, and at least as long as it asks for.

        Args:
            retry_seconds: its own advice; None: it gave none.
        """
        rest_seconds = min(_FIRST_REST_SECONDS * 2**self._num_failures, _LAST_REST_SECONDS)
        self._num_failures += 1
        # Spread out, so that the clients of one lost orchestrator do not come back all at once.
        rest_seconds = max(rest_seconds * random.uniform(0.5, 1.0), retry_seconds or 0.0)  # noqa: S311
        self.rests_until = asyncio.get_running_loop().time() + rest_seconds


class Endpoints:
    """Takes them in turn, and passes over those that rest as long as there are others.

    Args:
        endpoints: at least one.
    """

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints = list(endpoints)
        self._next = 0

    def __len__(self) -> int:
        return len(self._endpoints)

    def choose(self) -> Endpoint:
        """The next one that does not rest, or else the one whose rest ends first."""
        now = asyncio.get_running_loop().time()
        in_turn = self._endpoints[self._next :] + self._endpoints[: self._next]
        chosen = min(in_turn, key=lambda endpoint: max(endpoint.rests_until, now))
        self._next = (self._endpoints.index(chosen) + 1) % len(self._endpoints)
        return chosen

    async def close(self) -> None:
        """Close all channels."""
        await asyncio.gather(*(endpoint.channel.close() for endpoint in self._endpoints))


class Tries:
    """The calls of one request: where each goes, and when to give up.

    Args:
        endpoints: of the client.
        timeout_seconds: for all of them together.
        max_failures: after so many in a row one more is raised.
    """

    def __init__(self, endpoints: Endpoints, timeout_seconds: float, max_failures: int) -> None:
        self._endpoints = endpoints
        self._max_failures = max_failures
        self._num_failures = 0
        self._deadline = asyncio.get_running_loop().time() + timeout_seconds
        self._failure: Exception | None = None

    @property
    def remaining_seconds(self) -> float:
        """Until the deadline."""
        return max(0.0, self._deadline - asyncio.get_running_loop().time())

    async def next(self) -> Endpoint:
        """Where to send the next call, once that may be done.

        Raises:
            Exception: the last failure, if the wait would be too long.
        """
        endpoint = self._endpoints.choose()
        if self._failure is not None:
            rest_seconds = endpoint.rests_until - asyncio.get_running_loop().time()
            if rest_seconds >= self.remaining_seconds:
                raise self._failure
            await asyncio.sleep(rest_seconds)
        return endpoint

    def succeeded(self, endpoint: Endpoint) -> None:
        """Something has come from there."""
        endpoint.worked()
        self._num_failures = 0

    def failed(self, endpoint: Endpoint, failure: Exception, *, can_go_on: bool = True) -> None:
        """A call ended before the request did.

        Args:
            endpoint: where it was sent.
            failure: how it ended.
            can_go_on: whether another call can bring the rest.

        Raises:
            Exception: the failure, if another call would not help or there were too many.
        """
        retry_seconds: float | None = None
        if isinstance(failure, grpc.aio.AioRpcError):
            retry_seconds = retry_seconds_of(failure)
            is_full = failure.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and retry_seconds is not None
            if not is_full and failure.code() not in _PASSING:
                raise failure
        endpoint.failed(retry_seconds)
        self._num_failures += 1
        self._failure = failure
        if not can_go_on or self._num_failures > self._max_failures:
            raise failure


def retry_seconds_of(error: grpc.aio.AioRpcError) -> float | None:
    """When the server says the same call may succeed (google.rpc.RetryInfo); None: it does not say."""
    details = next((value for key, value in error.trailing_metadata() or () if key == STATUS_DETAILS_KEY), None)
    if not isinstance(details, bytes):
        return None
    try:
        return from_status(status_pb2.Status.FromString(details)).retry_seconds
    except DecodeError:
        return None
