"""Drafting ahead for all sequences whose windows are being verified, as one batch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import torch

from draft_service.ahead.budget import AheadBudget
from draft_service.ahead.offer import Offer
from draft_service.ahead.outcomes import likeliest_outcomes, num_worthwhile
from draft_service.ahead.tree import Branch, DraftTree
from draft_service.drafters.acceptance_estimate import AcceptanceEstimate
from draft_service.drafters.window_growth import WindowGrowth
from draft_service.row_states import RowStates
from draft_service.sequence import Draft, DraftSequence
from specdec.engine.memory import CacheMemory
from specdec.runner.cache import SequenceCache
from specdec.runner.runner import Work
from specdec.sampling.chooser import TokenChooser
from specdec.telemetry.metrics import DraftAheadMetrics, WasteCause
from specdec.v1 import draft_pb2

_MOST_OUTCOMES = 12
_ACCEPTANCE_PRIOR = 0.7
_SECOND_CHOICE_PRIOR = 0.4
_VERDICT_RATE = 0.1
"""Weight of one round in how long verdicts take."""

Forward = Callable[[list[Work]], list[torch.Tensor]]


class _Ready(NamedTuple):
    """What was drafted ahead for the outcome that came true, until its proposal is asked for."""

    branch: Branch
    base_length: int
    num_cached: int
    """Tokens that the cache held by then."""


@dataclass(slots=True)
class _Waiting:
    """A sequence, as far as drafting ahead goes."""

    acceptance: AcceptanceEstimate = field(default_factory=AcceptanceEstimate)
    second_choice: AcceptanceEstimate = field(default_factory=AcceptanceEstimate)
    num_proposed: int = 0
    tree: DraftTree | None = None
    ready: _Ready | None = None
    was_missed: bool = False
    round: int = 0
    """Of the proposal."""
    proposed_at: float | None = None
    """When a proposal went out whose outcome is not known yet, by the budget's clock."""
    asked_at: float | None = None
    """The same of the proposal whose outcome is told now."""
    verdict_seconds: float = math.inf
    """How long verdicts take of late, from the proposal to the commit; before the first one there is all the time."""
    max_offered: int = 0
    """Most continuations that are still to be told before the outcome is known."""

    def has_heard(self, now: float) -> None:
        """The verdict came; counted where it is of the last proposal."""
        if self.asked_at is None:
            return
        seconds, self.asked_at = now - self.asked_at, None
        if math.isinf(self.verdict_seconds):
            self.verdict_seconds = seconds
        self.verdict_seconds += _VERDICT_RATE * (seconds - self.verdict_seconds)


