"""Clients in a closed loop, and what each of their requests came to."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import grpc.aio

from specdec.client import (
    ChangedModelError,
    GenerationClient,
    GenerationResult,
    IncompleteGenerationError,
    num_completions,
)
from specdec.v1 import generation_pb2
from tests.chaos.comparing import Difference, compare

_REQUEST_SECONDS = 120.0


@dataclass(slots=True, eq=False)
class Stream:
    """One request as its client saw it; times are seconds of `time.monotonic`."""

    number: int
    """Which of the requests."""
    sent: float
    arrivals: list[float] = field(default_factory=list)
    """Of deltas."""
    difference: Difference = field(default_factory=Difference)
    """From the undisturbed output."""
    failure: str = ""
    is_cancelled: bool = False
    is_over: bool = False

    @property
    def intervals(self) -> list[tuple[float, float]]:
        """From one delta to the next; the first one from sending to the first delta."""
        times = [self.sent, *self.arrivals]
        return list(itertools.pairwise(times))

    @property
    def longest_gap_seconds(self) -> float:
        """Between two deltas; 0 with fewer."""
        return max((end - begin for begin, end in self.intervals[1:]), default=0.0)


class Load:
    """Sends requests one after the other with each of some clients, and compares what comes.

    Args:
        addresses: of the orchestrators, for every client.
        requests: sent in turn, and again from the first one when all were.
        expected: of each request the undisturbed completions.
        num_clients: at once.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        requests: Sequence[generation_pb2.GenerateRequest],
        expected: Sequence[Sequence[GenerationResult]],
        num_clients: int,
    ) -> None:
        self._addresses = list(addresses)
        self._requests = requests
        self._expected = expected
        self._num_clients = num_clients
        self._next = 0
        self._running: dict[Stream, asyncio.Task[None]] = {}
        self._has_running = asyncio.Event()
        self.streams: list[Stream] = []
        """All of them, those that run included."""
        self.num_deltas = 0
        """That have come to all clients."""

    async def run(self, is_enough: Callable[[], bool]) -> None:
        """Send all requests at least once, and go on until it is enough."""
        await asyncio.gather(*(self._client(is_enough) for _ in range(self._num_clients)))

    async def cancel_one(self, which: int) -> int:
        """Break a running request off, as its client; it is sent again. Gives its number."""
        await self._has_running.wait()
        streams = list(self._running)
        stream = streams[which % len(streams)]
        stream.is_cancelled = True
        self._running[stream].cancel()
        return stream.number

    async def _client(self, is_enough: Callable[[], bool]) -> None:
        async with GenerationClient(self._addresses, timeout_seconds=_REQUEST_SECONDS) as client:
            while self._next < len(self._requests) or not is_enough():
                number = self._next % len(self._requests)
                self._next += 1
                while not await self._send(client, number):
                    pass

    async def _send(self, client: GenerationClient, number: int) -> bool:
        """One request; False: it was broken off."""
        stream = Stream(number, time.monotonic())
        self.streams.append(stream)
        task = asyncio.create_task(self._collect(client, stream))
        self._running[stream] = task
        self._has_running.set()
        try:
            await asyncio.wait({task})
        finally:
            del self._running[stream]
            if not self._running:
                self._has_running.clear()
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        if not task.cancelled():
            task.result()
        stream.is_over = True
        return not stream.is_cancelled

    async def _collect(self, client: GenerationClient, stream: Stream) -> None:
        request = self._requests[stream.number]
        results = [GenerationResult(completion=index) for index in range(num_completions(request))]
        try:
            async with aclosing(client.generate(request)) as responses:
                async for response in responses:
                    if response.HasField("delta"):
                        stream.arrivals.append(time.monotonic())
                        self.num_deltas += 1
                    for result in results:
                        result.add(response)
        except grpc.aio.AioRpcError as error:
            stream.failure = f"{error.code().name}: {error.details()}"
        except (IncompleteGenerationError, ChangedModelError) as error:
            stream.failure = str(error)
        else:
            stream.difference = difference(self._expected[stream.number], results)


def difference(expected: Sequence[GenerationResult], actual: Sequence[GenerationResult]) -> Difference:
    """Of all completions of a request."""
    total = Difference()
    for right, result in zip(expected, actual, strict=True):
        total += compare(right.token_ids, right.text, result.token_ids, result.text)
        if [entry.token_id for entry in result.logprobs] != [entry.token_id for entry in right.logprobs]:
            total += Difference(num_changed=1)
    return total
