"""The link to the draft service."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import grpc.aio

from orchestrator.links.link import HANDSHAKE_SECONDS, SILENCE_SECONDS, Link, check_protocol_version
from orchestrator.links.mailbox import Mailbox
from orchestrator.links.opening import Opening
from orchestrator.window_sizes import WindowSizes
from specdec.features import MAX_BYTES
from specdec.serving.channel_security import ChannelSecurity
from specdec.telemetry.metrics import OrchestratorMetrics
from specdec.v1 import draft_pb2, draft_pb2_grpc, model_pb2

_MOST_UNSENT = 256
"""Commands that wait to be sent from which on features are left out: they may have 2 MiB each. More than the commits
of one turn of the event loop, which are gone in a moment."""


class ServedTarget(Protocol):
    """What a drafter is held against."""

    @property
    def model_info(self) -> model_pb2.ModelInfo | None:
        """Facts of the target; None: not known yet."""


class DraftLink(Link[draft_pb2.DraftCommand, draft_pb2.ProposeResponse, draft_pb2.DraftEvent]):
    """The link to a draft replica."""

    service_name = "draft"

    def __init__(
        self,
        address: str,
        target: ServedTarget,
        metrics: OrchestratorMetrics,
        on_change: Callable[[], None],
        *,
        security: ChannelSecurity | None = None,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        super().__init__(address, metrics, on_change, security=security, silence_seconds=silence_seconds)
        self._target = target

    @property
    def mismatch(self) -> str:
        """What keeps the drafter from working with the target, with the two values named. Empty: nothing does."""
        draft, target = self.model_info, self._target.model_info
        if draft is None or target is None:
            return ""
        if draft.tokenizer_hash and draft.tokenizer_hash != target.tokenizer_hash:
            return f"the draft has tokenizer {draft.tokenizer_hash!r} and the target {target.tokenizer_hash!r}"
        if draft.vocab_size and draft.vocab_size != target.vocab_size:
            return f"the draft has a vocabulary of {draft.vocab_size} and the target one of {target.vocab_size}"
        if draft.feature_states and draft.feature_states[-1] > target.num_hidden_states:
            return (
                f"the draft reads hidden state {draft.feature_states[-1]} and the target gives "
                f"{target.num_hidden_states or 'none'}"
            )
        if draft.feature_states and draft.hidden_size != target.hidden_size:
            return f"the draft reads hidden states of {draft.hidden_size} and the target has {target.hidden_size}"
        return ""

    @property
    def has_model(self) -> bool:
        """Whether a draft model may make windows; if nothing is known of the drafter, it may."""
        return self.model_info is None or bool(self.model_info.dtype)

    @property
    def feature_states(self) -> tuple[int, ...]:
        """Hidden states of the target that the drafter reads; empty if it cannot work with the target."""
        return tuple(self.model_info.feature_states) if self.model_info is not None and not self.mismatch else ()

    @property
    def max_feature_tokens(self) -> int:
        """Of how many tokens the drafter takes features at once."""
        return self.model_info.max_feature_tokens if self.model_info is not None else 0

    def suits(self, acceptance_rule: model_pb2.AcceptanceRule.ValueType) -> bool:
        """The drafter works with the target and can draft for this rule."""
        return self.model_info is not None and not self.mismatch and acceptance_rule in self.model_info.acceptance_rules

    def open(
        self,
        sequence_id: bytes,
        epoch: int,
        round_index: int,
        opening: Opening,
        token_ids: Sequence[int],
        sizes: WindowSizes,
        trace_context: model_pb2.TraceContext | None = None,
        aside: Callable[[draft_pb2.DraftEvent], bool] | None = None,
    ) -> DraftSequence:
        """Start a sequence, or start it again with all its committed tokens under the next epoch.

        Unless all `sizes` are 0, a proposal for the round is asked for at once. `aside` takes what is no proposal as it
        comes: how far a prefill is, and continuations, if later commits ask for them. It says whether that was wanted.

        Raises:
            LinkLost: the link is not available.
        """
        mailbox: Mailbox[draft_pb2.DraftEvent] = Mailbox(sequence_id, epoch, aside)
        mailbox.expect(round_index)
        message = draft_pb2.DraftOpen(
            epoch=epoch,
            token_ids=token_ids,
            prompt_length=opening.prompt_length,
            sampling=opening.sampling,
            acceptance_rule=opening.acceptance_rule,
            round=round_index,
            num_draft_tokens=sizes.model,
            num_lookup_tokens=sizes.lookup,
            max_draft_steps=sizes.steps,
            trace_context=trace_context,
            tenant=opening.tenant,
            max_length=opening.max_length,
        )
        self.attach(mailbox, draft_pb2.DraftCommand(sequence_id=sequence_id, open=message))
        return DraftSequence(self, mailbox)

    async def _handshake(self, channel: grpc.aio.Channel) -> model_pb2.ModelInfo:
        stub = draft_pb2_grpc.DraftServiceStub(channel)
        request = draft_pb2.DraftServiceGetModelInfoRequest()
        model_info = (await stub.GetModelInfo(request, timeout=HANDSHAKE_SECONDS)).model_info
        check_protocol_version(model_info)
        return model_info

    def _call(
        self, channel: grpc.aio.Channel
    ) -> grpc.aio.StreamStreamCall[draft_pb2.ProposeRequest, draft_pb2.ProposeResponse]:
        return draft_pb2_grpc.DraftServiceStub(channel).Propose()

    def _pack(self, commands: list[draft_pb2.DraftCommand]) -> draft_pb2.ProposeRequest:
        return draft_pb2.ProposeRequest(commands=commands)

    def _events(self, response: draft_pb2.ProposeResponse) -> Iterable[draft_pb2.DraftEvent]:
        return response.events

    def _load(self, response: draft_pb2.ProposeResponse) -> model_pb2.Load | None:
        return response.load if response.HasField("load") else None


class AheadWish(NamedTuple):
    """What a commit wants of drafting ahead."""

    is_wanted: bool = False
    """Draft ahead for the proposal's outcome, once it is made."""
    num_draft_tokens: int = 0
    """Tokens of a continuation; 0: as many as of the proposal."""
    max_candidates: int = 0
    """Continuations that are to be told before the outcome is known."""
    is_candidate: bool = False
    """The proposal is one that was told: the target is judging it."""


