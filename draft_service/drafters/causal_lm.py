"""A causal language model as drafter: K short forward passes for all sequences that ask, as one batch."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from draft_service.ahead.ahead import DraftAhead
from draft_service.ahead.budget import AheadBudget
from draft_service.ahead.offer import Offer
from draft_service.drafters.window_growth import WindowGrowth
from draft_service.feature_runner import FeatureRunner, FeatureWork
from draft_service.row_states import RowStates
from draft_service.sequence import Draft, DraftSequence
from draft_service.token_tree import is_grown
from specdec.engine.memory import CacheMemory
from specdec.engine.schedule import PassRows, Scheduler, Share
from specdec.errors import InvalidArgumentError
from specdec.runner.cache import SequenceCache
from specdec.runner.runner import ModelRunner, Work
from specdec.sampling.chooser import TokenChooser
from specdec.telemetry.metrics import DraftAheadMetrics, EngineMetrics
from specdec.v1 import draft_pb2, model_pb2

_RUNNING_SECONDS = 1.0
"""A sequence that was served so long ago is thought to ask for its next proposal at any moment."""


_STEP_ROWS = 3
"""A pass with so many rows for each sequence is a step; with more of them some sequence catches up."""
_STEP_RATE = 0.1
"""Weight of one pass in what steps take of late."""


@dataclass(slots=True)
class _State:
    chooser: TokenChooser
    cache: SequenceCache
    served: float = -math.inf
    """When tokens were last drafted for it; seconds of `time.perf_counter`."""
    is_behind: bool = False
    """More tokens have no keys and values than a round leaves behind, or had none when the present run began."""
    row_states: RowStates | None = None
    """None: the draft reads no features."""


@dataclass(slots=True)
class _PendingStep:
    """A draft's next forward pass: every token without keys and values, the last draft token included."""

    draft: Draft
    state: _State
    max_length: int
    num_window_rows: int = 0

    @property
    def cache(self) -> SequenceCache:
        return self.state.cache

    @property
    def token_ids(self) -> list[int]:
        return self.draft.sequence.token_ids

    @property
    def num_uncached_tokens(self) -> int:
        return self.draft.num_known - self.state.cache.length

    @property
    def is_prefill(self) -> bool:
        return self.state.is_behind and self.num_uncached_tokens > 1


