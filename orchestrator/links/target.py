"""The link to the target service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

import grpc.aio

from orchestrator.candidates import Candidates
from orchestrator.links.link import HANDSHAKE_SECONDS, HandshakeRefused, Link, check_protocol_version
from orchestrator.links.mailbox import Mailbox
from orchestrator.links.opening import Opening
from orchestrator.links.window_batches import MAX_WINDOWS, add_window, fits_batch, single_verdicts
from orchestrator.tokenizer import PromptTokenizer
from orchestrator.window import Window
from specdec.errors import UnavailableError
from specdec.tokenizer_files import TokenizerFiles, TokenizerFilesError, tokenizer_hash
from specdec.v1 import model_pb2, target_pb2, target_pb2_grpc

FeaturesTaker = Callable[[model_pb2.FeaturesTold], None]
"""Takes features that a target tells before it has answered."""

MAX_TOKENIZER_BYTES = 64 << 20
"""Largest tokenizer taken from a target, all its parts together."""


class TargetLink(Link[target_pb2.TargetCommand, target_pb2.VerifyResponse, target_pb2.TargetEvent]):
    """The link to a target replica. Its handshake fetches the tokenizer too."""

    service_name = "target"

    tokenizer: PromptTokenizer | None = None
    """The target's, from the last handshake that passed; a new one only if its files are new."""
    _files: TokenizerFiles | None = None

    @property
    def vocabulary(self) -> tuple[str, int]:
        """Tokenizer hash and vocabulary size: token ids mean the same as long as these are the same.

        Raises:
            UnavailableError: there was no handshake yet.
        """
        if self.model_info is None:
            raise UnavailableError(f"the target is not available: {self.problem}")
        return self.model_info.tokenizer_hash, self.model_info.vocab_size

    def open(
        self,
        sequence_id: bytes,
        epoch: int,
        round_index: int,
        opening: Opening,
        token_ids: Sequence[int],
        trace_context: model_pb2.TraceContext | None = None,
        *,
        with_features: bool = True,
        on_features: FeaturesTaker | None = None,
    ) -> TargetSequence:
        """Start a sequence, or start it again with all its committed tokens under the next epoch.

        Args:
            sequence_id: names it on every stream.
            epoch: counts its opens.
            round_index: of its first token.
            opening: what stays the same at every open.
            token_ids: all committed tokens.
            trace_context: trace to put the work under.
            with_features: whether the first verdict is to carry those of the opening, if it has any.
            on_features: takes them as they are computed; None: the verdict carries them all.

        Raises:
            LinkLost: the link is not available.
        """

        def take_features(event: target_pb2.TargetEvent) -> bool:
            if on_features is not None:
                on_features(event.features)
            return on_features is not None

        mailbox: Mailbox[target_pb2.TargetEvent] = Mailbox(sequence_id, epoch, take_features)
        mailbox.expect(round_index)
        message = target_pb2.TargetOpen(
            epoch=epoch,
            token_ids=token_ids,
            prompt_length=opening.prompt_length,
            sampling=opening.sampling,
            acceptance_rule=opening.acceptance_rule,
            max_length=opening.max_length,
            round=round_index,
            trace_context=trace_context,
            cache_salt=opening.cache_salt,
            feature_states=opening.feature_states,
            max_feature_tokens=opening.max_feature_tokens if with_features else 0,
            tells_features_early=on_features is not None and bool(opening.feature_states),
        )
        self.attach(mailbox, target_pb2.TargetCommand(sequence_id=sequence_id, open=message))
        return TargetSequence(self, mailbox)

    def batch_for(self, window: Window, trace_context: model_pb2.TraceContext | None) -> target_pb2.WindowBatch | None:
        """A batch that is about to be sent, for one more window; None: it has to go by itself.

        Raises:
            LinkLost: the link is not available.
        """
        if self.model_info is None or not self.model_info.takes_window_batches or not fits_batch(window, trace_context):
            return None
        command = self._last_unsent()
        if command is None or not command.HasField("windows") or len(command.windows.rounds) >= MAX_WINDOWS:
            command = target_pb2.TargetCommand(windows=target_pb2.WindowBatch())
            self.send(command)
        return command.windows

    async def _handshake(self, channel: grpc.aio.Channel) -> model_pb2.ModelInfo:
        stub = target_pb2_grpc.TargetServiceStub(channel)
        request = target_pb2.TargetServiceGetModelInfoRequest()
        model_info = (await stub.GetModelInfo(request, timeout=HANDSHAKE_SECONDS)).model_info
        check_protocol_version(model_info)
        files = await _fetch_tokenizer(stub)
        if files != self._files:
            # Reading a large tokenizer takes seconds.
            self.tokenizer = await asyncio.to_thread(_read_tokenizer, files, model_info.tokenizer_hash)
            self._files = files
        return model_info

    def _call(
        self, channel: grpc.aio.Channel
    ) -> grpc.aio.StreamStreamCall[target_pb2.VerifyRequest, target_pb2.VerifyResponse]:
        return target_pb2_grpc.TargetServiceStub(channel).Verify()

    def _pack(self, commands: list[target_pb2.TargetCommand]) -> target_pb2.VerifyRequest:
        return target_pb2.VerifyRequest(commands=commands)

    def _events(self, response: target_pb2.VerifyResponse) -> Iterable[target_pb2.TargetEvent]:
        for event in response.events:
            if event.HasField("verdicts"):
                yield from single_verdicts(event.verdicts)
            else:
                yield event

    def _load(self, response: target_pb2.VerifyResponse) -> model_pb2.Load | None:
        return response.load if response.HasField("load") else None


