"""A model that is a table: its law depends on the last two tokens, which it reads back from the cache.

It stands where a language model stands, behind the real runner, so that a wrong row, mask, position or rollback shows
in the law of what comes out.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import torch
from transformers import PreTrainedModel

from specdec.models.loading import LoadedModel
from specdec.runner.attention import RaggedBatch
from specdec.runner.segment import Segment
from specdec.tokenizer_files import TokenizerFiles
from specdec.v1 import model_pb2

PADDING = 3
"""Rows of the head beyond the vocabulary, as checkpoints have them."""
_PADDING_LOGIT = 1.0
CONTEXT_LENGTH = 64

Table = list[list[list[float]]]
"""table[a][b][token]: log-probability of `token` behind the tokens a, b; -inf: it never comes."""


_TARGET_SHAPES = ((0.45, 0.3, 0.2, 0.05), (0.55, 0.3, 0.15, 0.0), (0.6, 0.4, 0.0, 0.0))
_DRAFT_SHAPES = ((0.8, 0.12, 0.08, 0.0), (0.08, 0.12, 0.25, 0.55))


def target_and_draft(seed: int) -> tuple[Table, Table]:
    """Tables of a target and a drafter over four tokens.

    Behind each pair of tokens the drafter is too sure of the target's favourite, or has everything upside down; so what
    is wrong with accepting or recovering changes the law by a lot.
    """
    source = random.Random(seed)
    tokens = range(len(_TARGET_SHAPES[0]))
    target: Table = [[[] for _ in tokens] for _ in tokens]
    draft: Table = [[[] for _ in tokens] for _ in tokens]
    for first in tokens:
        for second in tokens:
            order = source.sample(tokens, len(tokens))
            target[first][second] = _log_law(source.choice(_TARGET_SHAPES), order)
            draft[first][second] = _log_law(source.choice(_DRAFT_SHAPES), order)
    return target, draft


def one_law_table(*probabilities: float) -> Table:
    """The same law behind all tokens."""
    row = _log_law(probabilities, range(len(probabilities)))
    return [[row for _ in row] for _ in row]


def _log_law(probabilities: Sequence[float], order: Sequence[int]) -> list[float]:
    """Log-probabilities by token; `order` names the token of each probability."""
    law = dict(zip(order, probabilities, strict=True))
    return [math.log(law[token]) if law[token] else -math.inf for token in range(len(law))]


class TableModel(torch.nn.Module):
    """What the runner needs of a model: a device and a forward pass over segments.

    It has no layers to give states of.
    """

    device = torch.device("cpu")
    config = SimpleNamespace(model_type="table", num_hidden_layers=1)

    def __init__(self, table: Table) -> None:
        super().__init__()
        vocab_size = len(table)
        self._logits = torch.full((vocab_size, vocab_size, vocab_size + PADDING), _PADDING_LOGIT)
        self._logits[..., :vocab_size] = torch.tensor(table)

    def forward(
        self,
        input_ids: torch.Tensor,  # (1, rows)
        position_ids: torch.Tensor,  # (1, rows)
        ragged_batch: RaggedBatch,
        logits_to_keep: torch.Tensor,  # (kept rows,)
        use_cache: bool,
    ) -> SimpleNamespace:
        """`logits` is (1, kept rows, vocab_size + PADDING)."""
        rows = input_ids[..., None]
        ragged_batch.write(0, rows, rows)
        contexts = []
        start = 0
        for segment in ragged_batch.segments:
            end = start + segment.num_rows
            contexts.append(self._last_two(segment, position_ids[0, start:end]))
            start = end
        kept = torch.cat(contexts)[logits_to_keep]
        return SimpleNamespace(logits=self._logits[kept[:, 0], kept[:, 1]][None])

    def _last_two(self, segment: Segment, positions: torch.Tensor) -> torch.Tensor:
        """The last two tokens that each new row sees; (rows, 2). A first token has token 0 before it."""
        length = segment.cache.length
        seen = segment.read(0)[0][0, :, 0]  # (length + rows,)
        mask = segment.mask(None, self.device)
        if mask is None:
            mask = torch.ones((1, length + 1), dtype=torch.bool)
        if not torch.equal(mask.sum(1) - 1, positions):
            raise AssertionError("a row's position is not the number of tokens before it")
        columns = (mask * torch.arange(1, len(seen) + 1)).topk(min(2, len(seen)), dim=1).values - 1
        before = columns[:, 1] if columns.shape[1] == 2 else torch.full_like(columns[:, 0], -1)
        return torch.stack([torch.where(before < 0, 0, seen[before]), seen[columns[:, 0]]], dim=1)


def loaded_table(table: Table) -> LoadedModel:
    """A table as a service loads it."""
    info = model_pb2.ModelInfo(
        model_id="table", vocab_size=len(table), max_context_length=CONTEXT_LENGTH, dtype="float32", device="cpu"
    )
    return LoadedModel(cast("PreTrainedModel", TableModel(table)), info, TokenizerFiles(b"", "", {}))