class DraftAhead:
    """Makes continuations while nobody waits for a proposal, and gives them up for whoever does.

    A continuation that is used is what would have been drafted after the commit: the same tokens from the same laws and
    draws, since both follow from the committed tokens (`WindowGrowth`). So nothing about the text depends on what was
    drafted ahead. A draft that reads features would then know more states of the target; its continuation was made of
    guesses of them, and its cache is rolled back to before these, to be made again with the next pass.

    Args:
        memory: of the model.
        growth: chooses tokens.
        max_context_length: of the model.
        metrics: where hits, misses and waste are counted.
    """

    def __init__(
        self, memory: CacheMemory, growth: WindowGrowth, max_context_length: int, metrics: DraftAheadMetrics
    ) -> None:
        self._memory = memory
        self._growth = growth
        self._max_context_length = max_context_length
        self._metrics = metrics
        self._waiting: dict[int, _Waiting] = {}
        self._offers: list[Offer] = []
        self._stretched: dict[SequenceCache, None] = {}
        """Caches that may hold blocks which only drafting ahead has needed."""

    @property
    def has_work(self) -> bool:
        """Whether there is a window being verified that may be drafted ahead for."""
        return any(waiting.tree is not None for waiting in self._waiting.values())

    def proposed(
        self,
        draft: Draft,
        cache: SequenceCache,
        chooser: TokenChooser,
        budget: AheadBudget,
        states: RowStates | None = None,
    ) -> None:
        """A proposal is on its way; from now on its outcome is drafted ahead for, if that is wanted.

        Args:
            draft: the proposal.
            cache: of its sequence.
            chooser: of its sequence.
            budget: knows what passes take.
            states: of its sequence, if the draft reads features.
        """
        if not draft.drafts_ahead:
            self._waiting.pop(id(draft.sequence), None)
            return
        waiting = self._waiting.setdefault(id(draft.sequence), _Waiting())
        num_drafted = waiting.num_proposed = len(draft.token_ids)
        waiting.round, waiting.max_offered = draft.round, draft.max_candidates
        waiting.proposed_at = budget.now()
        # A window that ended early has its last token run as well.
        length = draft.base_length + num_drafted - 1
        is_cached = cache.length >= length or (states is not None and draft.num_ahead == num_drafted)
        is_whole = is_cached and len(draft.logits) == num_drafted
        if not num_drafted or not is_whole or draft.base_length + num_drafted >= self._max_context_length:
            return
        cache.truncate(min(cache.length, length))
        outcomes = likeliest_outcomes(
            num_drafted,
            waiting.acceptance.rate(_ACCEPTANCE_PRIOR),
            waiting.second_choice.rate(_SECOND_CHOICE_PRIOR),
            _MOST_OUTCOMES,
        )
        count = num_worthwhile(
            [probability for _, probability in outcomes],
            draft.num_ahead_wanted or draft.num_wanted,
            draft.base_length + num_drafted - cache.length,
            waiting.verdict_seconds,
            budget.times,
        )
        if count:
            chosen = [outcome for outcome, _ in outcomes[:count]]
            waiting.tree = DraftTree(draft, cache, chooser, states, chosen, self._max_context_length)

    def commit(
        self, sequence: DraftSequence, num_accepted: int, cache: SequenceCache, num_certain: int | None = None
    ) -> bool:
        """A round is over. Returns whether its outcome was drafted for; the cache then holds that continuation.

        Otherwise the rows of tokens that were accepted are where they would be without drafting ahead.

        Args:
            sequence: the outcome is committed.
            num_accepted: draft tokens that were.
            cache: of the sequence.
            num_certain: the cache is to end behind so many rows instead, as the others were made of guesses; None: not.
        """
        waiting = self._waiting.get(id(sequence))
        if waiting is None:
            return False
        self._drop_ready(waiting, cache, "unused")
        waiting.asked_at, waiting.proposed_at = waiting.proposed_at, None
        if waiting.num_proposed:
            waiting.acceptance.add(num_accepted, was_rejected=num_accepted < waiting.num_proposed)
        waiting.num_proposed = 0
        tree, waiting.tree = waiting.tree, None
        waiting.was_missed = False
        if tree is None or not tree.has_begun:
            return False
        next_token_id = sequence.token_ids[-1]
        was_right = tree.second_choice_was_right(num_accepted, next_token_id)
        if was_right is not None:
            waiting.second_choice.add(int(was_right), was_rejected=not was_right)
        if not tree.is_intact:
            self._metrics.wasted(tree.num_tokens, "memory")
            return False
        branch = tree.follow(num_accepted, next_token_id, num_certain)
        if branch is None:
            self._metrics.wasted(tree.num_tokens, "miss")
            waiting.was_missed = True
            return False
        self._metrics.wasted(tree.num_tokens - len(branch.token_ids), "miss")
        waiting.ready = _Ready(branch, len(sequence.token_ids), cache.length)
        return True

    def resume(self, draft: Draft, cache: SequenceCache, budget: AheadBudget) -> bool:
        """Begin a window with what was drafted ahead for it. Returns whether that was all of it.

        To be called once for each window, before anything is run for it.
        """
        waiting = self._waiting.get(id(draft.sequence))
        if waiting is None or draft.token_ids or not draft.num_wanted:
            return False
        # A commit that had to wait here was there earlier.
        waiting.has_heard(budget.now() - (time.perf_counter() - draft.arrived))
        if waiting.was_missed:
            waiting.was_missed = False
            draft.ahead = draft_pb2.AHEAD_OUTCOME_MISS
            self._metrics.outcome(is_hit=False)
        if draft.is_tree and waiting.ready is not None:
            # A chain is no part of it; the last committed token is run again, for its logits.
            length = waiting.ready.base_length - 1
            self._drop_ready(waiting, cache, "unused")
            cache.truncate(min(cache.length, length))
        ready, waiting.ready = waiting.ready, None
        if ready is None:
            return False
        branch = ready.branch
        count = min(len(branch.token_ids), draft.num_wanted)
        if cache.length < ready.num_cached:
            # An older sequence has needed the memory.
            self._metrics.wasted(len(branch.token_ids), "memory")
            return False
        self._metrics.outcome(is_hit=True)
        self._metrics.wasted(len(branch.token_ids) - count, "unused")
        draft.token_ids = branch.token_ids[:count]
        draft.laws = branch.laws[:count]
        draft.logits = branch.logits[:count]
        draft.survival = branch.survival
        draft.ahead = draft_pb2.AHEAD_OUTCOME_HIT
        draft.num_ahead = count
        draft.source = draft_pb2.DRAFT_SOURCE_MODEL
        # The last token of a window is not run.
        cache.truncate(min(cache.length, ready.base_length + max(count - 1, 0)))
        draft.is_done = count == draft.num_wanted or branch.has_ended
        return draft.is_done

    def close(self, sequence: DraftSequence, cache: SequenceCache) -> None:
        """A sequence ends; harmless if it is not known."""
        waiting = self._waiting.pop(id(sequence), None)
        self._stretched.pop(cache, None)
        if waiting is not None:
            if waiting.tree is not None:
                self._metrics.wasted(waiting.tree.num_tokens, "closed")
            if waiting.ready is not None:
                self._metrics.wasted(len(waiting.ready.branch.token_ids), "closed")

    def work(self, max_rows: int, forward: Forward) -> bool:
        """One pass for all that wait. Returns whether there was anything to run.

        Args:
            max_rows: most rows of the pass.
            forward: runs it.
        """
        trees = [waiting.tree for waiting in self._waiting.values() if waiting.tree is not None]
        if not trees or max_rows < 1:
            return False
        share = max(1, max_rows // len(trees))
        planned: list[tuple[DraftTree, Work]] = []
        for tree in islice(trees, max_rows):
            work = tree.plan(share) if tree.is_intact else None
            if work is not None and self._prepare(work):
                planned.append((tree, work))
        if not planned:
            # The last row may have been the last token of a window, whose branches could not be made then.
            self._offer()
            return False
        rows = forward([work for _, work in planned])
        for (tree, work), logits in zip(planned, rows, strict=True):
            tree.take(work, logits, self._growth)
        self._offer()
        return True

    def offers(self) -> list[Offer]:
        """Continuations that were completed since they were last asked for, of those who want to be told."""
        offers, self._offers = self._offers, []
        return offers

    def _offer(self) -> None:
        for waiting in self._waiting.values():
            tree = waiting.tree
            if tree is not None and waiting.max_offered and tree.is_worth_telling:
                branches = tree.usable_branches()[: waiting.max_offered]
                waiting.max_offered = 0
                if branches:
                    self._offers.append(Offer(tree.sequence, waiting.round, tree.base_length, branches))

    def give_way(self) -> None:
        """Somebody needs memory: give up all continuations, and the blocks that they took."""
        for waiting in self._waiting.values():
            tree, waiting.tree = waiting.tree, None
            if tree is not None:
                self._metrics.wasted(tree.num_tokens, "memory")
                tree.give_up()
        for cache in self._stretched:
            cache.trim()
        self._stretched.clear()

    def give_up(self) -> None:
        """A pass failed: nothing more is drafted ahead for the windows that are being verified."""
        for waiting in self._waiting.values():
            if waiting.tree is not None:
                self._metrics.wasted(waiting.tree.num_tokens, "failed")
                waiting.tree.give_up()
                waiting.tree = None

    def _prepare(self, work: Work) -> bool:
        """Blocks for its rows, unless a proposal could come to lack them."""
        cache, blocks = work.cache, self._memory.pool.blocks
        spare = blocks.num_available - self._memory.num_admitted
        if cache.num_missing(len(work.token_ids)) > spare or not cache.prepare(len(work.token_ids)):
            return False
        self._stretched[cache] = None
        return True

    def _drop_ready(self, waiting: _Waiting, cache: SequenceCache, cause: WasteCause) -> None:
        """Nobody asked for the window: the cache keeps what is committed of it."""
        if waiting.ready is not None:
            self._metrics.wasted(len(waiting.ready.branch.token_ids), cause)
            cache.truncate(min(cache.length, waiting.ready.base_length))
            waiting.ready = None
