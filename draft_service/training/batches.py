"""Batches of texts of similar length, so that little padding is computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from draft_service.training.samples import Sample
from specdec.sampling.noise import Stream, noise_key

_BATCHES_PER_BLOCK = 8
_LIKE_POSITIONS = 64
_FORGETFUL_EVERY = 8
"""Of so many texts, the beginning of one has lost its features, as after a prefix hit or a failure of a service."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts side by side, and the laws to learn from them."""

    token_ids: torch.Tensor  # (texts, length), int64, padded on the right, where causal attention never looks
    rows: torch.Tensor  # (laws,), int64: row of the flattened texts whose logits each law is of
    draft_ids: torch.Tensor  # (laws, top), int64: index in the draft vocabulary, or -1
    logprobs: torch.Tensor  # (laws, top), float32, of the target
    features: torch.Tensor | None = None  # (texts, length, states, hidden_size), float32; the last is 0 where unknown

    @property
    def num_laws(self) -> int:
        """Positions to learn from."""
        return len(self.rows)


class BatchMaker:
    """Makes batches for one draft vocabulary.

    Args:
        draft_vocab: (draft_vocab_size,), int64, increasing.
        vocab_size: of the target.
        device: of the batches.
        batch_tokens: most tokens of a batch, padding included; a longer text is a batch of its own.
    """

    def __init__(self, draft_vocab: torch.Tensor, vocab_size: int, device: torch.device, batch_tokens: int) -> None:
        self._draft_ids = torch.full((vocab_size,), -1, dtype=torch.long)
        self._draft_ids[draft_vocab] = torch.arange(len(draft_vocab))
        self._device = device
        self._batch_tokens = batch_tokens

    def batches(self, samples: Sequence[Sample], forgotten: Mapping[int, float] | None = None) -> Iterator[Batch]:
        """All samples, those together that begin to be learnt from near the same place, by length.

        Args:
            samples: at least one.
            forgotten: share of a text, by its number, whose features are left out.
        """
        group: list[Sample] = []
        for sample in sorted(samples, key=_likeness):
            longest = max(len(other.token_ids) for other in [*group, sample])
            if group and longest * (len(group) + 1) > self._batch_tokens:
                yield self._batch(group, forgotten or {})
                group = []
            group.append(sample)
        if group:
            yield self._batch(group, forgotten or {})

    def block(self, samples: Sequence[Sample], visits: dict[int, int], seed: int) -> list[Batch]:
        """The next batches to train on, of the texts that were visited least; counts the visit.

        Which ones follows from `samples`, `visits` and the seed alone, so training goes on after a kill as it would
        have gone on without.

        Args:
            samples: to choose from, at least one.
            visits: of each sample by its number; 0 if it is not there.
            seed: of the run.
        """
        queue = sorted(
            samples,
            key=lambda sample: (
                visits.get(sample.index, 0),
                noise_key(seed, sample.index, Stream.DRAFT)
                ^ noise_key(seed, visits.get(sample.index, 0), Stream.DRAFT),
            ),
        )
        room = _BATCHES_PER_BLOCK * self._batch_tokens
        chosen: list[Sample] = []
        for sample in queue:
            room -= len(sample.token_ids)
            if room < 0 and chosen:
                break
            chosen.append(sample)
        for sample in chosen:
            visits[sample.index] = visits.get(sample.index, 0) + 1
        generator = torch.Generator().manual_seed(noise_key(seed, sum(visits.values()), Stream.DRAFT) >> 1)
        shares = (_FORGETFUL_EVERY * torch.rand(len(chosen), generator=generator)).tolist()
        forgotten = {sample.index: share for sample, share in zip(chosen, shares, strict=True) if share < 1.0}
        batches = list(self.batches(chosen, forgotten))
        return [batches[place] for place in torch.randperm(len(batches), generator=generator).tolist()]

    def _batch(self, samples: Sequence[Sample], forgotten: Mapping[int, float]) -> Batch:
        length = max(len(sample.token_ids) for sample in samples)
        token_ids = torch.zeros((len(samples), length), dtype=torch.long)
        rows = []
        for place, sample in enumerate(samples):
            token_ids[place, : len(sample.token_ids)] = sample.token_ids
            # A law is that of the logits one row before.
            rows.append(sample.law_positions.long() - 1 + place * length)
        top_ids = torch.cat([sample.top_ids for sample in samples]).long()
        logprobs = torch.cat([sample.top_logprobs for sample in samples]).float()
        return Batch(
            token_ids.to(self._device),
            torch.cat(rows).to(self._device),
            self._draft_ids[top_ids].to(self._device),
            logprobs.to(self._device),
            self._features(samples, length, forgotten),
        )

    def _features(self, samples: Sequence[Sample], length: int, forgotten: Mapping[int, float]) -> torch.Tensor | None:
        if samples[0].features is None:
            return None
        padded = torch.zeros((len(samples), length, *samples[0].features.shape[1:]), device=self._device)
        for place, sample in enumerate(samples):
            if sample.features is not None:
                first = int(forgotten.get(sample.index, 0.0) * len(sample.features))
                padded[place, : len(sample.features)] = sample.features.to(self._device)
                # What lower layers give, the draft has from its own.
                padded[place, :first, -1] = 0.0
        return padded


def _likeness(sample: Sample) -> tuple[int, int, int]:
    return int(sample.law_positions[0]) // _LIKE_POSITIONS, len(sample.token_ids), sample.index
