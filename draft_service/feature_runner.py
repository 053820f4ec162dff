"""Forward passes of a draft that reads features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from draft_service.state_guess import StateGuess, replace_states, state_guess
from specdec.models.loading import LoadedModel
from specdec.runner.cache import SequenceCache
from specdec.runner.runner import ModelRunner, Work


@dataclass(slots=True)
class FeatureWork(Work):
    """Rows, and what is known of the target's states at them."""

    states: torch.Tensor | None = None
    """(rows, hidden_size), zeros where they are not known. None: of no row."""
    is_known: torch.Tensor | None = None
    """(rows,), bool, on the CPU. None: of no row."""
    before: dict[int, torch.Tensor] = field(default_factory=dict)
    """By row, in increasing order: the state one position before it, the target's or a guess; (hidden_size,). Of other
    rows it is what the row that they follow reads in this pass; where that is in the cache, nobody knows."""
    read: torch.Tensor | None = field(default=None, init=False)
    """What the rows read, once they are run; (rows, hidden_size)."""


def row_parents(num_rows: int, parents: list[int] | None) -> list[int]:
    """Which row each new one follows, counted from the first new one: those in the cache are negative.

    Args:
        num_rows: new ones.
        parents: see `Segment.parents`.
    """
    num_nodes = len(parents or ())
    first = num_rows - num_nodes
    found = [*range(-1, first - 1), *(first + parent for parent in parents or ())]
    return found[max(0, -first) :] if first < 0 else found


class FeatureRunner(ModelRunner):
    """Runs a draft that reads features: the target's states where they are known, guesses elsewhere.

    Args:
        model: with a `StateGuess`.
        vocab_size: as for `ModelRunner`.
        guess: the model's own.
    """

    def __init__(self, model: PreTrainedModel, vocab_size: int, guess: StateGuess) -> None:
        super().__init__(model, vocab_size)
        self._guess = guess
        self._embed: Any = model.get_input_embeddings()
        self._token_ids = torch.empty(0)
        self._batch: Sequence[Work] = ()
        replace_states(model, guess.layer, self._states)

    def blank_step(self, cache: SequenceCache, num_rows: int) -> FeatureWork:
        """A step that costs what a step of drafting does, for measuring."""
        nothing = self._embed.weight.new_zeros(self._embed.weight.shape[1])
        return FeatureWork(cache, [0] * num_rows, num_rows, before=dict.fromkeys(range(num_rows), nothing))

    def _inputs(self, token_ids: torch.Tensor, batch: Sequence[Work]) -> dict[str, torch.Tensor]:
        self._token_ids, self._batch = token_ids, batch
        return {"input_ids": token_ids}

    def _states(self, lower: torch.Tensor) -> torch.Tensor:
        """What the upper layers read; both (1, rows, hidden_size)."""
        if not self._batch:
            # The model is run by somebody else.
            return lower
        if not self._guess.layer:
            lower = self._embed(self._token_ids)
        known = [
            work if isinstance(work, FeatureWork) else FeatureWork(work.cache, work.token_ids, 0, work.parents)
            for work in self._batch
        ]
        self._batch = ()
        if all(work.states is None and len(work.before) == len(work.token_ids) for work in known):
            # Nearly every pass: a step of drafting for each sequence.
            before = torch.stack([state.to(lower) for work in known for state in work.before.values()])
            states: torch.Tensor = self._guess(lower[0], before)
        else:
            states = self._mixed_states(lower[0], known)
        end = 0
        for work in known:
            start, end = end, end + len(work.token_ids)
            work.read = states[start:end]
        return states[None]

    def _mixed_states(self, lower: torch.Tensor, batch: Sequence[FeatureWork]) -> torch.Tensor:
        """Known states and guesses side by side, those that rest on guesses after these; (rows, hidden_size)."""
        states, before = torch.zeros_like(lower), torch.zeros_like(lower)
        levels: list[list[int]] = []
        follows: dict[int, int] = {}
        end = 0
        for work in batch:
            start, end = end, end + len(work.token_ids)
            if work.states is not None:
                states[start:end] = work.states
            for row, state in work.before.items():
                before[start + row] = state
            is_known = work.is_known.tolist() if work.is_known is not None else [False] * (end - start)
            depths: list[int] = []
            for row, parent in enumerate(row_parents(end - start, work.parents)):
                depth = -1 if is_known[row] else 0
                if not is_known[row] and parent >= 0 and row not in work.before:
                    follows[start + row] = start + parent
                    depth = depths[parent] + 1
                depths.append(depth)
                if depth >= 0:
                    levels.extend([] for _ in range(depth + 1 - len(levels)))
                    levels[depth].append(start + row)
        for level in levels:
            children = [row for row in level if row in follows]
            before[children] = states[[follows[row] for row in children]]
            states[level] = self._guess(lower[level], before[level])
        return states


def make_runner(draft: LoadedModel) -> ModelRunner:
    """What runs a draft, whether it reads features or not."""
    guess = state_guess(draft.model)
    if guess is None:
        return ModelRunner(draft.model, draft.info.vocab_size)
    return FeatureRunner(draft.model, draft.info.vocab_size, guess)