class CausalLMDrafter:
    """Guesses with a language model, choosing as the target will: same rules, same noise.

    The last token of a proposal is never run, so after full acceptance the cache lacks it; the next step simply feeds
    everything from the cache's length to the committed length.

    Args:
        runner: runs the model.
        info: what the service advertises.
        device: of the model.
        memory: key-value memory.
        max_batch_rows: most rows of one forward pass.
        prefill_chunk_rows: most rows of prefill in a pass beside running sequences; 0: by what passes take.
        max_law_size: most tokens of the law that a draft token is sampled from, where the acceptance rule needs one.
        confidence_threshold: a window ends before it is less likely than this to be right to its end; 0: never.
        ahead_rows: most rows of a pass that drafts ahead; 0: none ever does.
    """

    def __init__(
        self,
        runner: ModelRunner,
        info: model_pb2.ModelInfo,
        device: torch.device,
        memory: CacheMemory,
        *,
        max_batch_rows: int,
        max_law_size: int,
        prefill_chunk_rows: int = 0,
        confidence_threshold: float = 0.0,
        ahead_rows: int = 0,
    ) -> None:
        self.info = info
        self._runner = runner
        self._feature_runner = runner if isinstance(runner, FeatureRunner) else None
        self._device = device
        self._memory = memory
        self._scheduler = Scheduler(max_batch_rows, prefill_chunk_rows)
        self._growth = WindowGrowth(max_law_size=max_law_size, confidence_threshold=confidence_threshold)
        self._metrics = EngineMetrics("draft")
        self._ahead = DraftAhead(memory, self._growth, info.max_context_length, DraftAheadMetrics())
        self.ahead_budget = AheadBudget(ahead_rows)
        self._states: dict[int, _State] = {}
        self._step_seconds = 0.0

    def open(self, sequence: DraftSequence) -> None:
        """See `Drafter`."""
        chooser = TokenChooser(sequence.params, sequence.prompt_length, self._device)
        cache = SequenceCache(self._memory.pool, sequence.tenant)
        # No more tokens are run than the context holds.
        most = min(max(sequence.max_length, len(sequence.token_ids)), self.info.max_context_length)
        self._memory.join(cache, most + self.info.max_num_draft_tokens)
        log = sequence.features if self._feature_runner is not None else None
        row_states = RowStates(cache, log) if log is not None else None
        self._states[id(sequence)] = _State(chooser, cache, row_states=row_states)

    def commit(self, sequence: DraftSequence, num_accepted: int) -> None:
        """See `Drafter`. Rolls the cache back to the tokens that turned out right.

        With features, to those whose states were the target's: what guesses stood in for is computed again, by the next
        pass, which may be one that drafts ahead.
        """
        state, num_committed = self._states[id(sequence)], len(sequence.token_ids)
        num_certain = state.row_states.num_certain(num_committed, num_accepted) if state.row_states else None
        if not self._ahead.commit(sequence, num_accepted, state.cache, num_certain):
            # A runner-up was accepted, but never run.
            num_right = num_committed - 1 - (num_accepted - sequence.num_kept)
            state.cache.truncate(min(state.cache.length, num_right if num_certain is None else num_certain))
        self._publish(state, sequence.token_ids)

    def close(self, sequence: DraftSequence) -> None:
        """See `Drafter`. What was computed stays to be found while there is room."""
        state = self._states.pop(id(sequence), None)
        if state is not None:
            self._ahead.close(sequence, state.cache)
            self._memory.leave(state.cache)
            self._memory.report(self._metrics)

    def advance(self, drafts: Sequence[Draft]) -> None:
        """See `Drafter`. One forward pass; a draft that gets no memory ends with what it has.

        Without a pass if some of them were drafted ahead: those are answered at once.
        """
        resumed = [
            self._ahead.resume(draft, self._states[id(draft.sequence)].cache, self.ahead_budget) for draft in drafts
        ]
        if not any(resumed):
            self._run_drafts(drafts)
        for draft in drafts:
            if draft.is_done and draft.num_wanted:
                state = self._states[id(draft.sequence)]
                state.served = time.perf_counter()
                if draft.ahead == draft_pb2.AHEAD_OUTCOME_HIT:
                    # What was there already says nothing of what a step takes.
                    draft.step_seconds = self._step_seconds
                self._ahead.proposed(draft, state.cache, state.chooser, self.ahead_budget, state.row_states)

    def check(self) -> None:
        """See `Drafter`."""
        self._runner.forward([Work(SequenceCache(), [0], 1)])

    @property
    def may_work_ahead(self) -> bool:
        """See `Drafter`."""
        return self._ahead.has_work

    def work_ahead(self) -> bool:
        """See `Drafter`. One pass over the continuations of all windows that are being verified."""
        since = time.perf_counter() - _RUNNING_SECONDS
        num_running = sum(state.served > since for state in self._states.values())
        try:
            has_worked = self._ahead.work(self.ahead_budget.rows(num_running), self._forward_ahead)
        except Exception:
            self._ahead.give_up()
            raise
        if has_worked:
            self._memory.report(self._metrics)
        return has_worked

    def candidates(self) -> Sequence[Offer]:
        """See `Drafter`."""
        return self._ahead.offers()

    def _forward_ahead(self, batch: list[Work]) -> list[torch.Tensor]:
        started = time.perf_counter()
        logits = self._runner.forward(batch)
        seconds = time.perf_counter() - started
        num_rows = sum(len(work.token_ids) for work in batch)
        self.ahead_budget.times.observe(num_rows, seconds)
        self._metrics.forward(duration_seconds=seconds, num_sequences=len(batch), num_rows=num_rows)
        return logits

    def _run_drafts(self, drafts: Sequence[Draft]) -> None:
        steps = []
        # With features a round may leave behind what two have accepted, and a window.
        most_behind = (3 if self._feature_runner is not None else 1) * (1 + self.info.max_num_draft_tokens)
        for draft in drafts:
            state = self._states[id(draft.sequence)]
            draft.drafts_ahead = draft.drafts_ahead and not draft.is_tree and self.ahead_budget.max_rows > 0
            step = _PendingStep(draft, state, self.info.max_context_length)
            state.is_behind = state.is_behind or draft.is_early or step.num_uncached_tokens > most_behind
            # No more tokens can be run than the context holds.
            is_for_lookup = draft.is_asked and not draft.num_wanted
            is_too_long = draft.base_length + len(draft.token_ids) > self.info.max_context_length
            if is_for_lookup or is_too_long or (not draft.num_wanted and step.num_uncached_tokens <= 0):
                draft.is_done = True
            else:
                steps.append(step)
        shares = self._plan(steps)
        if not shares:
            return
        batch = []
        for step, num_rows, finishes in shares:
            known = [*step.draft.sequence.token_ids, *step.draft.token_ids]
            first = step.state.cache.length
            wants_token = finishes and step.draft.num_wanted > 0
            batch.append(self._work(step, known[first : first + num_rows], int(wants_token)))
        started = time.perf_counter()
        pass_rows = PassRows.of(shares)
        logits = self._runner.forward(batch)
        ended = time.perf_counter()
        self._metrics.forward(duration_seconds=ended - started, num_sequences=len(shares), num_rows=pass_rows.total)
        self._scheduler.observe(ended - started, pass_rows)
        if pass_rows.total <= _STEP_ROWS * len(shares):
            rate = _STEP_RATE if self._step_seconds else 1.0
            self._step_seconds += rate * (ended - started - self._step_seconds)
            self.ahead_budget.times.observe(pass_rows.total, ended - started)
        self.ahead_budget.worked(ended - started)
        for (step, _, finishes), work, rows in zip(shares, batch, logits, strict=True):
            draft = step.draft
            if step.state.row_states is not None and isinstance(work, FeatureWork):
                step.state.row_states.take(work, draft.base_length)
            draft.source = draft_pb2.DRAFT_SOURCE_MODEL
            draft.step_seconds = self._step_seconds
            draft.batch_sequences = draft.batch_sequences or len(shares)
            draft.batch_rows = draft.batch_rows or pass_rows.total
            self._publish(step.state, step.token_ids, with_tail=finishes and draft.is_open)
            if not finishes:
                continue
            step.state.served = ended
            step.state.is_behind = False
            if draft.num_wanted:
                try:
                    if draft.is_tree:
                        self._draft_level(draft, step.state.chooser, rows[0])
                    elif not self._growth.grow(draft, draft.sequence, step.token_ids, step.state.chooser, rows[0]):
                        draft.is_done = True
                    elif draft.drafts_ahead:
                        draft.logits.append(rows[0])
                except (InvalidArgumentError, FloatingPointError) as error:
                    # The rules leave no token, which the target will refuse, or the model gave no numbers. There is
                    # nothing to guess either way, and the other sequences go on.
                    draft.is_done = True
                    if isinstance(error, FloatingPointError):
                        step.cache.withdraw()
            draft.is_done = draft.is_done or len(draft.token_ids) >= draft.num_wanted

    def _draft_level(self, draft: Draft, chooser: TokenChooser, logits: torch.Tensor) -> None:
        """Append a token to the chain of a tree, with its runners-up."""
        candidates = chooser.candidates(logits, draft.sequence.token_ids, draft.token_ids, draft.num_wanted)
        draft.levels.append(candidates)
        draft.token_ids.append(candidates[0][0])
        draft.is_done = len(draft.levels) >= draft.max_steps or is_grown(draft.levels, draft.num_wanted)

    def _work(self, step: _PendingStep, token_ids: Sequence[int], num_logits: int) -> Work:
        if step.state.row_states is None:
            return Work(step.cache, token_ids, num_logits)
        return step.state.row_states.work(token_ids, num_logits, step.draft.base_length)

    def _publish(self, state: _State, token_ids: Sequence[int], *, with_tail: bool = False) -> None:
        """Let others find the blocks; not those that were made of less than all features."""
        if state.row_states is None:
            state.cache.publish(token_ids, with_tail=with_tail)
        elif state.row_states.is_whole:
            # At the last token the draft read a guess.
            state.cache.publish(token_ids[:-1], with_tail=with_tail)

    def _plan(self, steps: Sequence[_PendingStep]) -> list[Share[_PendingStep]]:
        """What goes into the next pass."""
        since = time.perf_counter() - _RUNNING_SECONDS
        is_anybody_running = any(state.served > since for state in self._states.values())
        # What features were told of may have been found in memory.
        ready = [step for step in self._memory.ready(steps) if step.num_uncached_tokens > 0]
        planned = self._scheduler.plan(ready, is_anybody_running=is_anybody_running)
        if self._memory.is_short(planned):
            self._ahead.give_way()
        shares = self._memory.fit(planned)
        served = {id(share.pending) for share in shares}
        for share in planned:
            if id(share.pending) not in served:
                share.pending.draft.is_done = True
        self._memory.report(self._metrics)
        return shares
