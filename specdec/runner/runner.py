"""One forward pass for everything that is ready: prefill chunks, decode steps and windows of many sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel

from specdec.runner.attention import RaggedBatch
from specdec.runner.cache import SequenceCache
from specdec.runner.hidden_states import HiddenStates
from specdec.runner.integers import integers
from specdec.runner.segment import Segment
from specdec.runner.visibility import row_depths


@dataclass(slots=True)
class Work:
    """New tokens of one sequence to be run, continuing its cache."""

    cache: SequenceCache
    token_ids: Sequence[int]
    num_logits: int
    """How many of the last rows need logits; 0 for a prefill chunk that is not the last."""
    parents: list[int] | None = None
    """See `Segment.parents`."""
    num_features: int = 0
    """How many of the last rows need features."""
    feature_states: tuple[int, ...] = ()
    """Hidden states that they are made of, all watched."""
    features: torch.Tensor | None = field(default=None, init=False)
    """Of those rows, once they are run; (num_features, states, hidden_size), bfloat16, on the model's device."""


class PassLogits(list[torch.Tensor]):
    """The logits of a pass, for each piece of work.

    Args:
        rows: of all of them, (logits, vocab_size).
        counts: how many rows are of each.
    """

    __slots__ = ("rows",)

    def __init__(self, rows: torch.Tensor, counts: list[int]) -> None:
        super().__init__(torch.split(rows, counts))
        self.rows = rows


class ModelRunner:
    """Runs a causal language model over ragged batches.

    Args:
        model: loaded with `attn_implementation=ATTENTION_NAME`.
        vocab_size: true size of the vocabulary; padding rows of the checkpoint are cut off the logits.
        hidden_states: of the model, which features are made of; None: no work may ask for them.
        keeps_states: whether those that are watched are kept beside keys and values, to be read at any time.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        vocab_size: int,
        hidden_states: HiddenStates | None = None,
        *,
        keeps_states: bool = False,
    ) -> None:
        self._model = model
        self._vocab_size = vocab_size
        self._hidden_states = hidden_states
        self._keeps_states = keeps_states
        self._is_divided = len({parameter.device for parameter in model.parameters()}) > 1

    @torch.inference_mode()
    def forward(self, batch: Sequence[Work]) -> list[torch.Tensor]:
        """Run the new tokens of all sequences at once and move every cache past them.

        Args:
            batch: at least one piece of work, each with at least one token and a cache of its own.

        Returns:
            For each piece, the logits of its last `num_logits` rows; (num_logits, vocab_size), float32, on the device
            of the model's first layer.

        Raises:
            MemoryError: the pool of a cache has no blocks for its rows; callers that share a pool prepare them first.
        """
        device = self._model.device
        token_ids: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        segments = []
        for work in batch:
            num_rows = len(work.token_ids)
            first = work.cache.length
            if not work.cache.prepare(num_rows):
                raise MemoryError("the key-value pool has no blocks for the rows of this pass")
            token_ids.extend(work.token_ids)
            if work.parents is None:
                positions.extend(range(first, first + num_rows))
            else:
                positions.extend(first + depth for depth in row_depths(num_rows, work.parents))
            wanted.extend(range(len(token_ids) - work.num_logits, len(token_ids)))
            segments.append(Segment(work.cache, num_rows, work.parents))
        ragged_batch = RaggedBatch(segments)
        ids_and_positions = integers([token_ids, positions]).to(device)
        output = self._model(
            **self._inputs(ids_and_positions[:1], batch),
            position_ids=ids_and_positions[1:],
            use_cache=False,
            ragged_batch=ragged_batch,
            # A list goes with rows on any device, where the layers are on several.
            logits_to_keep=wanted if self._is_divided else integers(wanted).to(device),
        )
        logits = output.logits[0, :, : self._vocab_size].float()
        for work in batch:
            work.cache.length += len(work.token_ids)
        if self._hidden_states is not None and (states := self._hidden_states.all()):
            if self._keeps_states:
                for number, rows in states.items():
                    ragged_batch.write_states(number, rows)
            _give_features(batch, self._hidden_states)
        return PassLogits(logits, [work.num_logits for work in batch])

    def _inputs(self, token_ids: torch.Tensor, batch: Sequence[Work]) -> dict[str, torch.Tensor]:
        """What the model reads of the rows of a batch; `token_ids` is (1, rows)."""
        return {"input_ids": token_ids}


def _give_features(batch: Sequence[Work], hidden_states: HiddenStates) -> None:
    """Put features into the work that needs them: one read for all that need the same states."""
    rows: dict[tuple[int, ...], list[int]] = {}
    works: dict[tuple[int, ...], list[Work]] = {}
    end = 0
    for work in batch:
        end += len(work.token_ids)
        if work.num_features:
            rows.setdefault(work.feature_states, []).extend(range(end - work.num_features, end))
            works.setdefault(work.feature_states, []).append(work)
    for numbers, of_numbers in works.items():
        parts = torch.split(hidden_states.read(numbers, rows[numbers]), [each.num_features for each in of_numbers])
        for work, features in zip(of_numbers, parts, strict=True):
            work.features = features
    hidden_states.drop()
