"""Forward passes of a draft that reads features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from draft_service.feature_input import FeatureInput, feature_input
from specdec.models.loading import LoadedModel
from specdec.runner.cache import SequenceCache
from specdec.runner.hidden_states import HiddenStates
from specdec.runner.runner import ModelRunner, Work


@dataclass(slots=True)
class FeatureWork(Work):
    """Rows, and what is known of the position before each."""

    target_features: torch.Tensor | None = None
    """From the target; (rows, states, hidden_size), zeros where there are none. None: for no row."""
    own_states: torch.Tensor | None = None
    """The draft's own last hidden states; (rows, hidden_size). None: for no row."""


class FeatureRunner(ModelRunner):
    """Runs a draft that reads features. Of the last rows of a piece of work it can give its own states, to go on from.

    Args:
        model: with a `FeatureInput`.
        vocab_size: as for `ModelRunner`.
        inputs: the model's own.
    """

    def __init__(self, model: PreTrainedModel, vocab_size: int, inputs: FeatureInput) -> None:
        hidden_states = HiddenStates(model)
        super().__init__(model, vocab_size, hidden_states)
        self.last_state = (hidden_states.num_states,)
        """What `Work.feature_states` is to be, to have the draft's own last states as features."""
        hidden_states.watch(self.last_state)
        self._inputs_module = inputs

    def blank_step(self, cache: SequenceCache, num_rows: int) -> FeatureWork:
        """A step that costs what a step of drafting does, for measuring."""
        states = torch.zeros((num_rows, self._inputs_module.hidden_size), device=self._model.device)
        return FeatureWork(
            cache, [0] * num_rows, num_rows, num_features=1, feature_states=self.last_state, own_states=states
        )

    def _inputs(self, token_ids: torch.Tensor, batch: Sequence[Work]) -> dict[str, torch.Tensor]:
        inputs = self._inputs_module
        embeddings: torch.Tensor = self._embeddings(token_ids[0])
        rows = inputs.of_tokens(embeddings)
        target = [work.target_features if isinstance(work, FeatureWork) else None for work in batch]
        own = [work.own_states if isinstance(work, FeatureWork) else None for work in batch]
        for parts, shape, project in (
            (target, (inputs.num_states, inputs.hidden_size), inputs.of_features),
            (own, (inputs.hidden_size,), inputs.of_own),
        ):
            # One product for all rows that have any, zeros for those between them.
            if any(part is not None for part in parts):
                filled = [
                    rows.new_zeros((len(work.token_ids), *shape)) if part is None else part.to(rows)
                    for work, part in zip(batch, parts, strict=True)
                ]
                rows = rows + project(torch.cat(filled))
        return {"inputs_embeds": rows[None]}

    @property
    def _embeddings(self) -> Any:
        return self._model.get_input_embeddings()


def make_runner(draft: LoadedModel) -> ModelRunner:
    """What runs a draft, whether it reads features or not."""
    inputs = feature_input(draft.model)
    if inputs is None:
        return ModelRunner(draft.model, draft.info.vocab_size)
    return FeatureRunner(draft.model, draft.info.vocab_size, inputs)
