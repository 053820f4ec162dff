"""An open loop of clients: requests arrive when they do, however the service is."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc
import grpc.aio
from google.rpc import error_details_pb2, status_pb2

from specdec.serving.refusals import STATUS_DETAILS_KEY
from specdec.v1 import generation_pb2, generation_pb2_grpc

_DEADLINE_SECONDS = 300.0


@dataclass(slots=True)
class Attempt:
    """One request as its client saw it."""

    sent: float
    """Seconds of `time.perf_counter`, as all times."""
    first: float | None = None
    """When its first token came; None: none did."""
    last: float | None = None
    num_tokens: int = 0
    finished: bool = False
    code: grpc.StatusCode | None = None
    """None: it was answered in full, or cut off with the load."""
    refused_seconds: float | None = None
    retry_seconds: float | None = None
    """What it was told when to try again; None: nothing."""

    @property
    def tpot_seconds(self) -> float | None:
        """Mean time a token after the first; None with fewer than two."""
        if self.first is None or self.last is None or self.num_tokens < 2:
            return None
        return (self.last - self.first) / (self.num_tokens - 1)


@dataclass
class OpenLoop:
    """Sends requests at a rate, with exponential times between them.

    Args:
        stub: of the service.
        make_request: from the number of a request.
        seed: of the times.
    """

    stub: generation_pb2_grpc.GenerationServiceAsyncStub
    make_request: Callable[[int], generation_pb2.GenerateRequest]
    seed: int = 0
    attempts: list[Attempt] = field(default_factory=list)

    async def run(self, requests_per_second: float, seconds: float) -> None:
        """Send for so long; then what still runs is cut off."""
        arrivals = random.Random(self.seed)
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds
        due = loop.time()
        running: set[asyncio.Task[None]] = set()
        number = 0
        try:
            while (due := due + arrivals.expovariate(requests_per_second)) < ends:
                await asyncio.sleep(max(due - loop.time(), 0.0))
                task = asyncio.create_task(self._send(number))
                running.add(task)
                task.add_done_callback(running.discard)
                number += 1
        finally:
            for task in list(running):
                task.cancel()
            await asyncio.gather(*list(running), return_exceptions=True)

    async def _send(self, number: int) -> None:
        attempt = Attempt(time.perf_counter())
        self.attempts.append(attempt)
        call = self.stub.Generate(self.make_request(number), timeout=_DEADLINE_SECONDS)
        try:
            async for response in call:
                now = time.perf_counter()
                if response.HasField("finished"):
                    attempt.finished = True
                elif response.delta.token_ids:
                    attempt.first = attempt.first or now
                    attempt.last = now
                    attempt.num_tokens += len(response.delta.token_ids)
        except grpc.aio.AioRpcError as error:
            attempt.code = error.code()
            attempt.refused_seconds = time.perf_counter() - attempt.sent
            attempt.retry_seconds = retry_seconds(error)
        finally:
            call.cancel()


def retry_seconds(error: grpc.aio.AioRpcError) -> float | None:
    """When the server said to try again (google.rpc.RetryInfo); None: it did not say."""
    for key, value in error.trailing_metadata() or ():
        if key == STATUS_DETAILS_KEY and isinstance(value, bytes):
            retry = error_details_pb2.RetryInfo()
            for detail in status_pb2.Status.FromString(value).details:
                if detail.Unpack(retry):
                    return float(retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9)
    return None
