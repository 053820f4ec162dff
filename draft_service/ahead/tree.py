"""A window that is being verified, and continuations of it: one for each outcome that is drafted ahead."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from draft_service.ahead.outcomes import MOST_RANKS, Outcome
from draft_service.drafters.window_growth import WindowGrowth
from draft_service.feature_runner import FeatureWork
from draft_service.row_states import RowStates
from draft_service.sequence import Draft, DraftSequence
from specdec.errors import InvalidArgumentError
from specdec.runner.cache import SequenceCache
from specdec.runner.runner import Work
from specdec.sampling.chooser import TokenChooser
from specdec.sampling.laws import DraftLaw
from specdec.v1 import model_pb2


@dataclass(slots=True)
class Branch:
    """The window that would follow an outcome."""

    num_accepted: int
    rank: int
    next_token_id: int
    committed: list[int]
    """Tokens committed if this outcome comes true."""
    nodes: list[int] = field(default_factory=list)
    """Of the next token and of the window's tokens that were run."""
    token_ids: list[int] = field(default_factory=list)
    laws: list[DraftLaw] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)
    """What each of them was chosen by; (vocab_size,)."""
    survival: float = 1.0
    has_ended: bool = False
    """There is no token behind the last one."""
    is_broken: bool = False
    """The model gave no numbers; nothing of it is used."""

    @property
    def is_usable(self) -> bool:
        """Whether it is a window, if only an empty one that was ended on purpose."""
        return bool(self.nodes) and not self.is_broken and (bool(self.token_ids) or self.has_ended)


