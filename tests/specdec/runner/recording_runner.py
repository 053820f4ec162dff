"""A runner that notes what it runs, and fails when it is told to."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from specdec.runner.hidden_states import HiddenStates
from specdec.runner.runner import ModelRunner, Work


class RecordingRunner(ModelRunner):
    """Notes the rows of every sequence in every pass."""

    def __init__(self, model: PreTrainedModel, vocab_size: int, hidden_states: HiddenStates | None = None) -> None:
        super().__init__(model, vocab_size, hidden_states, keeps_states=hidden_states is not None)
        self.passes: list[list[int]] = []
        self.problem: Exception | None = None

    def forward(self, batch: Sequence[Work]) -> list[torch.Tensor]:
        self.passes.append([len(work.token_ids) for work in batch])
        if self.problem is not None:
            raise self.problem
        return super().forward(batch)
