"""Wrong variants of rows, caches and the vocabulary."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from draft_service.drafters.causal_lm import CausalLMDrafter
from specdec.runner.cache import SequenceCache
from specdec.runner.runner import ModelRunner, PassLogits
from target_service import engine
from target_service.judge import Judge
from target_service.together import outcomes_together
from tests.exactness import coupled_id_checks as coupled_ids
from tests.exactness import memory_checks as memory
from tests.exactness import service_checks as services
from tests.exactness.wrong.sabotage import sabotage


@sabotage(services.check_rejection_over_grpc, services.check_coupled_over_grpc, coupled_ids.check_coupled_ids)
def logits_off_by_one(patch: pytest.MonkeyPatch) -> None:
    """A draft token is judged by the logits behind it."""
    decide = Judge.decide

    def behind(rows: torch.Tensor) -> torch.Tensor:
        return torch.cat([rows[1:], rows[-1:]])

    patch.setattr(
        Judge,
        "decide",
        lambda self, committed, window, logits: decide(self, committed, window, behind(logits)),
    )
    patch.setattr(
        engine,
        "outcomes_together",
        lambda rounds, logits: outcomes_together(rounds, PassLogits(behind(logits.rows), list(map(len, logits)))),
    )


@sabotage(services.check_rejection_over_grpc, coupled_ids.check_coupled_ids, memory.check_shared_memory)
def cache_not_cut_back(patch: pytest.MonkeyPatch) -> None:
    """After a rejection the cache keeps the row of the rejected token in place of the recovered one's."""

    def keep_rows(self: SequenceCache, base: int, rows: list[int]) -> None:
        self.truncate(min(base + len(rows) + 1, self.length))

    patch.setattr(SequenceCache, "keep_rows", keep_rows)


@sabotage(coupled_ids.check_coupled_ids, memory.check_shared_memory)
def tree_rows_not_moved(patch: pytest.MonkeyPatch) -> None:
    """After a tree the cache keeps its first rows, not those of the accepted nodes."""
    patch.setattr(SequenceCache, "keep_rows", lambda self, base, rows: self.truncate(base + len(rows)))


@sabotage(coupled_ids.check_coupled_acceptance)
def draft_cache_not_cut_back(patch: pytest.MonkeyPatch) -> None:
    """The drafter keeps the rows of its rejected tokens."""
    patch.setattr(CausalLMDrafter, "commit", lambda *_: None)


@sabotage(services.check_rejection_over_grpc, services.check_coupled_over_grpc, coupled_ids.check_coupled_ids)
def padding_left_in(patch: pytest.MonkeyPatch) -> None:
    """The checkpoint's padding rows take part in the softmax."""
    init = ModelRunner.__init__

    def keep_padding(self: ModelRunner, model: PreTrainedModel, vocab_size: int, *rest: Any, **named: Any) -> None:
        init(self, model, 1 << 20, *rest, **named)

    patch.setattr(ModelRunner, "__init__", keep_padding)