class DraftTree:
    """Keys and values of the window and of all branches lie behind each other in the sequence's cache.

    Node `i` is the row `base_length + i`. The first ones are the window's own tokens, so that where nothing was guessed
    right the cache is what it would have been without.

    The first pass runs what the cache lacks of the window. That is its last token; where a draft reads features and the
    window was itself drafted ahead, also committed tokens whose states the target has told since.

    Args:
        draft: the window, with the logits that its tokens were chosen by.
        cache: of the sequence; holds all tokens of the window but the last one, or all that rests on no guess.
        states: of the sequence, if the draft reads features.
        chooser: of the sequence.
        outcomes: to draft ahead for, the likeliest first.
        max_context_length: of the model.
    """

    def __init__(
        self,
        draft: Draft,
        cache: SequenceCache,
        chooser: TokenChooser,
        states: RowStates | None,
        outcomes: list[Outcome],
        max_context_length: int,
    ) -> None:
        self.sequence: DraftSequence = draft.sequence
        self.cache = cache
        self.chooser = chooser
        self._states = states
        self.base_length = draft.base_length
        self._drafted = list(draft.token_ids)
        self._logits: dict[int, torch.Tensor] = dict(enumerate(draft.logits))
        self._outcomes = outcomes
        self._most_tokens = draft.num_ahead_wanted or draft.num_wanted
        self._max_context_length = max_context_length
        self._branches: dict[tuple[int, int], Branch | None] = {}
        self._first = cache.length
        self._parents: list[int] = []
        self._running: list[Branch] = []
        self._first_choices: dict[int, list[int]] = {}

    @property
    def num_tokens(self) -> int:
        """Tokens drafted ahead so far."""
        return sum(len(branch.token_ids) for branch in self._branches.values() if branch is not None)

    @property
    def is_intact(self) -> bool:
        """Whether the cache still holds what was run; it does not if an older sequence needed the memory."""
        return self.cache.length == (self.base_length + len(self._parents) if self.has_begun else self._first)

    @property
    def has_begun(self) -> bool:
        """Whether anything was run for it."""
        return bool(self._parents)

    @property
    def is_worth_telling(self) -> bool:
        """Whether every branch is complete, or is one token behind as it began behind the window's last token.

        That token had to be run before these could begin. All others would wait for them, and what is told sooner is
        worth more than one more token of some.
        """
        if not (self.has_begun and self.is_intact and all(outcome in self._branches for outcome in self._outcomes)):
            return False
        return all(
            branch is None
            or self._is_done(branch)
            or (branch.num_accepted == len(self._drafted) and len(branch.token_ids) == self._most_tokens - 1 > 0)
            for branch in self._branches.values()
        )

    def usable_branches(self) -> list[Branch]:
        """Those that `follow` might give, the likeliest outcome first."""
        branches = (self._branches.get(outcome) for outcome in self._outcomes)
        return [branch for branch in branches if branch is not None and branch.is_usable]

    def give_up(self) -> None:
        """Leave the cache as it was before anything was drafted ahead, if it still holds that."""
        if self.has_begun and self.is_intact:
            self.cache.truncate(self.base_length + len(self._drafted) - 1)

    def second_choice_was_right(self, num_accepted: int, next_token_id: int) -> bool | None:
        """Whether the draft's next choice behind a rejection was right; None if nobody knows."""
        choices = self._first_choices.get(num_accepted)
        return choices[0] == next_token_id if choices and num_accepted < len(self._drafted) else None

    def plan(self, max_rows: int) -> Work | None:
        """Rows of the next pass; None if there is nothing more to run.

        Args:
            max_rows: most of them, at least 1; the first pass may have more, if the cache lacks more.
        """
        parents = list(self._parents)
        token_ids: list[int] = []
        num_logits = 0
        if not self.has_begun:
            token_ids = [*self.sequence.token_ids, *self._drafted][self._first :]
            parents = list(range(-1, len(self._drafted) - 1))
            num_logits = 1
        self._running = []
        for outcome in self._outcomes:
            if len(token_ids) >= max_rows:
                break
            branch = self._branch(outcome)
            if branch is None or self._is_done(branch):
                continue
            self._running.append(branch)
            token_ids.append(branch.token_ids[-1] if branch.nodes else branch.next_token_id)
            parents.append(branch.nodes[-1] if branch.nodes else branch.num_accepted - 1)
        num_logits += len(self._running)
        if not token_ids:
            return None
        if self._states is None:
            return Work(self.cache, token_ids, num_logits, parents)
        return self._states.work(token_ids, num_logits, self.base_length, parents)

    def take(self, work: Work, rows: torch.Tensor, growth: WindowGrowth) -> None:
        """Take over what a pass gave; `rows` is (num_logits, vocab_size)."""
        if self._states is not None and isinstance(work, FeatureWork):
            self._states.take(work, self.base_length)
        node = len(self._parents)
        if not self.has_begun:
            self._logits[len(self._drafted)] = rows[0]
            rows, node = rows[1:], len(self._drafted)
        self._parents = list(work.parents or ())
        for place, branch in enumerate(self._running):
            branch.nodes.append(node + place)
            try:
                if growth.grow(branch, self.sequence, branch.committed, self.chooser, rows[place]):
                    branch.logits.append(rows[place])
                else:
                    branch.has_ended = True
            except InvalidArgumentError:
                branch.has_ended = True
            except FloatingPointError:
                branch.is_broken = True
        self._running = []

    def follow(self, num_accepted: int, next_token_id: int, num_certain: int | None) -> Branch | None:
        """The branch of an outcome; the cache then ends with the last of its tokens that was run.

        None if nothing was drafted for it; the cache is as it was, and begins with the window's own rows.

        Args:
            num_accepted: the outcome.
            next_token_id: the outcome.
            num_certain: the cache is to end behind so many rows instead, as the others were made of guesses; None: not.
        """
        for branch in self._branches.values():
            if (
                branch is not None
                and (branch.num_accepted, branch.next_token_id) == (num_accepted, next_token_id)
                and branch.is_usable
            ):
                self._keep(branch, num_certain)
                return branch
        return None

    def _keep(self, branch: Branch, num_certain: int | None) -> None:
        if num_certain is not None:
            self.cache.truncate(num_certain)
            return
        base = self.base_length + branch.num_accepted
        rows = [node - branch.num_accepted for node in branch.nodes[: max(1, len(branch.token_ids))]]
        self.cache.keep_rows(base, rows)
        if self._states is not None:
            self._states.keep_rows(base, rows)

    def _is_done(self, branch: Branch) -> bool:
        return (
            branch.has_ended
            or branch.is_broken
            or len(branch.token_ids) >= self._most_tokens
            or len(branch.committed) + len(branch.token_ids) > self._max_context_length
        )

    def _branch(self, outcome: Outcome) -> Branch | None:
        """Made when its turn comes; None if it cannot be made, now or at all."""
        if outcome in self._branches:
            return self._branches[outcome]
        num_accepted, rank = outcome
        choices = self._choices(num_accepted)
        if choices is None:
            return None
        branch = None
        if rank < len(choices):
            committed = [*self.sequence.token_ids, *self._drafted[:num_accepted], choices[rank]]
            branch = Branch(num_accepted, rank, choices[rank], committed)
        self._branches[outcome] = branch
        return branch

    def _choices(self, num_accepted: int) -> list[int] | None:
        """Next tokens behind so many accepted ones, the likeliest first; None: the last token was not run yet."""
        found = self._first_choices.get(num_accepted)
        if found is None:
            logits = self._logits.pop(num_accepted, None)
            if logits is None:
                return None
            path, rejected = self._drafted[:num_accepted], self._drafted[num_accepted : num_accepted + 1]
            with_noise = self.sequence.rule == model_pb2.ACCEPTANCE_RULE_COUPLED
            try:
                found = self.chooser.runners_up(
                    logits, self.sequence.token_ids, path, rejected, MOST_RANKS, with_noise=with_noise
                )
            except (InvalidArgumentError, FloatingPointError):
                found = []
            self._first_choices[num_accepted] = found
        return found
