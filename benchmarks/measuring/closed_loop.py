"""A closed loop of clients: each sends its next request when the last one is answered."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from specdec.client import GenerationClient
from specdec.v1 import generation_pb2


class Delta(NamedTuple):
    """What one round brought to the client."""

    arrived: float
    """Seconds of `time.perf_counter`."""
    num_tokens: int
    round: int
    """0 is the prefill."""
    num_draft_tokens: int
    num_accepted_tokens: int


@dataclass(slots=True)
class RequestRecord:
    """One request as its client saw it."""

    prompt: int
    """Which of the prompts."""
    sent: float
    deltas: list[Delta] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finished: float | None = None
    """None: it was cut off with the load."""
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_fallback_rounds: int = 0

    @property
    def ttft_seconds(self) -> float | None:
        """From sending to the first token; None if there was none."""
        return self.deltas[0].arrived - self.sent if self.deltas else None

    @property
    def tpot_seconds(self) -> float | None:
        """Mean time a token after the first; None with fewer than two deltas."""
        num_tokens = sum(delta.num_tokens for delta in self.deltas[1:])
        return (self.deltas[-1].arrived - self.deltas[0].arrived) / num_tokens if num_tokens else None


class Load:
    """Clients that are at work."""

    def __init__(self, records: list[RequestRecord], clients: list[asyncio.Task[None]]) -> None:
        self.records = records
        """Of all requests sent so far, in their order."""
        self._clients = clients

    async def go_on(self, seconds: float) -> None:
        """Let them work for so long.

        Raises:
            grpc.aio.AioRpcError: a request failed.
            IncompleteGenerationError: a stream ended early.
        """
        done, _ = await asyncio.wait(self._clients, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for client in done:
            client.result()

    async def reach_all(self) -> None:
        """Wait until every client has had a first token."""
        while sum(bool(record.deltas) for record in list(self.records)) < len(self._clients):
            await self.go_on(0.01)


class ClosedLoop:
    """Makes loads of one kind of request.

    Args:
        client: of the service.
        make_request: from the number of a prompt and K, where None leaves K to the server.
        num_prompts: requests take the prompts in turn.
    """

    def __init__(
        self,
        client: GenerationClient,
        make_request: Callable[[int, int | None], generation_pb2.GenerateRequest],
        num_prompts: int,
    ) -> None:
        self._client = client
        self._make_request = make_request
        self._num_prompts = num_prompts

    @asynccontextmanager
    async def load(
        self, num_clients: int, num_draft_tokens: int | None, *, streams: bool = True
    ) -> AsyncIterator[Load]:
        """Clients at work while the block runs; then their requests are cut off.

        Args:
            num_clients: how many requests run at once.
            num_draft_tokens: K of each; None: chosen by the server.
            streams: False: unary calls, which tell nothing before their end.
        """
        records: list[RequestRecord] = []
        prompts = (number % self._num_prompts for number in itertools.count())

        async def work() -> None:
            while True:
                record = RequestRecord(next(prompts), time.perf_counter())
                records.append(record)
                request = self._make_request(record.prompt, num_draft_tokens)
                await (self._stream(request, record) if streams else self._wait(request, record))

        clients = [asyncio.create_task(work()) for _ in range(num_clients)]
        try:
            yield Load(records, clients)
        finally:
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)

    async def _stream(self, request: generation_pb2.GenerateRequest, record: RequestRecord) -> None:
        async for response in self._client.generate(request):
            if response.HasField("delta"):
                delta, report = response.delta, response.delta.round
                record.token_ids.extend(delta.token_ids)
                record.deltas.append(
                    Delta(
                        time.perf_counter(),
                        len(delta.token_ids),
                        report.round,
                        report.num_draft_tokens,
                        report.num_accepted_tokens,
                    )
                )
            elif response.HasField("finished"):
                self._finish(record, response.finished)

    async def _wait(self, request: generation_pb2.GenerateRequest, record: RequestRecord) -> None:
        answer = await self._client.generate_unary(request)
        record.token_ids.extend(answer.completions[0].token_ids)
        self._finish(record, answer.completions[0].finished)

    @staticmethod
    def _finish(record: RequestRecord, finished: generation_pb2.Finished) -> None:
        record.finished = time.perf_counter()
        record.num_prompt_tokens = finished.usage.num_prompt_tokens
        record.num_cached_tokens = finished.usage.num_cached_tokens
        record.num_fallback_rounds = finished.stats.num_fallback_rounds
