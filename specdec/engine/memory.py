"""Who may hold key-value memory: admission by tokens, and who gives memory up when it runs out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from specdec.engine.schedule import Pending, Share
from specdec.engine.turnover import Turnover
from specdec.errors import ResourceExhaustedError
from specdec.runner.cache import SequenceCache
from specdec.runner.pool import KVPool
from specdec.telemetry.metrics import EngineMetrics


class CachedPending(Pending, Protocol):
    """A round of a sequence that has a cache."""

    @property
    def cache(self) -> SequenceCache:
        """Of the sequence."""

    @property
    def token_ids(self) -> Sequence[int]:
        """Committed tokens."""


CachedT = TypeVar("CachedT", bound=CachedPending)


class _Lease(NamedTuple):
    number: int
    """Counts admissions: the age of the sequence."""
    num_blocks: int


class CacheMemory:
    """The pool of a model, and the sequences that share it.

    A sequence is admitted with the most blocks it may come to; those that find no room wait in order. Blocks are given
    as they are needed. When they run out, the sequence admitted last loses its cache: it keeps its place and is
    prefilled again when there is room. So the oldest always goes on, and everyone gets to be the oldest.

    Args:
        pool: the memory.
        overcommit: blocks that may be promised, as a multiple of those there are. Most sequences end before they come
            to their most, and shared prefixes are held once, so more than 1 fills the memory better.
        max_num_queued: sequences that may wait for admission.
    """

    def __init__(self, pool: KVPool, *, overcommit: float = 1.0, max_num_queued: int = 0) -> None:
        self.pool = pool
        self._max_num_promised = int(overcommit * pool.blocks.num_blocks)
        self._max_num_queued = max_num_queued
        self._leases: dict[SequenceCache, _Lease] = {}
        self._num_promised = 0
        self._num_admitted = 0
        self._queue: dict[SequenceCache, int] = {}
        self._turnover = Turnover()
        self._reported = (0, 0)
        self.num_preemptions = 0
        """Caches lost to older sequences, so far."""

    @property
    def num_queued(self) -> int:
        """Sequences that wait to be admitted."""
        return len(self._queue)

    @property
    def num_free_tokens(self) -> int:
        """Tokens that may still be promised; as `num_queued`, may be read from any thread."""
        return max(0, self._max_num_promised - self._num_promised) * self.pool.block_tokens

    @property
    def num_admitted(self) -> int:
        """Sequences that are admitted."""
        return len(self._leases)

    def join(self, cache: SequenceCache, max_tokens: int) -> None:
        """A sequence begins.

        Args:
            cache: its cache, in the pool.
            max_tokens: tokens that it may come to, window included.

        Raises:
            ResourceExhaustedError: the memory is full, and so is the queue.
        """
        cache.expected_length = max_tokens
        self._queue[cache] = self.pool.num_blocks(max_tokens)
        self._admit()
        if len(self._queue) > self._max_num_queued:
            del self._queue[cache]
            raise ResourceExhaustedError(
                f"the key-value memory is promised to {len(self._leases)} sequences, and {len(self._queue)} more wait; "
                "try again later",
                self._turnover.wait_seconds(len(self._queue)),
            )

    def leave(self, cache: SequenceCache) -> None:
        """A sequence is over; harmless if it never joined. What it computed stays to be found while there is room."""
        cache.release()
        self._queue.pop(cache, None)
        lease = self._leases.pop(cache, None)
        if lease is not None:
            self._num_promised -= lease.num_blocks
            self._turnover.end(cache)
        self._admit()

    def ready(self, waiting: Iterable[CachedT]) -> list[CachedT]:
        """The rounds that may be run now, prefills in order of age; these first take what the pool has of their tokens.

        Left out are sequences that wait for admission, and prefills whose next block another one is about to compute:
        they take it over when it is there.
        """
        leases = self._leases
        admitted = [pending for pending in waiting if pending.cache in leases]
        to_prefill = [pending for pending in admitted if pending.is_prefill]
        if not to_prefill:
            return admitted
        prefills = []
        coming: set[bytes] = set()
        for pending in sorted(to_prefill, key=self._age):
            pending.cache.adopt(pending.token_ids)
            if pending.is_prefill:
                key = pending.cache.next_key(pending.token_ids)
                if key is None or key not in coming:
                    prefills.append(pending)
                    if key is not None:
                        coming.add(key)
        return [*(pending for pending in admitted if not pending.is_prefill), *prefills]

    def fit(self, shares: Sequence[Share[CachedT]]) -> list[Share[CachedT]]:
        """The shares of a pass that find blocks; the others are left out.

        A prefill gets the blocks of all its tokens at once: half a prompt is of no use to anyone. Where there are
        blocks for whoever comes first, the pass takes them itself.
        """
        if self._is_plenty(shares):
            return list(shares)
        kept = set()
        lengths = {share.pending.cache: share.pending.cache.length for share in shares}
        for share in sorted(shares, key=lambda share: self._age(share.pending)):
            pending = share.pending
            num_rows = share.num_rows
            if not share.finishes:
                num_rows = pending.num_uncached_tokens + pending.num_window_rows
            # Its own cache may have gone to an older sequence just now.
            if pending.cache.length == lengths[pending.cache] and self._prepare(pending, num_rows):
                kept.add(pending.cache)
        return [share for share in shares if share.pending.cache in kept]

    def is_short(self, shares: Sequence[Share[CachedT]]) -> bool:
        """Whether there are too few blocks for all shares of a pass, unless somebody gives some up."""
        if self._is_plenty(shares):
            return False
        pending = [share.pending for share in shares]
        num_missing = sum(each.cache.num_missing(each.num_uncached_tokens + each.num_window_rows) for each in pending)
        return num_missing > self.pool.blocks.num_available

    def report(self, metrics: EngineMetrics) -> None:
        """Tell how full the memory is, and what was lost since the last report."""
        blocks = self.pool.blocks
        metrics.kv_blocks(used=blocks.num_used, cached=blocks.num_cached, free=blocks.num_available - blocks.num_cached)
        metrics.kv_queued_sequences(len(self._queue))
        losses = blocks.num_evictions, self.num_preemptions
        if losses != self._reported:
            evictions, preemptions = self._reported
            metrics.kv_lost(num_evictions=losses[0] - evictions, num_preemptions=losses[1] - preemptions)
            self._reported = losses

    def _is_plenty(self, shares: Sequence[Share[CachedT]]) -> bool:
        """Whether all rounds of a pass end with it, and there are new blocks for every row."""
        rows = [share.num_rows for share in shares if share.finishes]
        # The rows of a sequence lie in at most two blocks more than they would fill.
        num_blocks = sum(rows) // self.pool.block_tokens + 2 * len(rows)
        return len(rows) == len(shares) and num_blocks <= self.pool.blocks.num_available

    def _age(self, pending: CachedPending) -> int:
        return self._leases[pending.cache].number

    def _prepare(self, pending: CachedPending, num_rows: int) -> bool:
        """Blocks for rows, from the caches of younger sequences if need be, the youngest first."""
        cache = pending.cache
        if cache.prepare(num_rows):
            return True
        younger = list(self._leases)
        younger = younger[younger.index(cache) + 1 :]
        num_held = sum(other.num_blocks for other in younger)
        if cache.num_missing(num_rows) > self.pool.blocks.num_available + num_held:
            return False
        for other in reversed(younger):
            if other.num_blocks:
                other.release()
                self.num_preemptions += 1
                if cache.prepare(num_rows):
                    return True
        return False

    def _admit(self) -> None:
        """Admit from the queue, in order; a sequence that is alone always fits."""
        while self._queue:
            cache, num_blocks = next(iter(self._queue.items()))
            if self._leases and self._num_promised + num_blocks > self._max_num_promised:
                return
            del self._queue[cache]
            self._num_admitted += 1
            self._leases[cache] = _Lease(self._num_admitted, num_blocks)
            self._num_promised += num_blocks
            self._turnover.begin(cache)
