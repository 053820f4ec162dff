"""Draft and target services without a model, over real gRPC: the next token is a pure function of the prefix.

They check the protocol as the real services do, and keep what they saw, so that a test can assert it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio

from specdec import PROTOCOL_VERSION
from specdec.checksum import prefix_checksum
from specdec.errors import FailedPreconditionError, InvalidArgumentError, OutOfRangeError, Refusal
from specdec.serving.health import Health
from specdec.tokenizer_files import tokenizer_hash
from specdec.v1 import draft_pb2, draft_pb2_grpc, model_pb2, target_pb2, target_pb2_grpc
from tests.orchestrator.fake_columns import Columns
from tests.orchestrator.table import NextToken, half_right, table_token
from tests.tiny_models import EOS_TOKEN_ID, TINY_VOCAB_SIZE, tiny_tokenizer_files

TOKENIZER_FILES = tiny_tokenizer_files()
TOKENIZER_HASH = tokenizer_hash(TOKENIZER_FILES)

Context = grpc.aio.ServicerContext[Any, Any]


Event = TypeVar("Event", draft_pb2.DraftEvent, target_pb2.TargetEvent)
Command = TypeVar("Command", draft_pb2.DraftCommand, target_pb2.TargetCommand)


@dataclass
class FakeSequence:
    """A sequence as a fake knows it."""

    epoch: int
    token_ids: list[int]
    prompt_length: int
    max_length: int = 0
    last_round: int = -1
    proposed: list[int] = field(default_factory=list)


class Fake(Generic[Command, Event]):
    """What both fakes share: sequences of streams, the commands seen, and the ways to misbehave."""

    def __init__(self, model_info: model_pb2.ModelInfo) -> None:
        self.model_info = model_info
        self.sequences: dict[bytes, FakeSequence] = {}
        self.commands: list[Command] = []
        """Every command, in order; windows that came in a batch are commands of their own here."""
        self.batch_sizes: list[int] = []
        """Commands of each message, as in `commands`."""
        self.refusals: list[Refusal] = []
        """Commands that did not fit what was known: empty if the orchestrator keeps to the protocol."""
        self.delay_seconds = 0.0
        """Before the commands that have arrived are carried out, as one batch."""
        self.is_frozen = False
        """Reads and never answers."""
        self.is_loading = False
        """Refuses the handshake."""
        self.change: Callable[[Command, Event], Iterable[Event]] = lambda _, event: [event]
        """Turns the right answer into those that are sent."""
        self.load = model_pb2.Load()
        """What others have open here, as it says with each message."""
        self.health: Health | None = None
        """Served beside it, if there is one."""
        self._broken = asyncio.Event()

    def break_streams(self) -> None:
        """End every stream that is open now, without an error: that too is an abort."""
        self._broken.set()
        self._broken = asyncio.Event()

    async def stream(
        self, messages: AsyncIterator[Any], make_event: Callable[..., Event]
    ) -> AsyncIterator[list[Event]]:
        """Answer one stream, message by message."""
        broken = self._broken
        sequences: set[bytes] = set()
        unanswered: list[Command] = []
        has_work = asyncio.Event()

        async def read() -> None:
            async for message in messages:
                self.batch_sizes.append(len(message.commands))
                self.commands.extend(message.commands)
                unanswered.extend(message.commands)
                sequences.update(command.sequence_id for command in message.commands)
                has_work.set()

        async def watch() -> None:
            await broken.wait()

        ends = [asyncio.create_task(read()), asyncio.create_task(watch())]
        for end in ends:
            end.add_done_callback(lambda _: has_work.set())
        try:
            while True:
                await has_work.wait()
                if any(end.done() for end in ends):
                    return
                # What arrives meanwhile joins the batch, as at a model.
                await asyncio.sleep(self.delay_seconds)
                has_work.clear()
                commands = unanswered.copy()
                unanswered.clear()
                events = [event for command in commands for event in self._answer(command, make_event)]
                if events and not self.is_frozen:
                    yield events
        finally:
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
            for sequence_id in sequences:
                self.sequences.pop(sequence_id, None)

    def _answer(self, command: Command, make_event: Callable[..., Event]) -> list[Event]:
        kind = command.WhichOneof("command")
        if kind == "close":
            self.sequences.pop(command.sequence_id, None)
            return []
        asked = getattr(command, str(kind))
        event = make_event(sequence_id=command.sequence_id, epoch=asked.epoch, round=getattr(asked, "round", 0))
        try:
            if not self._carry_out(command, event):
                return []
        except Refusal as refusal:
            self.refusals.append(refusal)
            self.sequences.pop(command.sequence_id, None)
            event.failed.CopyFrom(refusal.to_status())
            return [event]
        return list(self.change(command, event))

    def _load_now(self) -> model_pb2.Load:
        load = model_pb2.Load()
        load.CopyFrom(self.load)
        load.num_sequences += len(self.sequences)
        return load

    def _carry_out(self, command: Command, event: Event) -> bool:
        """Fill in the answer; False: there is none."""
        raise NotImplementedError

    def _find(self, command: Command, epoch: int) -> FakeSequence:
        sequence = self.sequences.get(command.sequence_id)
        if sequence is None or sequence.epoch != epoch:
            raise FailedPreconditionError("unknown sequence or epoch")
        return sequence

    def _check_open(self, command: draft_pb2.DraftOpen | target_pb2.TargetOpen, sequence_id: bytes) -> None:
        known = self.sequences.get(sequence_id)
        if len(sequence_id) != 16 or (known is not None and known.epoch >= command.epoch):
            raise FailedPreconditionError("bad id, or an epoch that is over")
        if command.acceptance_rule not in self.model_info.acceptance_rules:
            raise InvalidArgumentError("acceptance rule")
        if not 0 < command.prompt_length <= len(command.token_ids):
            raise InvalidArgumentError("prompt_length")


def _check_prefix(sequence: FakeSequence, base_length: int, checksum: int) -> None:
    if base_length != len(sequence.token_ids) or checksum != prefix_checksum(sequence.token_ids):
        raise FailedPreconditionError("another prefix is committed here")


class FakeTarget(Fake[target_pb2.TargetCommand, target_pb2.TargetEvent], target_pb2_grpc.TargetServiceServicer):
    """A target whose model is a function."""

    def __init__(self, next_token: NextToken = table_token, **facts: Any) -> None:
        super().__init__(
            model_pb2.ModelInfo(
                **{
                    "protocol_version": PROTOCOL_VERSION,
                    "model_id": "table",
                    "tokenizer_hash": TOKENIZER_HASH,
                    "vocab_size": TINY_VOCAB_SIZE,
                    "max_context_length": 512,
                    "max_num_draft_tokens": 16,
                    "max_num_sequences": 256,
                    "acceptance_rules": [model_pb2.ACCEPTANCE_RULE_COUPLED],
                    "stop_token_ids": [EOS_TOKEN_ID],
                    "takes_window_batches": True,
                    **facts,
                }
            )
        )
        self.next_token = next_token
        self.tokenizer_files = TOKENIZER_FILES
        self.max_judged_tokens: int | None = None
        """Judges no more than this many nodes of a window."""

    async def GetModelInfo(  # noqa: N802
        self, request: target_pb2.TargetServiceGetModelInfoRequest, context: Context
    ) -> target_pb2.TargetServiceGetModelInfoResponse:
        if self.is_loading:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "loading")
        return target_pb2.TargetServiceGetModelInfoResponse(model_info=self.model_info)

    async def GetTokenizer(  # noqa: N802
        self, request: target_pb2.GetTokenizerRequest, context: Context
    ) -> AsyncIterator[target_pb2.GetTokenizerResponse]:
        files = self.tokenizer_files
        yield target_pb2.GetTokenizerResponse(chat_template=files.chat_template, special_tokens=files.special_tokens)
        half = len(files.tokenizer_json) // 2
        for part in (files.tokenizer_json[:half], files.tokenizer_json[half:]):
            yield target_pb2.GetTokenizerResponse(tokenizer_json=part)

    async def Verify(  # noqa: N802
        self, request_iterator: AsyncIterator[target_pb2.VerifyRequest], context: Context
    ) -> AsyncIterator[target_pb2.VerifyResponse]:
        yield target_pb2.VerifyResponse(load=self._load_now())
        columns = Columns()
        async for events in self.stream(columns.singly(request_iterator), target_pb2.TargetEvent):
            yield target_pb2.VerifyResponse(events=columns.together(events), load=self._load_now())

    def _carry_out(self, command: target_pb2.TargetCommand, event: target_pb2.TargetEvent) -> bool:
        if command.HasField("open"):
            opening = command.open
            self._check_open(opening, command.sequence_id)
            if not len(opening.token_ids) < opening.max_length <= self.model_info.max_context_length:
                raise OutOfRangeError("no room")
            sequence = FakeSequence(opening.epoch, list(opening.token_ids), opening.prompt_length, opening.max_length)
            self.sequences[command.sequence_id] = sequence
            sequence.last_round = opening.round
            self._judge(sequence, [], [], event.opened.first)
            return True
        window = command.window
        sequence = self._find(command, window.epoch)
        _check_prefix(sequence, window.base_length, window.checksum)
        if window.round <= sequence.last_round:
            raise FailedPreconditionError("a round that is over")
        if len(window.token_ids) > self.model_info.max_num_draft_tokens:
            raise InvalidArgumentError("window too large")
        if len(sequence.token_ids) + 1 > sequence.max_length:
            raise OutOfRangeError("max_length")
        sequence.last_round = window.round
        self._judge(sequence, window.token_ids, window.parents, event.verdict)
        return True

    def _judge(
        self, sequence: FakeSequence, tokens: Sequence[int], parents: Sequence[int], verdict: target_pb2.Verdict
    ) -> None:
        verdict.base_length = len(sequence.token_ids)
        room = sequence.max_length - len(sequence.token_ids) - 1
        judged = min(len(tokens), room, self.max_judged_tokens if self.max_judged_tokens is not None else room)
        parents = list(parents) or list(range(-1, len(tokens) - 1))
        node, has_children = -1, True
        while has_children:
            token = self.next_token(sequence.token_ids)
            sequence.token_ids.append(token)
            children = [child for child in range(judged) if parents[child] == node]
            accepted = [child for child in children if tokens[child] == token]
            if not accepted:
                break
            node = accepted[0]
            verdict.accepted_nodes.append(node)
        verdict.num_judged_tokens = judged
        verdict.next_token_id = token
        verdict.next_token_kind = target_pb2.NEXT_TOKEN_KIND_RECOVERED if children else target_pb2.NEXT_TOKEN_KIND_BONUS
        verdict.committed_length = len(sequence.token_ids)
        verdict.timings.compute_microseconds = 7


class FakeDraft(Fake[draft_pb2.DraftCommand, draft_pb2.DraftEvent], draft_pb2_grpc.DraftServiceServicer):
    """A drafter whose model is a function; the default one is right about two times of three."""

    def __init__(self, next_token: NextToken | None = None, **facts: Any) -> None:
        super().__init__(
            model_pb2.ModelInfo(
                **{
                    "protocol_version": PROTOCOL_VERSION,
                    "model_id": "guess",
                    "tokenizer_hash": TOKENIZER_HASH,
                    "vocab_size": TINY_VOCAB_SIZE,
                    "max_num_draft_tokens": 8,
                    "dtype": "float32",
                    "max_num_sequences": 256,
                    "acceptance_rules": [model_pb2.ACCEPTANCE_RULE_COUPLED],
                    **facts,
                }
            )
        )
        self.next_token = next_token or half_right
        self.tree_width = 1
        """Nodes behind the committed prefix, of which only the last is `next_token`; the chain goes on behind it."""

    async def GetModelInfo(  # noqa: N802
        self, request: draft_pb2.DraftServiceGetModelInfoRequest, context: Context
    ) -> draft_pb2.DraftServiceGetModelInfoResponse:
        if self.is_loading:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "loading")
        return draft_pb2.DraftServiceGetModelInfoResponse(model_info=self.model_info)

    async def Propose(  # noqa: N802
        self, request_iterator: AsyncIterator[draft_pb2.ProposeRequest], context: Context
    ) -> AsyncIterator[draft_pb2.ProposeResponse]:
        async for events in self.stream(request_iterator, draft_pb2.DraftEvent):
            yield draft_pb2.ProposeResponse(events=events, load=self._load_now())

    def _carry_out(self, command: draft_pb2.DraftCommand, event: draft_pb2.DraftEvent) -> bool:
        if command.HasField("open"):
            opening = command.open
            self._check_open(opening, command.sequence_id)
            sequence = FakeSequence(opening.epoch, list(opening.token_ids), opening.prompt_length)
            self.sequences[command.sequence_id] = sequence
            num_draft_tokens, is_asked = opening.num_draft_tokens, bool(opening.num_lookup_tokens)
        elif command.HasField("features"):
            self._find(command, command.features.epoch)
            event.prefilled.length = command.features.told.end
            return True
        else:
            commit, sequence = command.commit, self._find(command, command.commit.epoch)
            if commit.committed_length != commit.base_length + commit.num_accepted_tokens + 1:
                raise InvalidArgumentError("committed_length")
            if commit.base_length != len(sequence.token_ids) or commit.num_accepted_tokens > len(sequence.proposed):
                raise FailedPreconditionError("base_length or num_accepted_tokens")
            nodes = list(commit.accepted_nodes) or range(commit.num_accepted_tokens)
            sequence.token_ids += [*(sequence.proposed[node] for node in nodes), commit.next_token_id]
            sequence.proposed = []
            _check_prefix(sequence, commit.committed_length, commit.checksum)
            num_draft_tokens, is_asked = commit.num_draft_tokens, bool(commit.num_lookup_tokens)
        if not (num_draft_tokens or is_asked):
            return False
        if num_draft_tokens > self.model_info.max_num_draft_tokens:
            raise InvalidArgumentError("num_draft_tokens")
        event.proposal.base_length = len(sequence.token_ids)
        event.proposal.timings.compute_microseconds = 3
        self._propose(sequence, num_draft_tokens, event.proposal)
        return True

    def _propose(self, sequence: FakeSequence, num_draft_tokens: int, proposal: draft_pb2.Proposal) -> None:
        limit = self.model_info.max_context_length or 1 << 20
        num_draft_tokens = min(num_draft_tokens, limit - len(sequence.token_ids))
        path: list[int] = []
        for node in range(num_draft_tokens):
            if node < self.tree_width - 1:
                proposal.token_ids.append(node)
                proposal.parents.append(-1)
                continue
            path.append(self.next_token([*sequence.token_ids, *path]))
            proposal.token_ids.append(path[-1])
            if self.tree_width > 1:
                proposal.parents.append(node - 1 if len(path) > 1 else -1)
        sequence.proposed = list(proposal.token_ids)
