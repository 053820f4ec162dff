"""What a round costs in time, from what the services say of the rounds before. One for all requests."""

from __future__ import annotations

from orchestrator.rounds import Round
from specdec.forward_costs import ForwardCosts
from specdec.v1 import model_pb2

_RATE = 0.05
"""Weight of one round in an average; all requests feed them, so they still follow within a second or two."""
_LEAST_SECONDS = 1e-6
_ROWS_TWICE_THE_TIME = 64
"""Of a target that measured nothing: rows at which a pass is taken to last twice as long as with one, to begin with."""


class RoundCosts:
    """Predicts the duration of a round with K draft tokens.

    A round waits for K draft steps, for the network, and for a forward pass of the target over the windows of all
    sequences that share it. The others are taken to draft as many tokens as this one: then what is best for one is best
    for all, and nobody's choice depends on who chooses first. The wait before the pass grows with the passes of others,
    so it is kept as a multiple of the pass itself.
    """

    def __init__(self) -> None:
        self._announced: tuple[tuple[int, int], ...] = ()
        self._forward: ForwardCosts | None = None
        self._step_seconds = self._draft_queue_seconds = 0.0
        self._lookup_seconds = 0.0
        self._network_seconds = 0.0
        self._queue_ratio = 0.0
        self._batch_sequences = 1.0
        self._num_drafted = 0
        self._has_looked_up = False
        self._has_verified = False

    def announce(self, model_info: model_pb2.ModelInfo) -> None:
        """Take the costs that a target measured when it started, unless they are known."""
        announced = tuple((cost.rows, cost.microseconds) for cost in model_info.forward_costs)
        if announced and announced != self._announced:
            self._announced = announced
            try:
                self._forward = ForwardCosts((rows, microseconds / 1e6) for rows, microseconds in announced)
            except ValueError:
                # Costs that make no sense are those of a target that measured nothing.
                self._forward = None

    def observe(self, done: Round) -> None:
        """Take in a round that was committed. The prefill is not a round."""
        times = done.times()
        verify, draft = done.judged.verdict.timings, done.drafted.timings
        if verify.batch_rows and times.target_compute:
            if self._forward is None:
                first = times.target_compute / (1 + (verify.batch_rows - 1) / (_ROWS_TWICE_THE_TIME - 1))
                self._forward = ForwardCosts([(1, first), (_ROWS_TWICE_THE_TIME, 2 * first)])
            self._forward.observe(verify.batch_rows, times.target_compute)
            rate = _RATE if self._has_verified else 1.0
            self._has_verified = True
            self._network_seconds += rate * (times.network - self._network_seconds)
            self._queue_ratio += rate * (times.target_queue / times.target_compute - self._queue_ratio)
            self._batch_sequences += rate * (verify.batch_sequences - self._batch_sequences)
        seconds = times.draft_queue + times.draft_compute
        if draft is None or not done.num_draft_tokens:
            return
        if done.is_by_lookup:
            rate = _RATE if self._has_looked_up else 1.0
            self._has_looked_up = True
            self._lookup_seconds += rate * (seconds - self._lookup_seconds)
        else:
            # The whole time holds what the drafter had to catch up on, such as the prompt. Who does not say more is
            # believed only where that is little.
            if draft.step_microseconds:
                self._observe_step(draft.step_microseconds / 1e6)
            elif done.index > 1:
                self._observe_step(times.draft_compute / max(1, done.num_steps))
            self._draft_queue_seconds += _RATE * (times.draft_queue - self._draft_queue_seconds)

    def _observe_step(self, seconds: float) -> None:
        # Averaged by their logarithms, and the first ones alike: one step that took very long is soon forgotten.
        self._num_drafted += 1
        rate = max(_RATE, 1.0 / self._num_drafted)
        ratio = max(seconds, _LEAST_SECONDS) / max(self._step_seconds, _LEAST_SECONDS)
        self._step_seconds = max(self._step_seconds, _LEAST_SECONDS) * ratio**rate

    def are_known(self, *, by_lookup: bool) -> bool:
        """Whether enough is known to base a choice on: of rounds that a draft model works for, what it takes."""
        return self._forward is not None and (by_lookup or self._num_drafted > 0)

    def draft_seconds(self, num_steps: int, *, by_lookup: bool) -> float:
        """Expected duration of drafting, in seconds.

        Args:
            num_steps: of a draft model.
            by_lookup: whether lookup finds the tokens instead.
        """
        return self._lookup_seconds if by_lookup else num_steps * self._step_seconds + self._draft_queue_seconds

    def other_seconds(self, num_draft_tokens: int) -> float:
        """Expected duration of a round with so many draft tokens without the drafting, in seconds.

        Raises:
            RuntimeError: nothing is known yet.
        """
        if self._forward is None:
            raise RuntimeError("no forward pass was measured yet")
        rows = max(1.0, self._batch_sequences) * (num_draft_tokens + 1)
        verify = (1.0 + self._queue_ratio) * self._forward.seconds(rows)
        return self._network_seconds + verify
