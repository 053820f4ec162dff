"""A client of the draft and the target service that runs the rounds of many sequences side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import grpc.aio

from draft_service.drafters.drafter import Drafter
from draft_service.service import DraftService
from draft_service.settings import DraftSettings
from orchestrator.links.window_batches import add_window, single_verdicts
from orchestrator.window import Window
from specdec.checksum import prefix_checksum
from specdec.models.loading import LoadedModel
from specdec.sampling.params import SamplingParams
from specdec.serving.channel import open_channel
from specdec.serving.host import ServiceHost
from specdec.v1 import draft_pb2, draft_pb2_grpc, model_pb2, target_pb2, target_pb2_grpc
from target_service.service import TargetService
from target_service.settings import TargetSettings

MAX_NUM_DRAFT_TOKENS = 8
_LIMITS: dict[str, Any] = {
    "max_num_sequences": 4096,
    "max_num_draft_tokens": MAX_NUM_DRAFT_TOKENS,
    "max_batch_rows": 1 << 15,
}
_COMMANDS_A_MESSAGE = 256
_MAX_MESSAGE_BYTES = 1 << 24
_MAX_FEATURE_TOKENS = 64
_MOST_SECONDS = 15.0
"""For an answer: the models are tiny. What is wrong may well be that a round never ends."""

Response = TypeVar("Response")
DraftTree = Callable[[Sequence[int]], tuple[list[int], list[int]]]
"""Draft tokens and parents behind committed tokens; for windows that no drafter of the service makes."""


def draft_settings(**settings: Any) -> DraftSettings:
    """Room for thousands of sequences."""
    return DraftSettings(**_LIMITS, **settings)


@dataclass
class Text:
    """One sequence of the client."""

    token_ids: list[int]
    prompt_length: int
    params: SamplingParams
    num_draft_tokens: int
    draft_tree: DraftTree | None = None
    tenant: bytes = b""
    round: int = 0
    sources: list[int] = field(default_factory=list)
    """Where each window that has tokens came from."""
    num_drafted: int = 0
    num_accepted: int = 0
    window: target_pb2.Window = field(default_factory=target_pb2.Window)

    @property
    def output(self) -> tuple[int, ...]:
        """What came after the prompt."""
        return tuple(self.token_ids[self.prompt_length :])


class RoundDriver:
    """Runs rounds in lockstep: all drafts, then all windows.

    Args:
        verify: stream to the target service.
        propose: stream to the draft service.
        rule: for all sequences.
        max_length: of all sequences.
        feature_states: hidden states of the target that travel to the drafter.
    """

    def __init__(
        self,
        verify: grpc.aio.StreamStreamCall[target_pb2.VerifyRequest, target_pb2.VerifyResponse],
        propose: grpc.aio.StreamStreamCall[draft_pb2.ProposeRequest, draft_pb2.ProposeResponse],
        rule: model_pb2.AcceptanceRule.ValueType,
        max_length: int,
        feature_states: Sequence[int] = (),
    ) -> None:
        self._verify = verify
        self._propose = propose
        self._rule = rule
        self._max_length = max_length
        self._feature_states = feature_states

    async def generate(self, texts: Sequence[Text], num_tokens: int) -> None:
        """Grow every text until its output has at least `num_tokens`.

        Raises:
            AssertionError: a service failed a sequence.
        """
        by_id = {index.to_bytes(16, "big"): text for index, text in enumerate(texts)}
        opens = [
            target_pb2.TargetCommand(
                sequence_id=name,
                open=target_pb2.TargetOpen(
                    epoch=1,
                    token_ids=text.token_ids,
                    prompt_length=text.prompt_length,
                    sampling=text.params.to_proto(),
                    acceptance_rule=self._rule,
                    max_length=self._max_length,
                    feature_states=self._feature_states,
                    max_feature_tokens=_MAX_FEATURE_TOKENS,
                ),
            )
            for name, text in by_id.items()
        ]
        for name, event in (await self._judged(opens)).items():
            assert event.HasField("opened"), f"an open was answered with {event}"
            by_id[name].token_ids.append(event.opened.first.next_token_id)
        asks = {name: self._draft_open(name, text) for name, text in by_id.items()}
        while running := {name: text for name, text in by_id.items() if len(text.output) < num_tokens}:
            await self._draft(running, [asks[name] for name in running])
            for name, event in (await self._judged(_asking(running))).items():
                assert event.HasField("verdict"), f"a window was answered with {event}"
                asks[name] = self._commit(name, running[name], event.verdict)
        closes = [target_pb2.TargetCommand(sequence_id=name, close=target_pb2.TargetClose()) for name in by_id]
        await self._verify.write(target_pb2.VerifyRequest(commands=closes))
        forgets = [draft_pb2.DraftCommand(sequence_id=name, close=draft_pb2.DraftClose()) for name in by_id]
        await self._propose.write(draft_pb2.ProposeRequest(commands=forgets))

    def _draft_open(self, name: bytes, text: Text) -> draft_pb2.DraftCommand:
        message = draft_pb2.DraftOpen(
            epoch=1,
            token_ids=text.token_ids,
            prompt_length=text.prompt_length,
            sampling=text.params.to_proto(),
            acceptance_rule=self._rule,
            round=1,
            num_draft_tokens=text.num_draft_tokens,
            tenant=text.tenant,
        )
        return draft_pb2.DraftCommand(sequence_id=name, open=message)

    async def _draft(self, texts: Mapping[bytes, Text], asks: Sequence[draft_pb2.DraftCommand]) -> None:
        """Set the window of the next round of each text."""
        wanted = {name for name, text in texts.items() if text.num_draft_tokens and text.draft_tree is None}
        proposals = await self._proposed([ask for ask in asks if ask.sequence_id in wanted])
        for name, text in texts.items():
            text.round += 1
            text.window = target_pb2.Window(
                epoch=1,
                round=text.round,
                base_length=len(text.token_ids),
                checksum=prefix_checksum(text.token_ids),
            )
            if name in wanted:
                event = proposals[name]
                assert event.HasField("proposal"), f"a draft was answered with {event}"
                proposal = event.proposal
                assert (event.round, proposal.base_length) == (text.round, len(text.token_ids))
                text.window.token_ids.extend(proposal.token_ids)
                text.window.distributions.extend(proposal.distributions)
                text.sources.extend([proposal.source] if proposal.token_ids else [])
            elif text.draft_tree is not None:
                tokens, parents = text.draft_tree(text.token_ids)
                text.window.token_ids.extend(tokens)
                text.window.parents.extend(parents)

    def _commit(self, name: bytes, text: Text, verdict: target_pb2.Verdict) -> draft_pb2.DraftCommand:
        """Append what a verdict adds; returns the commit that asks for the next proposal."""
        accepted = list(verdict.accepted_nodes)
        base_length = len(text.token_ids)
        assert all(node < len(text.window.token_ids) for node in accepted), "what was not sent is accepted"
        text.token_ids.extend([*(text.window.token_ids[node] for node in accepted), verdict.next_token_id])
        assert verdict.committed_length == len(text.token_ids)
        text.num_drafted += len(text.window.token_ids)
        text.num_accepted += len(accepted)
        message = draft_pb2.DraftCommit(
            epoch=1,
            round=text.round + 1,
            base_length=base_length,
            num_accepted_tokens=len(accepted),
            next_token_id=verdict.next_token_id,
            committed_length=len(text.token_ids),
            checksum=prefix_checksum(text.token_ids),
            num_draft_tokens=text.num_draft_tokens,
            features=verdict.features,
        )
        return draft_pb2.DraftCommand(sequence_id=name, commit=message)

    async def _judged(self, commands: Sequence[target_pb2.TargetCommand]) -> dict[bytes, target_pb2.TargetEvent]:
        for start in range(0, len(commands), _COMMANDS_A_MESSAGE):
            part = commands[start : start + _COMMANDS_A_MESSAGE]
            await self._verify.write(target_pb2.VerifyRequest(commands=part))
        num_asked = sum(len(command.windows.rounds) if command.HasField("windows") else 1 for command in commands)
        events: dict[bytes, target_pb2.TargetEvent] = {}
        while len(events) < num_asked:
            for event in (await _read(self._verify)).events:
                singles = single_verdicts(event.verdicts) if event.HasField("verdicts") else [event]
                events.update((single.sequence_id, single) for single in singles)
        return events

    async def _proposed(self, commands: Sequence[draft_pb2.DraftCommand]) -> dict[bytes, draft_pb2.DraftEvent]:
        for start in range(0, len(commands), _COMMANDS_A_MESSAGE):
            part = commands[start : start + _COMMANDS_A_MESSAGE]
            await self._propose.write(draft_pb2.ProposeRequest(commands=part))
        events: dict[bytes, draft_pb2.DraftEvent] = {}
        while len(events) < len(commands):
            response = await _read(self._propose)
            events.update((event.sequence_id, event) for event in response.events)
        return events


def _asking(texts: Mapping[bytes, Text]) -> list[target_pb2.TargetCommand]:
    """Ask for the windows of all texts: in every other round in columns, as far as those can tell them."""
    commands: list[target_pb2.TargetCommand] = []
    together = target_pb2.TargetCommand()
    for name, text in texts.items():
        window = text.window
        if text.round % 2 and not window.parents and not window.distributions:
            chain = Window(window.token_ids)
            add_window(together.windows, name, 1, text.round, window.base_length, window.checksum, chain)
        else:
            commands.append(target_pb2.TargetCommand(sequence_id=name, window=window))
    return [*commands, together] if together.HasField("windows") else commands


async def _read(call: grpc.aio.StreamStreamCall[Any, Response]) -> Response:
    """The next message; a stream that ends, breaks or falls silent is a failed check."""
    try:
        response = await asyncio.wait_for(call.read(), _MOST_SECONDS)
    except asyncio.TimeoutError:
        raise AssertionError(f"a stream was silent for {_MOST_SECONDS:g} s") from None
    except grpc.aio.AioRpcError as error:
        raise AssertionError(f"a stream broke: {error.code().name}: {error.details()}") from error
    assert response is not grpc.aio.EOF, "a stream ended"
    return cast("Response", response)


@asynccontextmanager
async def driving(
    target: LoadedModel,
    make_drafter: Callable[[], Drafter],
    rule: model_pb2.AcceptanceRule.ValueType,
    feature_states: Sequence[int] = (),
) -> AsyncIterator[RoundDriver]:
    """Both services on free ports, and a client with one stream to each.

    Args:
        target: the target model.
        make_drafter: gives the drafter.
        rule: how windows are judged.
        feature_states: hidden states of the target that travel to the drafter.
    """
    services = (
        TargetService(TargetSettings(**_LIMITS), lambda: target),
        DraftService(draft_settings(), make_drafter),
    )
    async with AsyncExitStack() as stack:
        channels = []
        for service in services:
            host = ServiceHost(service, host="127.0.0.1", port=0, drain_seconds=5.0)
            await stack.enter_async_context(host)
            channel = open_channel(host.address, max_message_bytes=_MAX_MESSAGE_BYTES)
            channels.append(await stack.enter_async_context(channel))
        verify = target_pb2_grpc.TargetServiceStub(channels[0]).Verify(timeout=60)
        propose = draft_pb2_grpc.DraftServiceStub(channels[1]).Propose(timeout=60)
        try:
            yield RoundDriver(verify, propose, rule, target.info.max_context_length, feature_states)
        finally:
            verify.cancel()
            propose.cancel()
