"""What the rows of one sequence read in a draft that reads features: the target's states, and guesses elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draft_service.feature_log import FeatureLog
from draft_service.feature_runner import FeatureWork, row_parents
from specdec.runner.cache import SequenceCache


class RowStates:
    """Makes the work of a sequence, and keeps what its last rows read for those that follow them.

    Args:
        cache: of the sequence. Rows of a tree come behind those of the committed tokens, in any order.
        log: what the target has told.
    """

    def __init__(self, cache: SequenceCache, log: FeatureLog) -> None:
        self._cache = cache
        self._log = log
        self._first = 0
        self._read: list[torch.Tensor] = []  # of the rows from `_first` on; each (hidden_size,)
        self.is_whole = True
        """All committed rows in the cache, but that of the last token, were made of the target's states."""

    def work(
        self, token_ids: Sequence[int], num_logits: int, num_committed: int, parents: list[int] | None = None
    ) -> FeatureWork:
        """The next rows of the sequence, with all that is known of the states that they read and go on from.

        Args:
            token_ids: of the rows.
            num_logits: see `Work`.
            num_committed: tokens; the last of them is not run by the target until the draft tokens behind it are.
            parents: see `Work`.
        """
        work = FeatureWork(self._cache, token_ids, num_logits, parents)
        first = self._cache.length
        num_rows = len(token_ids)
        is_known = [False] * (num_rows + 1)
        if first < num_committed:
            found, known = self._log.at(first - 1, num_rows + 1)
            is_known = known.tolist()
            if any(is_known[1:]):
                work.states, work.is_known = found[1:, -1], known[1:]
            nothing = torch.zeros_like(found[0, -1])
            num_run = max(0, min(num_rows, num_committed - 1 - first))
            self.is_whole = self.is_whole and all(is_known[1 : 1 + num_run])
        for row, parent in enumerate(row_parents(num_rows, parents)):
            if is_known[row + 1]:
                continue
            if first + row < num_committed:
                # As in training: where the target has told nothing, there is nothing.
                if not is_known[row]:
                    work.before[row] = nothing
                elif not row:
                    work.before[row] = found[0, -1]
            elif parent < 0:
                state = self._at(first + parent)
                if state is not None:
                    work.before[row] = state
        return work

    def take(self, work: FeatureWork, num_committed: int) -> None:
        """The work is done."""
        if work.read is None:
            return
        end = self._cache.length
        first = end - len(work.token_ids)
        # A round rolls back to before the last committed token at most, or the target has told what stands there.
        start = max(first, min(num_committed - 2, end - 1))
        self._cut(first)
        if start > first:
            self._first, self._read = start, []
        self._read.extend(work.read[start - first :].unbind(0))

    def num_certain(self, num_committed: int, num_accepted: int) -> int | None:
        """A round is over: rows that rest on no guess, if the target has told all states that it has to tell; or None.

        Args:
            num_committed: tokens by now.
            num_accepted: draft tokens among them.
        """
        num_guessed = num_accepted + 1
        first = num_committed - 1 - num_guessed
        has_all = self._log.has_all(first, num_guessed)
        self.is_whole = self.is_whole and (has_all or self._cache.length <= first)
        if self._first < first:
            del self._read[: first - self._first]
            self._first = first
        return first if has_all else None

    def keep_rows(self, base: int, rows: list[int]) -> None:
        """As the cache's."""
        kept = [self._at(base + row) for row in rows]
        self._cut(base)
        self._read.extend(state for state in kept if state is not None)

    def _at(self, row: int) -> torch.Tensor | None:
        place = row - self._first
        return self._read[place] if 0 <= place < len(self._read) else None

    def _cut(self, row: int) -> None:
        """Forget this row and those behind it."""
        if self._first <= row <= self._first + len(self._read):
            del self._read[row - self._first :]
        else:
            self._first, self._read = row, []
