"""A service without a model, for tests of what all services stand on; as a process and inside an event loop."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc

from specdec.errors import InvalidArgumentError, UnavailableError
from specdec.serving.health import Health
from specdec.serving.process import run
from specdec.settings import ServiceSettings, load_settings
from specdec.telemetry import names, tracing
from specdec.v1 import generation_pb2, generation_pb2_grpc

FULL_NAME = "specdec.v1.GenerationService"
MAX_MESSAGE_BYTES = 100_000


class ToyError(Exception):
    """A failure that the toy's process expects."""


class ToyService(generation_pb2_grpc.GenerationServiceServicer):
    """Streams `max_new_tokens` deltas, one every `pause_seconds`.

    Args:
        start_seconds: how long its start takes.
        start_error: what its start raises.
        pause_seconds: between two deltas.
    """

    full_names = (FULL_NAME,)
    max_message_bytes = MAX_MESSAGE_BYTES

    def __init__(
        self, *, start_seconds: float = 0.0, start_error: Exception | None = None, pause_seconds: float = 0.05
    ) -> None:
        self.steps: list[str] = []
        self._start_seconds = start_seconds
        self._start_error = start_error
        self._pause_seconds = pause_seconds
        self._num_running = 0
        self._is_draining = False

    def register(self, server: grpc.aio.Server) -> None:
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(self, server)

    async def start(self, health: Health) -> None:
        self.steps.append("start")
        await asyncio.sleep(self._start_seconds)
        if self._start_error is not None:
            raise self._start_error
        health.set_serving(True)

    async def drain(self) -> None:
        self.steps.append("drain")
        self._is_draining = True
        while self._num_running:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        self.steps.append("close")

    async def Generate(  # noqa: N802
        self, request: generation_pb2.GenerateRequest, context: Any
    ) -> AsyncIterator[generation_pb2.GenerateResponse]:
        if self._is_draining:
            raise UnavailableError("the service is going away; use another replica")
        self._num_running += 1
        try:
            with tracing.span(names.GENERATE, parent=tracing.from_metadata(context.invocation_metadata())):
                for index in range(request.max_new_tokens):
                    yield generation_pb2.GenerateResponse(delta=generation_pb2.Delta(text=str(index)))
                    await asyncio.sleep(self._pause_seconds)
                yield generation_pb2.GenerateResponse(finished=generation_pb2.Finished())
        finally:
            self._num_running -= 1

    async def GenerateUnary(  # noqa: N802
        self, request: generation_pb2.GenerateUnaryRequest, context: Any
    ) -> generation_pb2.GenerateUnaryResponse:
        if request.request.text == "refuse":
            raise InvalidArgumentError("text is not what this toy likes")
        if request.request.text == "bug":
            raise RuntimeError("a detail that stays in the log")
        return generation_pb2.GenerateUnaryResponse(completions=[generation_pb2.Completion(text=request.request.text)])


def main() -> int:
    """The toy as a process; TOY_START_ERROR and TOY_START_SECONDS say how its start goes."""
    errors: dict[str, Exception | None] = {
        "": None,
        "refusal": InvalidArgumentError("the model is not for toys; choose another"),
        "expected": ToyError("no such toy; choose another"),
        "bug": RuntimeError("unexpected"),
    }

    def make_service() -> ToyService:
        return ToyService(
            start_seconds=float(os.environ.get("TOY_START_SECONDS", "0")),
            start_error=errors[os.environ.get("TOY_START_ERROR", "")],
        )

    settings = load_settings(ServiceSettings, program="toy")
    return run(make_service, settings, name="toy", expected_errors=(ToyError,))


if __name__ == "__main__":
    sys.exit(main())
