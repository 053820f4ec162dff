"""The target's side of one request where windows are sent to it before it is known which of them will be wanted."""

from __future__ import annotations

from opentelemetry.trace import Span

from orchestrator.candidates import Candidates
from orchestrator.committed import ImpossibleVerdict
from orchestrator.links.mailbox import LinkLost
from orchestrator.links.target import FeaturesTaker, TargetSequence
from orchestrator.verifier import Judged, Verifier
from orchestrator.window import Window
from specdec.candidates import outcome_of
from specdec.v1 import model_pb2, target_pb2


class CandidateVerifier(Verifier):
    """Has windows judged, and passes candidates on to the target while it judges.

    When a verdict is one that a candidate was sent for, the target has gone on with that: the next round is under way,
    and its window is known here by the same rule as there (`outcome_of`). Candidates only ever travel behind the window
    that they follow. When the sequence is opened again, what was under way is over with its epoch.
    """

    under_way: Window | None = None
    """What the target is judging already: the window of the next round, once a verdict has been given."""
    _number: int | None = None
    """Which candidate that is."""
    _asked_round: int | None = None
    """The round that the target is judging; candidates for the one behind it may be sent."""
    _sent: Candidates | None = None
    """For the round behind that."""
    _kept: tuple[int, Candidates] | None = None
    """Candidates that came before the window of the round that they follow was sent."""
    _trace_context: model_pb2.TraceContext | None = None

    def offer(self, round_index: int, candidates: Candidates) -> None:
        """Take continuations of the proposal for a round. Does not wait.

        Args:
            round_index: of the proposal.
            candidates: for outcomes of its window.
        """
        if not candidates:
            return
        if self._asked_round == round_index:
            self._send(candidates)
        else:
            self._kept = round_index, candidates

    async def verify(self, round_index: int, window: Window, parent: Span) -> Judged:
        """Have a window judged, or see what has become of the one that is under way; `window` is not sent then.

        Raises:
            Refusal: as `prefill`.
        """
        judged = await super().verify(round_index, window if self.under_way is None else self.under_way, parent)
        self._settle(round_index, judged)
        return judged

    async def _verdict(
        self,
        sequence: TargetSequence,
        round_index: int,
        window: Window,
        trace_context: model_pb2.TraceContext | None,
    ) -> target_pb2.Verdict:
        if self.under_way is None:
            sequence.ask(round_index, len(self._committed), self._committed.checksum, window, trace_context)
        else:
            sequence.expect(round_index)
        self._asked_round, self._trace_context = round_index, trace_context
        if self._kept is not None and self._kept[0] == round_index:
            self._send(self._kept[1])
        verdict = await self._answer(sequence)
        number = verdict.candidate if verdict.HasField("candidate") else None
        if number != self._number:
            raise ImpossibleVerdict(f"it judged candidate {number}, and {self._number} was under way")
        return verdict

    async def _open(
        self,
        round_index: int,
        deadline: float,
        trace_context: model_pb2.TraceContext | None,
        *,
        with_features: bool,
        on_features: FeaturesTaker | None = None,
    ) -> Judged:
        self._forget()
        opening = (round_index, deadline, trace_context)
        return await super()._open(*opening, with_features=with_features, on_features=on_features)

    def _send(self, candidates: Candidates) -> None:
        """For the round behind the one that is being judged; the first ones of a round count."""
        if self._sent is not None or self._sequence is None or self._asked_round is None:
            return
        try:
            self._sequence.push(
                self._asked_round + 1,
                len(self._committed),
                self._committed.checksum,
                candidates,
                self._trace_context,
            )
        except LinkLost:
            return  # Whoever waits for the verdict learns it too.
        self._sent = candidates

    def _settle(self, round_index: int, judged: Judged) -> None:
        """Find out whether the target has gone on."""
        sent = self._sent
        self._forget()
        outcome = outcome_of(judged.verdict.accepted_nodes, judged.verdict.next_token_id)
        if sent is None or outcome not in sent or judged.verdict.committed_length >= self._committed.max_length:
            return
        self.under_way = sent[outcome]
        self._number = list(sent).index(outcome)
        self._asked_round = round_index + 1

    def _forget(self) -> None:
        self.under_way = self._number = self._asked_round = self._sent = self._kept = None
