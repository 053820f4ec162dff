"""All text of a run: what earlier processes or another run wrote, what is being written, what is kept for measuring."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence

from draft_service.training.own_samples import is_own, own_index
from draft_service.training.samples import Sample, SampleStore
from draft_service.training.writer import Writer

_SHARD_TOKENS = 8192


class Corpus:
    """Grows shard by shard.

    Args:
        store: where the shards are; read at once.
        writer: writes further texts.
        shared: texts of another run.

    Raises:
        ModelError: a shard on disk is damaged.
    """

    def __init__(self, store: SampleStore, writer: Writer, shared: Sequence[Sample] = ()) -> None:
        self._store = store
        self._samples = [*shared, *store.load()]
        self._known = {sample.index: sample for sample in self._samples}
        self._writer = writer
        self._texts: Iterator[Sample] | None = None
        self.num_tokens = 0
        """Tokens that the target wrote."""
        self.num_own_tokens = 0
        """Tokens that the student wrote."""
        for sample in self._samples:
            self._count(sample)

    @property
    def seconds(self) -> float:
        """Time of writing, in earlier processes too; not that of another run."""
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
            self._texts = self._writer.samples(dict(self._known))
        new: list[Sample] = []
        num_tokens = 0
        while num_tokens < _SHARD_TOKENS:
            sample = next(self._texts)
            new.append(sample)
            num_tokens += len(sample.law_positions)
        self.add(new, time.monotonic() - started)
        return num_tokens

    def unanswered(self, count: int) -> list[Sample]:
        """At most that many texts to train on whose prompts the student has not answered."""
        found = (sample for sample in self.learnable if not is_own(sample) and own_index(sample) not in self._known)
        return list(itertools.islice(found, count))

    def add(self, samples: Sequence[Sample], seconds: float) -> None:
        """Put texts on disk and take them over.

        Args:
            samples: at least one.
            seconds: that writing them took.

        Raises:
            ModelError: there is no room for them.
        """
        samples = self._store.append(samples, seconds)
        self._samples.extend(samples)
        self._known.update((sample.index, sample) for sample in samples)
        for sample in samples:
            self._count(sample)

    def _count(self, sample: Sample) -> None:
        if is_own(sample):
            self.num_own_tokens += len(sample.law_positions)
        else:
            self.num_tokens += len(sample.law_positions)
