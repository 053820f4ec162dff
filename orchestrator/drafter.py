"""The draft service's side of one request: proposals when they can be had, and never an error."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from opentelemetry import trace
from opentelemetry.trace import Span

from orchestrator.candidates import Candidates, read_candidates
from orchestrator.catch_up import CatchUp, CatchUpOfRequest
from orchestrator.committed import CommittedTokens
from orchestrator.draft_choice import DraftChoice, is_past_context
from orchestrator.drafted import EMPTY, NOTHING_DRAFTED, PREFILL, Drafted
from orchestrator.links.draft import NOTHING_AHEAD, AheadWish, DraftSequence
from orchestrator.links.mailbox import AnswerOverdue, LinkLost
from orchestrator.links.opening import Opening
from orchestrator.pipeline import Pipeline, PipelineOfRequest
from orchestrator.replicas.drafts import Drafts
from orchestrator.verifier import Judged
from orchestrator.window import EMPTY_WINDOW, ImpossibleProposal, Window
from orchestrator.window_sizes import NO_TOKENS, WindowSizes
from specdec.candidates import MAX_CANDIDATES
from specdec.draft_source import LOOKUP_SOURCES
from specdec.errors import Refusal
from specdec.telemetry import names, tracing
from specdec.telemetry.metrics import OrchestratorMetrics
from specdec.v1 import draft_pb2, model_pb2

_CAUSES: dict[type[Exception], str] = {LinkLost: "lost", AnswerOverdue: "overdue", ImpossibleProposal: "invalid"}

_log = logging.getLogger(__name__)


class Drafter:
    """Asks for proposals and tells the draft service what became of them.

    A draft service that is missing, slow or wrong costs this request its drafts, nothing else: the sequence is opened
    again on another replica, or after a pause, which grows with each failure in a row.

    Args:
        drafts: replicas of the draft service; None: there are none.
        sequence_id: names the request on every stream.
        opening: what the draft service is told besides the tokens.
        committed: tokens so far; read, never changed.
        timeout_seconds: longest wait for a proposal.
        metrics: where fallbacks and resyncs are counted.
        catch_up: says how long to wait for a draft model that has to run many tokens first; None: as by no experience.
        pipeline: says whether to draft ahead; None: never.
        on_candidates: takes what was drafted ahead for the outcomes of a round, by its index; None: nobody does.
    """

    def __init__(
        self,
        drafts: Drafts | None,
        sequence_id: bytes,
        opening: Opening,
        committed: CommittedTokens,
        timeout_seconds: float,
        metrics: OrchestratorMetrics,
        catch_up: CatchUp | None = None,
        pipeline: Pipeline | None = None,
        on_candidates: Callable[[int, Candidates], None] | None = None,
    ) -> None:
        self._choice = DraftChoice(drafts, opening)
        self._link = self._choice.likely
        """To the replica that has the sequence, or had it last."""
        self._pipeline = PipelineOfRequest(pipeline or Pipeline("off"))
        self._metrics = metrics
        self._catch_up = CatchUpOfRequest(catch_up or CatchUp())
        self._sequence_id = sequence_id
        self._opening = opening
        self._committed = committed
        self._timeout_seconds = timeout_seconds
        self._epoch = 0
        self._sequence: DraftSequence | None = None
        self._on_candidates = on_candidates
        self._asked = NO_TOKENS
        self._asked_round = 0
        self._asked_at = 0.0
        """In seconds of `time.perf_counter`."""
        self._is_late = False
        """The proposal asked for was not waited for; until it has come, rounds are plain and their outcomes held."""
        self._ahead = NOTHING_AHEAD
        self._proposed: Sequence[int] = ()
        """Of the last round."""
        self._lacks_features = False
        """The draft service was opened in mid-request, and reads states of the target that it has not seen."""
        self._span: Span = trace.INVALID_SPAN

    def prefill(self) -> None:
        """Open the sequence without asking for a proposal. Does not wait."""
        self._open(0, NO_TOKENS)

    def take_features(self, told: model_pb2.FeaturesTold) -> None:
        """Hand on what the target tells while it prefills, so that the draft model prefills beside it."""
        if self._sequence is not None and self._reads_features:
            self._sequence.tell_features(told)

    def ask(
        self,
        last: Judged,
        round_index: int,
        choose: Callable[[], WindowSizes],
        parent: Span,
        *,
        under_way: Window | None = None,
    ) -> None:
        """Tell the outcome of the last round, now committed, and ask for the next proposal. Does not wait.

        While a late proposal is still to come, the outcome is held until then, and nothing is asked.

        Args:
            last: the outcome.
            round_index: round the proposal is for.
            choose: says how many tokens to propose at most; called if any are asked for.
            parent: the round's span.
            under_way: what the target is judging already, a candidate for the outcome; sizes are of what follows it.
        """
        if self._is_late and self._sequence is not None:
            if not self._sequence.is_answered and time.perf_counter() < self._asked_at + self._timeout_seconds:
                told, checksum = last.verdict, self._committed.checksum
                self._sequence.hold(round_index, told.base_length, told.next_token_id, checksum, told.features)
                return
            self._take_late(self._sequence)
        sizes = choose().at_most(self._committed.room - 1)
        ahead = AheadWish(self._drafts_ahead(sizes), sizes.model)
        if under_way is not None:
            sizes = WindowSizes(len(under_way), len(under_way))
            ahead = ahead._replace(is_candidate=True)
        if ahead.is_wanted and self._on_candidates is not None and self._pipeline.pushes_candidates:
            ahead = ahead._replace(max_candidates=MAX_CANDIDATES)
        self._asked, self._asked_round, self._ahead = sizes, round_index, ahead
        self._asked_at = time.perf_counter()
        if sizes.largest:
            self._span = tracing.start_span(names.DRAFT, parent=parent)
        if last.is_window_refused:
            self._fail("window_refused")
        if not last.accepts_of(self._proposed):
            # The target went on with a window that was no more proposed.
            self._give_up()
        self._proposed = ()
        self._lacks_features = False
        if self._link is not None and self._choice.is_better_moved(self._link):
            self._give_up()
        if self._sequence is None or is_past_context(self._link, len(self._committed)):
            if not sizes.largest:
                # Its model is not to run all that is committed before drafts are wanted.
                self._give_up()
                return
            self._link = self._link or self._choice.likely
            if self._reads_features:
                # Its model would draft from guesses alone. The verdict of this round brings it what it needs.
                self._asked = sizes = sizes._replace(model=0)
                self._lacks_features = True
            self._open(round_index, sizes)
            self._catch_up.num_lacking = self._lacking(sizes)
            return
        # A window that is under way was drafted already.
        self._catch_up.num_lacking = self._lacking(sizes) if under_way is None else 0
        try:
            self._sequence.commit(
                round_index,
                last.verdict.base_length,
                list(last.verdict.accepted_nodes),
                last.verdict.next_token_id,
                self._committed.checksum,
                self._most(sizes),
                tracing.to_trace_context(self._span),
                last.verdict.features,
                ahead=ahead,
            )
        except (LinkLost, Refusal) as failure:
            self._fail(_CAUSES.get(type(failure), "refused"))

    async def drafted(self) -> Drafted:
        """The proposal asked for, or an empty window if it cannot be had."""
        drafted = await self._drafted()
        if self._sequence is None and self._opening.feature_states:
            # Whoever drafts next asks for those of all tokens.
            return drafted.without_features()
        if self._sequence is not None and self._lacks_features:
            wanted = replace(drafted.window, max_feature_tokens=self._opening.max_feature_tokens)
            return replace(drafted, window=wanted)
        return drafted

    async def _drafted(self) -> Drafted:
        if self._is_late:
            self._metrics.fallback(PREFILL)
            return Drafted(EMPTY_WINDOW, PREFILL)
        if not self._asked.largest:
            return NOTHING_DRAFTED
        began = time.perf_counter()
        patience_seconds = self._catch_up.patience_seconds(by_lookup=self._asks_lookup_alone)
        if self._sequence is not None and patience_seconds < self._timeout_seconds:
            self._is_late = not await self._sequence.answered(patience_seconds)
        catches_up = not self._catch_up.run_length or math.isfinite(patience_seconds)
        proposal = await self._proposal() if not self._is_late else None
        if self._is_late:
            # Continuations of a proposal that is not used are of no use.
            self._ahead = NOTHING_AHEAD
            drafted = Drafted(EMPTY_WINDOW, PREFILL, time.perf_counter() - began)
        elif proposal is None:
            drafted = Drafted(EMPTY_WINDOW, self._choice.cause, time.perf_counter() - began)
        else:
            window, sent = proposal
            # Lookup alone, beside a model, is asked on the off chance.
            cause = "" if window or not self._asked.model else EMPTY
            waited = time.perf_counter() - began
            drafted = Drafted(window, cause, waited, sent.timings, sent.source, sent.ahead, catches_up)
            self._pipeline.answered(sent)
        if drafted.fallback_cause:
            self._metrics.fallback(drafted.fallback_cause)
        self._span.set_attribute(names.ROUND_NUM_DRAFT_TOKENS, len(drafted.window))
        self._span.end()
        return drafted

    def close(self) -> None:
        """Let the draft service forget the sequence. Does not wait; harmless at any time."""
        self._give_up()
        if self._span.is_recording():
            self._span.end()

    async def _proposal(self) -> tuple[Window, draft_pb2.Proposal] | None:
        """The proposal as a window, and as it came; None if the sequence is, or had to be, given up."""
        if self._sequence is None:
            return None
        began = time.perf_counter()
        try:
            proposal = await self._sequence.proposal(self._most_seconds)
            window = Window.from_proposal(
                proposal, len(self._committed), self._asked.largest, self._committed.vocab_size
            )
        except (LinkLost, AnswerOverdue, Refusal, ImpossibleProposal) as failure:
            self._fail(_CAUSES.get(type(failure), "refused"), time.perf_counter() - began)
            return None
        self._note_run(proposal)
        if self._link is not None:
            self._link.patience.answered(time.perf_counter() - began)
        self._proposed = window.token_ids
        return window, proposal

    @property
    def _most_seconds(self) -> float:
        """Longest wait for a proposal: a model that only goes on has a time of its own, by what it took so far."""
        goes_on = self._link is not None and self._catch_up.run_length > 0
        usual_seconds = self._link.patience.round_seconds() if self._link is not None and goes_on else math.inf
        return min(self._timeout_seconds, usual_seconds)

    def _take_late(self, sequence: DraftSequence) -> None:
        """It has come, or a failure, or it takes too long: from now on proposals are asked for again."""
        self._is_late = False
        try:
            # Its tokens continue what is past.
            self._note_run(sequence.late_proposal())
        except (LinkLost, AnswerOverdue, Refusal) as failure:
            self._fail(_CAUSES.get(type(failure), "refused"))

    def _note_run(self, proposal: draft_pb2.Proposal) -> None:
        """The drafter is at work, and its model, if it made this, has run all tokens before it."""
        if self._link is not None:
            self._choice.worked(self._link)
        if self._catch_up.num_lacking and proposal.source not in LOOKUP_SOURCES:
            self._catch_up.proposed(proposal)

    @property
    def _asks_lookup_alone(self) -> bool:
        """Beside a model, which may be at work for others."""
        return self._link is not None and self._link.has_model and not self._asked.model

    def _lacking(self, sizes: WindowSizes) -> int:
        """Tokens that the draft model has to run first if it is asked for so many."""
        asks_model = self._link is not None and self._link.has_model and sizes.model > 0
        return len(self._committed) - self._catch_up.run_length if asks_model else 0

    def _take_aside(self, event: draft_pb2.DraftEvent) -> bool:
        """Note how far its prefill is, or hand continuations on; False: they are late, or not what was asked for."""
        if event.HasField("prefilled"):
            self._catch_up.run_length = min(event.prefilled.length, len(self._committed))
            return True
        if self._on_candidates is None or event.round != self._asked_round or not self._ahead.max_candidates:
            return False
        sizes, committed = (self._asked.largest, self._ahead.num_draft_tokens), self._committed
        try:
            candidates = read_candidates(event.candidates, len(committed), *sizes, committed.vocab_size)
        except ImpossibleProposal as problem:
            _log.info("candidates of the draft service were dropped: %s", problem)
            return False
        self._on_candidates(event.round, candidates)
        return True

    def _give_up(self) -> None:
        if self._sequence is not None:
            self._sequence.close()
            self._sequence = None

    def _open(self, round_index: int, sizes: WindowSizes) -> None:
        """Open the sequence with all that is committed, if that can be done now; else note the cause."""
        self._give_up()
        self._is_late = False
        self._catch_up.opened()
        link = self._choice.choose(len(self._committed))
        if link is None:
            return
        if self._epoch:
            self._metrics.resync("draft")
            if link is not self._link:
                self._metrics.failover("draft")
        self._link = link
        self._epoch += 1
        try:
            self._sequence = link.open(
                self._sequence_id,
                self._epoch,
                round_index,
                self._opening,
                self._committed.token_ids,
                self._most(sizes),
                tracing.to_trace_context(self._span),
                self._take_aside,
            )
        except LinkLost:
            self._fail("lost")

    def _fail(self, cause: str, seconds_lost: float = 0.0) -> None:
        """Give the sequence up, and rest for a while."""
        _log.info("the draft service failed a sequence: %s", cause)
        self._give_up()
        if self._link is not None:
            self._choice.failed(self._link, cause, seconds_lost)

    def _drafts_ahead(self, sizes: WindowSizes) -> bool:
        model_info = self._link.model_info if self._link is not None else None
        return bool(sizes.model) and model_info is not None and self._pipeline.asked()

    @property
    def _reads_features(self) -> bool:
        return self._link is not None and bool(self._link.feature_states)

    def _most(self, sizes: WindowSizes) -> WindowSizes:
        """As many as are wanted and the drafter may be asked for."""
        model_info = self._link.model_info if self._link is not None else None
        return sizes.at_most(model_info.max_num_draft_tokens if model_info is not None else 0)