NOTHING_AHEAD = AheadWish()


class DraftSequence:
    """One epoch of a sequence on the draft service."""

    def __init__(self, link: DraftLink, mailbox: Mailbox[draft_pb2.DraftEvent]) -> None:
        self._link = link
        self._mailbox = mailbox
        self._held: list[draft_pb2.DraftCommit] = []
        """Outcomes that were not told yet, in order."""
        self._num_held_bytes = 0

    def tell_features(self, told: model_pb2.FeaturesTold) -> None:
        """Tell features of committed tokens before the commit that follows; does not wait.

        Not to a replica that does not read, which then does without. If the stream broke, the commit says so.
        """
        if self._link.is_available and self._link.num_unsent < _MOST_UNSENT:
            features = draft_pb2.DraftFeatures(epoch=self._mailbox.epoch, told=told)
            self._link.send(draft_pb2.DraftCommand(sequence_id=self._mailbox.sequence_id, features=features))

    def hold(
        self, round_index: int, base_length: int, next_token_id: int, checksum: int, features: bytes = b""
    ) -> None:
        """Keep the outcome of a round without draft tokens, to be told with the next commit.

        A commit ends the work on the proposal that was asked for before it, so none is sent while that is awaited.

        Args: as `commit`.
        """
        self._held.append(
            draft_pb2.DraftCommit(
                epoch=self._mailbox.epoch,
                round=round_index,
                base_length=base_length,
                next_token_id=next_token_id,
                committed_length=base_length + 1,
                checksum=checksum,
                features=features,
            )
        )
        self._num_held_bytes += len(features)
        # A drafter reads no more than this of the last tokens, so the first ones are not missed.
        for held in self._held:
            if self._num_held_bytes <= MAX_BYTES:
                break
            self._num_held_bytes -= len(held.features)
            held.ClearField("features")

    def commit(
        self,
        round_index: int,
        base_length: int,
        accepted_nodes: Sequence[int],
        next_token_id: int,
        checksum: int,
        sizes: WindowSizes,
        trace_context: model_pb2.TraceContext | None = None,
        features: bytes = b"",
        *,
        ahead: AheadWish = NOTHING_AHEAD,
    ) -> None:
        """Tell the outcome of a round, after all that were held, and ask for the next proposal; does not wait.

        Args:
            round_index: round the next proposal is for.
            base_length: committed length before the outcome.
            accepted_nodes: nodes of the last proposal that the target accepted, from its root on.
            next_token_id: the target's own token after them.
            checksum: of the committed prefix with the outcome.
            sizes: tokens to propose.
            trace_context: trace to put the work under.
            features: of the outcome's verdict.
            ahead: what to do once it is made.

        Raises:
            LinkLost: the stream broke.
            Refusal: the draft service refused or failed the sequence.
        """
        self._mailbox.expect(round_index)
        for held in self._held:
            self._link.send(draft_pb2.DraftCommand(sequence_id=self._mailbox.sequence_id, commit=held))
        self._held, self._num_held_bytes = [], 0
        # Written in its place: a message that is put into another is copied.
        command = draft_pb2.DraftCommand(sequence_id=self._mailbox.sequence_id)
        commit = command.commit
        commit.epoch = self._mailbox.epoch
        commit.round = round_index
        commit.base_length = base_length
        commit.num_accepted_tokens = len(accepted_nodes)
        commit.next_token_id = next_token_id
        commit.committed_length = base_length + len(accepted_nodes) + 1
        commit.checksum = checksum
        commit.num_draft_tokens, commit.num_lookup_tokens, commit.max_draft_steps = sizes
        if accepted_nodes != list(range(len(accepted_nodes))):
            commit.accepted_nodes.extend(accepted_nodes)
        if trace_context is not None:
            commit.trace_context.CopyFrom(trace_context)
        if features:
            commit.features = features
        if ahead != NOTHING_AHEAD:
            commit.draft_ahead = ahead.is_wanted
            commit.num_ahead_tokens = ahead.num_draft_tokens
            commit.max_candidates = ahead.max_candidates
            commit.is_candidate = ahead.is_candidate
        self._link.send(command)

    async def proposal(self, timeout_seconds: float) -> draft_pb2.Proposal:
        """The proposal last asked for.

        Raises:
            LinkLost: the stream broke.
            Refusal: the draft service refused or failed the sequence.
            AnswerOverdue: no answer in time.
        """
        return (await self._mailbox.take(timeout_seconds)).proposal

    @property
    def is_answered(self) -> bool:
        """Whether the proposal last asked for, or a failure, is there to be taken."""
        return self._mailbox.is_settled

    async def answered(self, timeout_seconds: float) -> bool:
        """Wait for the proposal last asked for, which may be taken later all the same. Returns `is_answered`."""
        return await self._mailbox.wait(timeout_seconds)

    def late_proposal(self) -> draft_pb2.Proposal:
        """The proposal last asked for, without waiting.

        Raises:
            LinkLost, Refusal, AnswerOverdue: as `proposal`.
        """
        return self._mailbox.take_now().proposal

    def close(self) -> None:
        """Let the draft service forget the sequence. Does not wait; harmless at any time and any number of times."""
        self._mailbox.close()
        closing = draft_pb2.DraftCommand(sequence_id=self._mailbox.sequence_id, close=draft_pb2.DraftClose())
        self._link.detach(self._mailbox, closing)
