"""Rounds that begin without being asked for: by a candidate window, as soon as the round before is judged."""

from __future__ import annotations

from specdec.engine.sequences import check_prefix
from specdec.errors import FailedPreconditionError
from specdec.telemetry.metrics import CandidateMetrics
from specdec.v1 import model_pb2, target_pb2
from target_service.candidates import read_candidates
from target_service.judge import DraftWindow
from target_service.sequence import PendingRound, TargetSequence


class CandidateRounds:
    """Keeps the candidates of sequences, and chooses the one to go on with.

    Only windows whose condition holds are ever run, so candidates cost the target no rows that a window would not.

    Args:
        info: what the service advertises; its limits are enforced here.
        metrics: where it is counted what became of candidates.
    """

    def __init__(self, info: model_pb2.ModelInfo, metrics: CandidateMetrics | None = None) -> None:
        self._info = info
        self._metrics = metrics or CandidateMetrics()

    def keep(
        self, sequence: TargetSequence | None, message: target_pb2.CandidateWindows, pending: PendingRound | None
    ) -> bool:
        """Keep candidates until the round before them is judged. Returns whether it has been already.

        Args:
            sequence: that they are for; None: they are of an epoch that is over.
            message: as it came.
            pending: the sequence's round that waits for its verdict.

        Raises:
            InvalidArgumentError: they are malformed.
            FailedPreconditionError: they stand on another prefix, or on a round that nobody asked for.
        """
        if sequence is None:
            self._metrics.ended(len(message.windows), "stale")
            return False
        candidates = read_candidates(message, sequence.rule, sequence.params, self._info)
        last = sequence.last_answer
        known = pending.round if pending is not None else last.round if last is not None else -1
        if candidates.round <= known or sequence.candidates is not None:
            self._metrics.ended(len(candidates), "stale")
            return False
        if candidates.round > known + 1:
            raise FailedPreconditionError(
                f"candidates for round {candidates.round} came before round {candidates.round - 1} was asked for"
            )
        is_judged = pending is None and last is not None
        check_prefix(
            candidates.base_length,
            candidates.checksum,
            known_length=last.base_length if is_judged and last is not None else len(sequence.token_ids),
            known_checksum=sequence.previous_checksum if is_judged else sequence.checksum,
            what="candidates",
        )
        sequence.candidates = candidates
        return is_judged

    def choose(self, sequence: TargetSequence) -> tuple[int, DraftWindow, int, model_pb2.TraceContext] | None:
        """The last round is judged: the round to go on with, its window, and which candidate that is; no more are kept.

        None: nothing was sent for this outcome, or the sequence has come to its end.
        """
        candidates, sequence.candidates = sequence.candidates, None
        if candidates is None or sequence.last_answer is None:
            return None
        found = candidates.following(sequence.last_answer)
        if found is None or len(sequence.token_ids) >= sequence.max_length:
            self._metrics.ended(len(candidates), "miss")
            return None
        self._metrics.ended(1, "hit")
        self._metrics.ended(len(candidates) - 1, "miss")
        number, window = found
        return candidates.round, sequence.fit_window(window), number, candidates.trace_context

    def close(self, sequence: TargetSequence) -> None:
        """The sequence ends."""
        self._metrics.ended(len(sequence.candidates or ()), "closed")
        sequence.candidates = None
