"""All text of a run: what earlier processes wrote, what is being written, what is kept for measuring."""

from __future__ import annotations

import time
from collections.abc import Iterator

from draft_service.training.samples import Sample, SampleStore
from draft_service.training.writer import Writer

_SHARD_TOKENS = 8192


class Corpus:
    """Grows shard by shard.

    Args:
        store: where the shards are; read at once.
        writer: writes further texts.

    Raises:
        ModelError: a shard on disk is damaged.
    """

    def __init__(self, store: SampleStore, writer: Writer) -> None:
        self._store = store
        self._samples = store.load()
        self._known = {sample.index for sample in self._samples}
        self._writer = writer
        self._texts: Iterator[Sample] | None = None
        self.num_tokens = sum(len(sample.law_positions) for sample in self._samples)
        """Tokens that the target wrote."""

    @property
    def seconds(self) -> float:
        """Time of writing, in earlier processes too."""
        return self._store.seconds

    @property
    def samples(self) -> list[Sample]:
        """All texts, in the order they were finished."""
        return self._samples

    @property
    def learnable(self) -> list[Sample]:
        """Texts to train on."""
        return [sample for sample in self._samples if not sample.is_held_out]

    @property
    def held_out(self) -> list[Sample]:
        """Texts to measure with, in the order they were finished: the first ones stay the first."""
        return [sample for sample in self._samples if sample.is_held_out]

    def write_shard(self) -> int:
        """Have one more shard written and put on disk; returns its tokens.

        Raises:
            ModelError: there is no room for it.
        """
        started = time.monotonic()
        if self._texts is None:
            self._texts = self._writer.samples(frozenset(self._known))
        new: list[Sample] = []
        num_tokens = 0
        while num_tokens < _SHARD_TOKENS:
            sample = next(self._texts)
            new.append(sample)
            num_tokens += len(sample.law_positions)
        self._store.append(new, time.monotonic() - started)
        self._samples.extend(new)
        self.num_tokens += num_tokens
        return num_tokens