class TargetSequence:
    """One epoch of a sequence on the target."""

    def __init__(self, link: TargetLink, mailbox: Mailbox[target_pb2.TargetEvent]) -> None:
        self.link = link
        self._mailbox = mailbox

    @property
    def is_answered(self) -> bool:
        """Whether the answer to what was asked last, or a failure, is there to be taken."""
        return self._mailbox.is_settled

    async def answered(self, timeout_seconds: float) -> bool:
        """Wait for it; it may be waited for again. Returns `is_answered`."""
        return await self._mailbox.wait(timeout_seconds)

    def opened(self) -> target_pb2.Opened:
        """The answer to the open, without waiting.

        Raises:
            LinkLost: the stream broke.
            Refusal: the target refused the sequence.
            AnswerOverdue: there is none.
        """
        return self._mailbox.take_now().opened

    def verdict(self) -> target_pb2.Verdict:
        """The verdict of the round asked for or expected, without waiting; raises as `opened` does."""
        return self._mailbox.take_now().verdict

    def ask(
        self,
        round_index: int,
        base_length: int,
        checksum: int,
        window: Window,
        trace_context: model_pb2.TraceContext | None = None,
    ) -> None:
        """Send a window; does not wait.

        Raises:
            LinkLost: the stream broke.
            Refusal: the target refused or failed the sequence.
        """
        mailbox = self._mailbox
        mailbox.expect(round_index)
        batch = self.link.batch_for(window, trace_context)
        if batch is not None:
            add_window(batch, mailbox.sequence_id, mailbox.epoch, round_index, base_length, checksum, window)
            return
        # Written in its place: a message that is put into another is copied.
        command = target_pb2.TargetCommand(sequence_id=mailbox.sequence_id)
        message = command.window
        message.epoch = mailbox.epoch
        message.round = round_index
        message.base_length = base_length
        message.checksum = checksum
        message.token_ids.extend(window.token_ids)
        message.parents.extend(window.parents)
        message.distributions.extend(window.distributions)
        if trace_context is not None:
            message.trace_context.CopyFrom(trace_context)
        message.max_feature_tokens = window.max_feature_tokens
        message.without_features = window.without_features
        self.link.send(command)

    def push(
        self,
        round_index: int,
        base_length: int,
        checksum: int,
        candidates: Candidates,
        trace_context: model_pb2.TraceContext | None = None,
    ) -> None:
        """Send candidates for the round behind the one that is being judged; does not wait.

        Args:
            round_index: that they are for.
            base_length: committed length that the round before it stands on.
            checksum: of that prefix.
            candidates: windows by the outcome that they assume.
            trace_context: trace to put the work under.

        Raises:
            LinkLost: the stream broke.
        """
        message = target_pb2.CandidateWindows(
            epoch=self._mailbox.epoch,
            round=round_index,
            base_length=base_length,
            checksum=checksum,
            windows=[
                target_pb2.CandidateWindow(
                    num_accepted_tokens=outcome.num_accepted_tokens,
                    next_token_id=outcome.next_token_id,
                    token_ids=window.token_ids,
                )
                for outcome, window in candidates.items()
            ],
            trace_context=trace_context,
        )
        self._mailbox.foresee(round_index)
        self.link.send(target_pb2.TargetCommand(sequence_id=self._mailbox.sequence_id, candidates=message))

    def expect(self, round_index: int) -> None:
        """Wait for the verdict of a round that the target began by itself; raises as `ask` does."""
        self._mailbox.expect(round_index)

    def close(self) -> None:
        """Let the target forget the sequence. Does not wait; harmless at any time and any number of times."""
        self._mailbox.close()
        closing = target_pb2.TargetCommand(sequence_id=self._mailbox.sequence_id, close=target_pb2.TargetClose())
        self.link.detach(self._mailbox, closing)


async def _fetch_tokenizer(stub: target_pb2_grpc.TargetServiceAsyncStub) -> TokenizerFiles:
    tokenizer_json = bytearray()
    chat_template: list[str] = []
    special_tokens: dict[str, str] = {}
    num_bytes = 0
    async for part in stub.GetTokenizer(target_pb2.GetTokenizerRequest(), timeout=HANDSHAKE_SECONDS):
        num_bytes += part.ByteSize()
        if num_bytes > MAX_TOKENIZER_BYTES:
            raise HandshakeRefused(f"its tokenizer is larger than {MAX_TOKENIZER_BYTES} bytes")
        tokenizer_json += part.tokenizer_json
        chat_template.append(part.chat_template)
        special_tokens.update(part.special_tokens)
    return TokenizerFiles(bytes(tokenizer_json), "".join(chat_template), special_tokens)


def _read_tokenizer(files: TokenizerFiles, announced_hash: str) -> PromptTokenizer:
    try:
        actual_hash = tokenizer_hash(files)
        if actual_hash != announced_hash:
            raise HandshakeRefused(f"it announces tokenizer {announced_hash!r} and sends {actual_hash!r}")
        return PromptTokenizer(files)
    except TokenizerFilesError as error:
        raise HandshakeRefused(f"its tokenizer is damaged: {error}") from error
