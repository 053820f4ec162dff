"""A fake target that keeps what travels, and sequences on it that have been opened."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from orchestrator.links.target import TargetLink, TargetSequence
from orchestrator.window import EMPTY_WINDOW, Window
from specdec.checksum import prefix_checksum
from specdec.v1 import model_pb2, target_pb2
from tests.orchestrator.fakes import Context, FakeTarget
from tests.orchestrator.links.test_target import PROMPT, opened, opening_of
from tests.orchestrator.serving import until
from tests.orchestrator.table import table_token

OPENED = [*PROMPT, table_token(PROMPT)]
"""What is committed once an open has been answered."""
CHECKSUM = prefix_checksum(OPENED)


class WatchedTarget(FakeTarget):
    """Keeps what travels, as it travels, and may spoil it."""

    def __init__(self, **facts: Any) -> None:
        super().__init__(**facts)
        self.sent: list[target_pb2.TargetCommand] = []
        self.told: list[target_pb2.TargetEvent] = []
        self.spoil: Callable[[target_pb2.VerdictBatch], object] = lambda batch: None

    async def Verify(  # noqa: N802
        self, request_iterator: AsyncIterator[target_pb2.VerifyRequest], context: Context
    ) -> AsyncIterator[target_pb2.VerifyResponse]:
        async def watched() -> AsyncIterator[target_pb2.VerifyRequest]:
            async for message in request_iterator:
                self.sent.extend(message.commands)
                yield message

        async for response in super().Verify(watched(), context):
            for event in response.events:
                if event.HasField("verdicts"):
                    self.spoil(event.verdicts)
            self.told.extend(response.events)
            yield response

    def _answer(
        self, command: target_pb2.TargetCommand, make_event: Callable[..., target_pb2.TargetEvent]
    ) -> list[target_pb2.TargetEvent]:
        return [] if command.HasField("candidates") else super()._answer(command, make_event)

    @property
    def batches(self) -> list[target_pb2.WindowBatch]:
        return [command.windows for command in self.sent if command.HasField("windows")]

    async def kinds_after(self, num_sent: int, num_more: int) -> list[str | None]:
        await until(lambda: len(self.sent) >= num_sent + num_more)
        return [command.WhichOneof("command") for command in self.sent[num_sent:]]


async def several(link: TargetLink, count: int) -> list[TargetSequence]:
    """Sequences that have been opened."""
    sequences = [opened(link) for _ in range(count)]
    for sequence in sequences:
        await opening_of(sequence)
    return sequences


def ask(
    sequence: TargetSequence,
    window: Window = EMPTY_WINDOW,
    context: model_pb2.TraceContext | None = None,
    round_index: int = 1,
) -> None:
    sequence.ask(round_index, len(OPENED), CHECKSUM, window, context)
