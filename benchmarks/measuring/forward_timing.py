"""Timing forward passes of several sides in turn: the same passes by other kernels or element types."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from specdec.models.loading import LoadedModel, load_model
from specdec.runner.cache import SequenceCache
from specdec.runner.pool import KVPool
from specdec.runner.runner import ModelRunner, Work
from specdec.settings import LinearKernel

Sweep = Literal["rows", "sequences", "context"]
SWEEPS: tuple[Sweep, ...] = get_args(Sweep)
_CHUNK_ROWS = 256
_WARM_UP_PASSES = 2


@dataclass(frozen=True)
class Point:
    """A forward pass."""

    num_sequences: int
    num_rows: int
    """Of each sequence, with logits for all of them."""
    context: int
    """Tokens cached of each."""


@dataclass(frozen=True)
class Duration:
    """Of one pass."""

    wall_seconds: float
    cpu_seconds: float
    """Of the thread that runs it: with one thread, what the pass would take if nobody else wanted the processor."""


class Side:
    """A model with its kernels, and sequences to continue.

    Args:
        name: element type and linear kernel, such as float32/auto.
        model: name of the model.
        device: of the model.
    """

    def __init__(self, name: str, model: str, device: str) -> None:
        self.name = name
        dtype, kernel = parse_side(name)
        self.loaded: LoadedModel = load_model(model, dtype=dtype, device=device, linear_kernel=kernel)
        self._runner = ModelRunner(self.loaded.model, self.loaded.info.vocab_size)
        self._caches: dict[tuple[int, int], SequenceCache] = {}

    def prepare(self, points: Sequence[Point]) -> None:
        """Fill the caches that the points need, and run each of them, so that no pass is the first of its kind."""
        longest = max(point.context for point in points)
        source = SequenceCache(KVPool(None))
        while source.length < longest:
            count = min(_CHUNK_ROWS, longest - source.length)
            self._runner.forward([Work(source, self._tokens(count), 0)])
        for point in points:
            for index in range(point.num_sequences):
                if (index, point.context) not in self._caches:
                    cache = self._caches[index, point.context] = SequenceCache()
                    cache.copy_prefix(source, point.context)
        for point in points:
            for _ in range(_WARM_UP_PASSES):
                self.run(point)

    def run(self, point: Point) -> Duration:
        """One pass; the sequences are as long as before afterwards."""
        caches = [self._caches[index, point.context] for index in range(point.num_sequences)]
        batch = [Work(cache, self._tokens(point.num_rows), point.num_rows) for cache in caches]
        wall, cpu = time.perf_counter(), time.thread_time()
        logits = self._runner.forward(batch)
        float(logits[0][0, 0])  # A GPU is done only when a value is read.
        duration = Duration(time.perf_counter() - wall, time.thread_time() - cpu)
        for cache in caches:
            cache.truncate(point.context)
        return duration

    def cache_bytes_per_token(self, num_tokens: int) -> float:
        """Memory of a pool for so many tokens, by each of them."""
        pool = KVPool(KVPool(0).num_blocks(num_tokens))
        self._runner.forward([Work(SequenceCache(pool), self._tokens(1), 0)])
        return pool.storage.num_bytes / num_tokens

    def expected_cache_bytes_per_token(self) -> int:
        """layers x key heads x head size x 2 x bytes of an element."""
        model = self.loaded.model
        config = model.config.get_text_config(decoder=True)
        kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return int(config.num_hidden_layers * kv_heads * head_dim * 2 * model.dtype.itemsize)

    def _tokens(self, count: int) -> list[int]:
        generator = random.Random(count)
        return [generator.randrange(self.loaded.info.vocab_size) for _ in range(count)]


def parse_side(name: str) -> tuple[str, LinearKernel]:
    """Element type and linear kernel of a side.

    Raises:
        ValueError: there is no such side.
    """
    dtype, _, kernel = name.partition("/")
    kernels: tuple[LinearKernel, ...] = get_args(LinearKernel)
    for each in kernels:
        if kernel == each and dtype in ("float32", "bfloat16", "float16", "int4"):
            return dtype, each
    raise ValueError(
        f"{name!r} is no side; give element type and kernel, such as float32/default, float32/auto, float32/invariant, "
        "bfloat16/auto or int4/auto"
    )


def sweep_points(
    rows: Sequence[int], sequences: Sequence[int], contexts: Sequence[int], context: int
) -> dict[Sweep, list[Point]]:
    """What is run: rows of one sequence, sequences of one row, and one row after contexts of several lengths.

    Args:
        rows: numbers of rows.
        sequences: numbers of sequences.
        contexts: lengths, in tokens.
        context: length of the other two sweeps.
    """
    return {
        "rows": [Point(1, count, context) for count in rows],
        "sequences": [Point(count, 1, context) for count in sequences],
        "context": [Point(1, 1, length) for length in contexts],
    }


@torch.inference_mode()
def time_in_turns(
    sides: Sequence[Side], points: Sequence[Point], repeats: int, on_done: Callable[[], None]
) -> dict[str, dict[Point, list[Duration]]]:
    """Run every point by every side, again and again. Whoever comes first changes from one to the next.

    Args:
        sides: prepared.
        points: without duplicates.
        repeats: how often.
        on_done: told of each repeat.
    """
    times: dict[str, dict[Point, list[Duration]]] = {side.name: {point: [] for point in points} for side in sides}
    turn = 0
    for _ in range(repeats):
        for point in points:
            for offset in range(len(sides)):
                side = sides[(turn + offset) % len(sides)]
                times[side.name][point].append(side.run(point))
            turn += 1
        on_done()
    return times
