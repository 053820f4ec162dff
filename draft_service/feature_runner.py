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
    before: torch.Tensor | None = None
    """State before the first row, (hidden_size,); the target's, or a guess. None: nobody knows."""
    last_state: torch.Tensor | None = field(default=None, init=False)
    """What the last row read, once it is run; (hidden_size,)."""


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
        return FeatureWork(cache, [0] * num_rows, num_rows)

    def _inputs(self, token_ids: torch.Tensor, batch: Sequence[Work]) -> dict[str, torch.Tensor]:
        self._token_ids, self._batch = token_ids, batch
        return {"input_ids": token_ids}

    def _states(self, lower: torch.Tensor) -> torch.Tensor:
        """What the upper layers read; both (1, rows, hidden_size)."""
        if not self._guess.layer:
            lower = self._embed(self._token_ids)
        states = torch.zeros_like(lower[0])
        before = torch.zeros_like(states)
        guessed: list[int] = []
        end = 0
        for work in self._batch:
            start, end = end, end + len(work.token_ids)
            is_known = work.is_known if isinstance(work, FeatureWork) else None
            if is_known is None:
                guessed.extend(range(start, end))
            else:
                guessed.extend((start + (~is_known).nonzero()[:, 0]).tolist())
            if isinstance(work, FeatureWork):
                if work.states is not None:
                    states[start:end] = work.states
                    before[start + 1 : end] = work.states[:-1]
                if work.before is not None:
                    before[start] = work.before
        if len(guessed) == end:
            states = self._guess(lower[0], before)
        elif guessed:
            index = torch.tensor(guessed, device=states.device)
            states[index] = self._guess(lower[0, index], before[index])
        end = 0
        for work in self._batch:
            end += len(work.token_ids)
            if isinstance(work, FeatureWork):
                work.last_state = states[end - 1]
        self._batch = ()
        return states[None]


def make_runner(draft: LoadedModel) -> ModelRunner:
    """What runs a draft, whether it reads features or not."""
    guess = state_guess(draft.model)
    if guess is None:
        return ModelRunner(draft.model, draft.info.vocab_size)
    return FeatureRunner(draft.model, draft.info.vocab_size, guess)
