"""Client of the generation service: the stream as it comes, or collected into one result."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from types import TracebackType

import grpc.aio
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from specdec.draft_source import source_name
from specdec.endpoints import Endpoint, Endpoints, Tries
from specdec.received import ChangedModelError, Received, num_completions
from specdec.serving.channel import DEFAULT_KEEPALIVE, Keepalive, open_channel
from specdec.serving.channel_security import ChannelSecurity
from specdec.v1 import generation_pb2, model_pb2, sampling_pb2, target_pb2

__all__ = [
    "ChangedModelError",
    "GenerationClient",
    "GenerationResult",
    "IncompleteGenerationError",
    "num_completions",
]

_TIMEOUT_SECONDS = 3600.0
_MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Room for a unary answer that lists log-probabilities for a whole context."""
_FAILOVER_KEEPALIVE = Keepalive(time_seconds=1.0, timeout_seconds=1.5)
_FAILURES_PER_ADDRESS = 12
"""In a row, of one request; with the rests between them that is some ten seconds without any orchestrator."""


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
    """Calls the generation service; an asynchronous context manager.

    With several orchestrators a request outlives the one that runs it: if that is lost, refuses for a while or ends the
    stream early, the request is sent to the next one with the tokens that have come, and the caller sees one stream. By
    the rejection and block rules, whose text depends on the drafts too, only as long as no token has come.

    A call that fails raises `grpc.aio.AioRpcError`, whose `code()` and `details()` say why.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        timeout_seconds: float = _TIMEOUT_SECONDS,
        max_failures: int | None = None,
        security: ChannelSecurity | None = None,
    ) -> None:
        """
        Args:
            addresses: HOST:PORT of an orchestrator, or of several, as a sequence or separated by commas.
            timeout_seconds: deadline of each request.
            max_failures: after so many failed calls in a row, one more ends the request. None: none with one
                orchestrator, 12 for each of several, which takes some ten seconds.
            security: certificates, and the token to send; None: plaintext, without a token.

        Raises:
            ValueError: there is no address.
            SecurityError: a file cannot be read, or the token would go to another machine in plaintext.
        """
        given = addresses.split(",") if isinstance(addresses, str) else addresses
        names = [name for address in given if (name := address.strip())]
        if not names:
            raise ValueError("no address of an orchestrator is given")
        is_alone = len(names) == 1
        # Where there is another one to go to, a silent one is given up sooner.
        keepalive = DEFAULT_KEEPALIVE if is_alone else _FAILOVER_KEEPALIVE
        self._endpoints = Endpoints(
            [
                Endpoint(
                    name,
                    open_channel(name, max_message_bytes=_MAX_MESSAGE_BYTES, keepalive=keepalive, security=security),
                )
                for name in names
            ]
        )
        self._timeout_seconds = timeout_seconds
        default = 0 if is_alone else _FAILURES_PER_ADDRESS * len(names)
        self._max_failures = default if max_failures is None else max_failures

    async def __aenter__(self) -> GenerationClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._endpoints.close()

    async def generate(
        self, request: generation_pb2.GenerateRequest
    ) -> AsyncGenerator[generation_pb2.GenerateResponse, None]:
        """The responses as they come. Leaving the loop early (close the iterator) or cancelling ends the request.

        Where the request went on at another orchestrator, rounds count on; the sums in `Finished.stats` are of the
        last one alone.

        Raises:
            IncompleteGenerationError: the stream ended without a `Finished` message for each completion.
            ChangedModelError: the next orchestrator has another model.
        """
        received = Received(request)
        tries = self._tries()
        while True:
            endpoint = await tries.next()
            call = endpoint.stub.Generate(received.next_request(), timeout=tries.remaining_seconds)
            try:
                async for response in call:
                    # That it has started is no progress yet.
                    if not response.HasField("started"):
                        tries.succeeded(endpoint)
                    if received.add(response):
                        yield response
                failure: Exception = IncompleteGenerationError(
                    "the stream ended without its final message; the text is incomplete"
                )
            except grpc.aio.AioRpcError as error:
                failure = error
            finally:
                call.cancel()
            if received.is_complete:
                return
            tries.failed(endpoint, failure, can_go_on=received.can_go_on)

    async def generate_unary(self, request: generation_pb2.GenerateRequest) -> generation_pb2.GenerateUnaryResponse:
        """The whole answer at once."""
        asked = generation_pb2.GenerateUnaryRequest(request=request)
        tries = self._tries()
        while True:
            endpoint = await tries.next()
            try:
                answer = await endpoint.stub.GenerateUnary(asked, timeout=tries.remaining_seconds)
            except grpc.aio.AioRpcError as error:
                tries.failed(endpoint, error)
            else:
                tries.succeeded(endpoint)
                return answer

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

    def _tries(self) -> Tries:
        return Tries(self._endpoints, self._timeout_seconds, self._max_failures)


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
