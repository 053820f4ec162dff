"""Clients in a closed loop."""

from __future__ import annotations

import asyncio
import itertools
from types import TracebackType

from typing_extensions import Self

from specdec.client import GenerationClient, GenerationResult
from specdec.v1 import generation_pb2, sampling_pb2

_NUM_REQUESTS = 24
_MAX_NEW_TOKENS = 24
_PAUSE_SECONDS = 0.1
"""Between two requests of a client, so that processes which start have something of the processors, too."""


class Load:
    """Sends requests while it is entered; an asynchronous context manager that waits for those in flight.

    Args:
        address: of the orchestrator.
        num_clients: requests at once.
    """

    def __init__(self, address: str, num_clients: int) -> None:
        self.num_finished = 0
        self.failures: list[str] = []
        self._address = address
        self._num_clients = num_clients
        self._numbers = itertools.count()
        self._texts: dict[int, str] = {}
        self._is_over = False
        self._clients: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._clients = [asyncio.create_task(self._send()) for _ in range(self._num_clients)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        await asyncio.gather(*self._clients)

    async def finished(self, number: int, seconds: float) -> None:
        """Wait until so many more requests have ended well.

        Raises:
            TimeoutError: it takes longer than `seconds`.
        """
        wanted = self.num_finished + number
        deadline = asyncio.get_running_loop().time() + seconds
        while self.num_finished < wanted:
            if asyncio.get_running_loop().time() > deadline:
                raise TimeoutError(f"{wanted - self.num_finished} of {number} requests have not ended in {seconds:g} s")
            await asyncio.sleep(0.05)

    async def _send(self) -> None:
        async with GenerationClient(self._address) as client:
            while not self._is_over:
                number = next(self._numbers) % _NUM_REQUESTS
                try:
                    self._compare(number, await client.collect(_request(number)))
                except Exception as error:  # noqa: BLE001
                    self.failures.append(f"{type(error).__name__}: {error}")
                await asyncio.sleep(_PAUSE_SECONDS)

    def _compare(self, number: int, result: GenerationResult) -> None:
        """The text of a request is the same each time, wherever its rounds were run."""
        if self._texts.setdefault(number, result.text) != result.text:
            self.failures.append(f"request {number} has another text than before")
        self.num_finished += 1


def _request(number: int) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(
        text=f"{number} " + "abcdefgh"[number % 8] * 12,
        max_new_tokens=_MAX_NEW_TOKENS,
        sampling=sampling_pb2.SamplingParams(temperature=0.8, seed=number),
    )
