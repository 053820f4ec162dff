"""What a round costs in time, from what the services say of the rounds before. One for all requests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from orchestrator.rounds import Round
from specdec.forward_costs import ForwardCosts
from specdec.planning.pipeline import Pipeline, RoundParts
from specdec.v1 import model_pb2

_RATE = 0.05
"""Weight of one round in an average; all requests feed them, so they still follow within a second or two."""
_LEAST_SECONDS = 1e-6
_SEQUENCES_OF_TWO_GROUPS = 1.5
"""With fewer, as an average, they are one."""
_NOTHING_HIDDEN = Pipeline("off")
_ROWS_TWICE_THE_TIME = 64
"""Of a target that measured nothing: rows at which a pass is taken to last twice as long as with one, to begin with."""


class _Groups:
    """Sequences that take turns at the target, in groups of equal size."""

    def __init__(self, num_groups: int, num_sequences: float, step_seconds: float, forward: ForwardCosts) -> None:
        self.num_groups = num_groups
        self.step_seconds = step_seconds
        self._num_sequences = num_sequences
        """Of each."""
        self._forward = forward
        self._passes: list[float] = []

    def pass_seconds(self, num_draft_tokens: int) -> float:
        """Of a group with so many draft tokens a sequence."""
        for count in range(len(self._passes), num_draft_tokens + 1):
            self._passes.append(self._forward.seconds(self._num_sequences * (count + 1), self._num_sequences))
        return self._passes[num_draft_tokens]


class PredictedRounds:
    """Expected durations of rounds, all by what is known at one moment."""

    def __init__(
        self,
        network_seconds: float,
        asking_seconds: float,
        groups: Sequence[_Groups],
        pipeline: Pipeline = _NOTHING_HIDDEN,
    ) -> None:
        self._network_seconds = network_seconds
        self._asking_seconds = asking_seconds
        """Of every round with drafts, whatever their number."""
        self._groups = groups
        self._pipeline = pipeline

    def seconds(self, num_steps: int, num_draft_tokens: int) -> float:
        """Of a round.

        Args:
            num_steps: of a draft model; without effect where lookup finds the tokens.
            num_draft_tokens: in the window; 0: nobody is asked for any.
        """
        if not num_draft_tokens:
            return self._network_seconds + self._groups[0].pass_seconds(0)
        least = math.inf
        for groups in self._groups:
            pass_seconds = groups.pass_seconds(num_draft_tokens)
            # A group is back when it has drafted and its pass is over, and it is its turn again.
            latency = self._latency(num_steps * groups.step_seconds, pass_seconds)
            least = min(least, max(groups.num_groups * pass_seconds, latency))
        return least

    def _latency(self, drafting_seconds: float, pass_seconds: float) -> float:
        """From one verdict to the next, as a mean over rounds whose drafting was hidden and others."""
        if self._pipeline.mode == "off":
            # As `RoundParts.latency`, without the parts: most rounds by far, and many shapes in each.
            return drafting_seconds + self._asking_seconds + self._network_seconds + pass_seconds
        parts = RoundParts(drafting_seconds, pass_seconds, self._network_seconds, self._asking_seconds)
        return self._pipeline.round_seconds(parts)

    def row_seconds(self, num_draft_tokens: int) -> float:
        """What each of so many draft tokens adds to the pass, for all sequences in it together."""
        groups = self._groups[-1]
        return (groups.pass_seconds(num_draft_tokens) - groups.pass_seconds(0)) / num_draft_tokens * groups.num_groups


class RoundCosts:
    """Predicts the duration of a round with K draft tokens if all running requests have as many.

    Then what is best for one is best for all, and nobody's choice depends on who chooses first. They either share one
    pass, and the target waits while all of them draft; or they form two groups, and one drafts while the windows of the
    other are verified. The target does what takes less time (`Gathering`), and so does the prediction.

    The passes that are seen now are no measure of that: with other K there would be other ones.

    Args:
        hiding: says what of a round is hidden at present.
        num_targets: says over how many replicas of the target the running requests are spread.
    """

    def __init__(
        self, hiding: Callable[[], Pipeline] = lambda: _NOTHING_HIDDEN, num_targets: Callable[[], int] = lambda: 1
    ) -> None:
        self._hiding = hiding
        self._num_targets = num_targets
        self._announced: tuple[tuple[int, int, int], ...] = ()
        self._forward: ForwardCosts | None = None
        self._step_seconds = self._draft_queue_seconds = 0.0
        self._lookup_seconds = 0.0
        self._network_seconds = self._draft_network_seconds = 0.0
        self._num_running = 0
        self._num_others = 0.0
        self._num_drafted = 0
        self._has_looked_up = self._has_verified = self._has_asked = False

    def announce(self, model_info: model_pb2.ModelInfo) -> None:
        """Take the costs that a target measured when it started, unless they are known."""
        announced = tuple((cost.rows, max(cost.sequences, 1), cost.microseconds) for cost in model_info.forward_costs)
        if announced and announced != self._announced:
            self._announced = announced
            try:
                self._forward = ForwardCosts.measured(
                    (rows, sequences, microseconds / 1e6) for rows, sequences, microseconds in announced
                )
            except ValueError:
                # Costs that make no sense are those of a target that measured nothing.
                self._forward = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """A request is decoded while the block runs."""
        self._num_running += 1
        try:
            yield
        finally:
            self._num_running -= 1

    def observe(self, done: Round) -> None:
        """Take in a round that was committed. The prefill is not a round."""
        times = done.times()
        verify, draft = done.judged.verdict.timings, done.drafted.timings
        if verify.batch_rows and times.target_compute:
            if self._forward is None:
                first = times.target_compute / (1 + (verify.batch_rows - 1) / (_ROWS_TWICE_THE_TIME - 1))
                self._forward = ForwardCosts([(1, first), (_ROWS_TWICE_THE_TIME, 2 * first)])
            self._forward.observe(verify.batch_rows, times.target_compute, verify.batch_sequences)
            rate = _RATE if self._has_verified else 1.0
            self._has_verified = True
            if not done.is_candidate:
                # The way to the target was hidden, and would not be without drafts.
                self._network_seconds += rate * (done.target_network_seconds - self._network_seconds)
            # Other orchestrators may have requests there, too.
            self._num_others += rate * (max(0.0, verify.batch_sequences - self._num_own) - self._num_others)
        if draft is None:
            return
        rate = _RATE if self._has_asked else 1.0
        self._has_asked = True
        self._draft_network_seconds += rate * (done.draft_network_seconds - self._draft_network_seconds)
        if not done.num_draft_tokens:
            return
        seconds = times.draft_queue + times.draft_compute
        if done.is_by_lookup:
            rate = _RATE if self._has_looked_up else 1.0
            self._has_looked_up = True
            self._lookup_seconds += rate * (seconds - self._lookup_seconds)
        else:
            # The whole time holds what the drafter had to catch up on, such as the prompt. Who does not say more is
            # believed only where that is little.
            if draft.step_microseconds:
                self._observe_step(draft.step_microseconds / 1e6, draft.batch_sequences)
            elif not done.drafted.catches_up:
                self._observe_step(times.draft_compute / max(1, done.num_steps), draft.batch_sequences)
            self._draft_queue_seconds += _RATE * (times.draft_queue - self._draft_queue_seconds)

    def _observe_step(self, seconds: float, num_sequences: int) -> None:
        # Averaged by their logarithms, and the first ones alike: one step that took very long is soon forgotten.
        self._num_drafted += 1
        rate = max(_RATE, 1.0 / self._num_drafted)
        alone = max(seconds / self._growth(num_sequences), _LEAST_SECONDS)
        ratio = alone / max(self._step_seconds, _LEAST_SECONDS)
        self._step_seconds = max(self._step_seconds, _LEAST_SECONDS) * ratio**rate

    def are_known(self, *, by_lookup: bool) -> bool:
        """Whether enough is known to base a choice on: of rounds that a draft model works for, what it takes."""
        return self._forward is not None and (by_lookup or self._num_drafted > 0)

    @property
    def num_sequences(self) -> float:
        """Requests that a target is thought to decode at present, those of others included; at least 1."""
        return max(1.0, self._num_own + self._num_others)

    @property
    def _num_own(self) -> float:
        return self._num_running / max(self._num_targets(), 1)

    def asking_share(self) -> float:
        """What asking for lookup adds to a round without draft tokens, as a share of it; 0 while nothing is known."""
        if self._forward is None:
            return 0.0
        return (self._draft_network_seconds + self._lookup_seconds) / self.plain_seconds()

    def plain_seconds(self) -> float:
        """Expected duration of a round without draft tokens; 0 while nothing is known."""
        return self.predicted(by_lookup=True).seconds(0, 0) if self._forward is not None else 0.0

    def predicted(self, *, by_lookup: bool) -> PredictedRounds:
        """What rounds are expected to take now.

        Args:
            by_lookup: whether lookup finds the draft tokens, and no model makes them.

        Raises:
            RuntimeError: nothing is known yet.
        """
        if self._forward is None:
            raise RuntimeError("no forward pass was measured yet")
        asking = self._draft_network_seconds + (self._lookup_seconds if by_lookup else self._draft_queue_seconds)
        num_all = self.num_sequences
        groups = []
        for num_groups in (1, 2) if num_all >= _SEQUENCES_OF_TWO_GROUPS else (1,):
            num_sequences = num_all / num_groups
            step_seconds = 0.0 if by_lookup else self._step_seconds * self._growth(num_sequences)
            groups.append(_Groups(num_groups, num_sequences, step_seconds, self._forward))
        # What is looked up takes no time to be hidden.
        pipeline = _NOTHING_HIDDEN if by_lookup else self._hiding()
        return PredictedRounds(self._network_seconds, asking, groups, pipeline)

    def _growth(self, num_sequences: float) -> float:
        """Of a draft step with so many sequences: it is taken to grow with them as a pass of the target does."""
        if self._forward is None or num_sequences <= 1:
            return 1.0
        return self._forward.seconds(num_sequences, num_sequences) / self._forward.seconds(1)
