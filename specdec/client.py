"""Client of the generation service: the stream as it comes, or collected into one result."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from types import TracebackType

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from specdec.draft_source import source_name
from specdec.serving.channel import open_channel
from specdec.v1 import generation_pb2, generation_pb2_grpc, model_pb2, sampling_pb2, target_pb2

_TIMEOUT_SECONDS = 3600.0
_MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Room for a unary answer that lists log-probabilities for a whole context."""


class IncompleteGenerationError(Exception):
    """The stream ended without its final message: the generation was aborted, and the text is only a part of it."""


@dataclass
class GenerationResult:
    """What a stream of responses adds up to for one completion. `finished` is None until its last message has come."""

    completion: int = 0
    """Which one, of several."""
    started: generation_pb2.Started | None = None
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[sampling_pb2.TokenLogprobs] = field(default_factory=list)
    """One entry for each token, if they were asked for."""
    rounds: list[generation_pb2.RoundReport] = field(default_factory=list)
    """Round 0 is the prefill."""
    finished: generation_pb2.Finished | None = None

    def add(self, response: generation_pb2.GenerateResponse) -> None:
        """Take in the next response of the stream; what belongs to another completion is passed over."""
        event = response.WhichOneof("event")
        if event == "started":
            self.started = response.started
        elif event == "delta" and response.delta.completion == self.completion:
            self.text += response.delta.text
            self.token_ids.extend(response.delta.token_ids)
            self.logprobs.extend(response.delta.logprobs)
            self.rounds.append(response.delta.round)
        elif event == "finished" and response.finished.completion == self.completion:
            self.finished = response.finished

    def to_dict(self) -> dict[str, object]:
        """The result as JSON values. What only the final message says is null if it has not come."""
        started, finished = self.started, self.finished
        result: dict[str, object] = {
            "request_id": started.request_id if started else None,
            "model_id": started.model_id if started else None,
            "seed": started.seed if started else None,
            "acceptance_rule": (
                _short(model_pb2.AcceptanceRule.Name(started.acceptance_rule), "ACCEPTANCE_RULE_") if started else None
            ),
            "text": self.text,
            "token_ids": self.token_ids,
            "finish_reason": (
                _short(generation_pb2.FinishReason.Name(finished.finish_reason), "FINISH_REASON_") if finished else None
            ),
            "stop_string": finished.stop_string or None if finished else None,
            "stop_token_id": finished.stop_token_id if finished and finished.HasField("stop_token_id") else None,
            "usage": _message_dict(finished.usage) if finished else None,
            "stats": _message_dict(finished.stats) if finished else None,
            "rounds": [_round_dict(report) for report in self.rounds],
        }
        if self.logprobs:
            result["logprobs"] = [_message_dict(entry) for entry in self.logprobs]
        return result


class GenerationClient:
    """Calls the generation service at one address; an asynchronous context manager.

    A call that fails raises `grpc.aio.AioRpcError`, whose `code()` and `details()` say why.
    """

    def __init__(self, address: str, *, timeout_seconds: float = _TIMEOUT_SECONDS) -> None:
        """
        Args:
            address: HOST:PORT of an orchestrator.
            timeout_seconds: deadline of each call.
        """
        self._channel = open_channel(address, max_message_bytes=_MAX_MESSAGE_BYTES)
        self._stub = generation_pb2_grpc.GenerationServiceStub(self._channel)
        self._timeout_seconds = timeout_seconds

    async def __aenter__(self) -> GenerationClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._channel.close()

    async def generate(
        self, request: generation_pb2.GenerateRequest
    ) -> AsyncGenerator[generation_pb2.GenerateResponse, None]:
        """The responses as they come. Leaving the loop early (close the iterator) or cancelling ends the request.

        Raises:
            IncompleteGenerationError: the stream ended without a `Finished` message for each completion.
        """
        call = self._stub.Generate(request, timeout=self._timeout_seconds)
        num_unfinished = num_completions(request)
        try:
            async for response in call:
                num_unfinished -= response.HasField("finished")
                yield response
        finally:
            call.cancel()
        if num_unfinished > 0:
            raise IncompleteGenerationError("the stream ended without its final message; the text is incomplete")

    async def generate_unary(self, request: generation_pb2.GenerateRequest) -> generation_pb2.GenerateUnaryResponse:
        """The whole answer at once."""
        return await self._stub.GenerateUnary(
            generation_pb2.GenerateUnaryRequest(request=request), timeout=self._timeout_seconds
        )

    async def collect(self, request: generation_pb2.GenerateRequest) -> GenerationResult:
        """The whole answer, gathered from the stream; of several completions the first."""
        return (await self.collect_all(request))[0]

    async def collect_all(self, request: generation_pb2.GenerateRequest) -> list[GenerationResult]:
        """All completions, gathered from the stream."""
        results = [GenerationResult(completion=index) for index in range(num_completions(request))]
        async for response in self.generate(request):
            for result in results:
                result.add(response)
        return results


def num_completions(request: generation_pb2.GenerateRequest) -> int:
    """How many completions a request asks for."""
    return request.num_completions if request.HasField("num_completions") else 1


def _short(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).lower()


def _message_dict(message: Message) -> dict[str, object]:
    """Every field that is set or has a default, in the order of the proto."""
    values = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    return {entry.name: values[entry.name] for entry in message.DESCRIPTOR.fields if entry.name in values}


def _round_dict(report: generation_pb2.RoundReport) -> dict[str, object]:
    kind = target_pb2.NextTokenKind.Name(report.next_token_kind)
    source = source_name(report.draft_source) if report.num_draft_tokens else None
    return {
        **_message_dict(report),
        "next_token_kind": _short(kind, "NEXT_TOKEN_KIND_"),
        "draft_source": source,
    }
