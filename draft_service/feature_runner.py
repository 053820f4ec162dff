"""Forward passes of a draft that reads features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from draft_service.state_guess import StateGuess, state_guess
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
        self._hidden_size: int = model.config.hidden_size

    def blank_step(self, cache: SequenceCache, num_rows: int) -> FeatureWork:
        """A step that costs what a step of drafting does, for measuring."""
        return FeatureWork(cache, [0] * num_rows, num_rows)

    def _inputs(self, token_ids: torch.Tensor, batch: Sequence[Work]) -> dict[str, torch.Tensor]:
        embed: Any = self._model.get_input_embeddings()
        blank = embed.weight.new_zeros((1, self._hidden_size))
        states, before, ends = [], [], []
        guessed: list[int] = []
        end = 0
        for work in batch:
            count = len(work.token_ids)
            given = work if isinstance(work, FeatureWork) else FeatureWork(work.cache, work.token_ids, 0)
            own = blank.expand(count, -1) if given.states is None else given.states.to(blank)
            first = blank if given.before is None else given.before.to(blank)[None]
            states.append(own)
            before.append(torch.cat([first, own[:-1]]))
            if given.is_known is None:
                guessed.extend(range(end, end + count))
            else:
                guessed.extend(end + row for row in (~given.is_known).nonzero()[:, 0].tolist())
            end += count
            ends.append(end)
        rows = torch.cat(states)
        if guessed:
            index = torch.tensor(guessed, device=rows.device)
            rows[index] = self._guess(embed(token_ids[0, index]), torch.cat(before)[index])
        for work, behind in zip(batch, ends, strict=True):
            if isinstance(work, FeatureWork):
                work.last_state = rows[behind - 1]
        return {"inputs_embeds": rows[None]}


def make_runner(draft: LoadedModel) -> ModelRunner:
    """What runs a draft, whether it reads features or not."""
    guess = state_guess(draft.model)
    if guess is None:
        return ModelRunner(draft.model, draft.info.vocab_size)
    return FeatureRunner(draft.model, draft.info.vocab_size, guess)
