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
        work = FeatureWork(cache, [0] * num_rows, num_rows)
        work.before = self._embed.weight.new_zeros(self._embed.weight.shape[1])
        return work

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
            work if isinstance(work, FeatureWork) else FeatureWork(work.cache, work.token_ids, 0)
            for work in self._batch
        ]
        self._batch = ()
        if all(len(work.token_ids) == 1 and work.states is None and work.before is not None for work in known):
            # Nearly every pass: a step of drafting for each sequence.
            before = torch.stack([work.before for work in known if work.before is not None]).to(lower)
            states: torch.Tensor = self._guess(lower[0], before)
        else:
            states = self._mixed_states(lower[0], known)
        end = 0
        for work in known:
            end += len(work.token_ids)
            work.last_state = states[end - 1]
        return states[None]

    def _mixed_states(self, lower: torch.Tensor, batch: Sequence[FeatureWork]) -> torch.Tensor:
        """Known states and guesses side by side; (rows, hidden_size)."""
        states, before = torch.zeros_like(lower), torch.zeros_like(lower)
        guessed: list[int] = []
        end = 0
        for work in batch:
            start, end = end, end + len(work.token_ids)
            if work.is_known is None:
                guessed.extend(range(start, end))
            else:
                guessed.extend((start + (~work.is_known).nonzero()[:, 0]).tolist())
            if work.states is not None:
                states[start:end] = work.states
                before[start + 1 : end] = work.states[:-1]
            if work.before is not None:
                before[start] = work.before
        if guessed:
            index = torch.tensor(guessed, device=states.device)
            states[index] = self._guess(lower[index], before[index])
        return states


def make_runner(draft: LoadedModel) -> ModelRunner:
    """What runs a draft, whether it reads features or not."""
    guess = state_guess(draft.model)
    if guess is None:
        return ModelRunner(draft.model, draft.info.vocab_size)
    return FeatureRunner(draft.model, draft.info.vocab_size, guess)
