"""What forward passes of the loaded model cost on this machine, before there is any traffic."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from specdec.runner.cache import SequenceCache
from specdec.runner.runner import ModelRunner, Work
from specdec.v1 import model_pb2

_CONTEXT_ROWS = 32
_SHORT_CONTEXT = 8
"""Of each of several sequences, which are there for what a sequence costs and not its context."""
_BUDGET_SECONDS = 1.5
"""For all of it; a machine too slow to measure large passes measures small ones only."""
_NUM_REPEATS = 3
_NUM_SEQUENCES = 8
"""Of the pass that shows what sequences cost: enough that it is no noise."""


def measure_forward_costs(runner: ModelRunner, max_rows: int, max_length: int) -> list[model_pb2.ForwardCost]:
    """Time passes of 1, 2, 3, 5, 9, 17, ... rows (a token and its window), as far as the budget allows.

    And one of a row each of several sequences, which costs more than as many rows of one.

    Args:
        runner: of the model.
        max_rows: most rows of a pass.
        max_length: longest sequence, in tokens.

    Returns:
        Medians; those of one sequence with increasing rows, at least that of one row; that of several is the last.
    """
    began = time.perf_counter()
    context = min(_CONTEXT_ROWS, max_length - 1)
    cache = SequenceCache()
    if context:
        runner.forward([Work(cache, [0] * context, num_logits=0)])
    costs: list[model_pb2.ForwardCost] = []
    costs_of_several: list[model_pb2.ForwardCost] = []
    rows, step = 1, 1
    while rows <= min(max_rows, max_length - context):
        duration, spent = _median_seconds(runner, [(cache, rows)])
        costs.append(model_pb2.ForwardCost(rows=rows, microseconds=_microseconds(duration)))
        if rows == 1 and max_rows >= _NUM_SEQUENCES:
            # A row of each takes longer than one of one, and less than as many passes.
            if time.perf_counter() - began + _NUM_SEQUENCES * spent > _BUDGET_SECONDS:
                break
            several = [(SequenceCache(), 1) for _ in range(_NUM_SEQUENCES)]
            if context:
                runner.forward([Work(cache, [0] * min(context, _SHORT_CONTEXT), num_logits=0) for cache, _ in several])
            duration, _ = _median_seconds(runner, several)
            costs_of_several.append(
                model_pb2.ForwardCost(
                    rows=_NUM_SEQUENCES, sequences=_NUM_SEQUENCES, microseconds=_microseconds(duration)
                )
            )
        # The next size takes about twice as long as this one at worst.
        if time.perf_counter() - began + 2 * spent > _BUDGET_SECONDS:
            break
        rows, step = rows + step, (2 * step if rows > 1 else 1)
    return [*costs, *costs_of_several]


def _median_seconds(runner: ModelRunner, sequences: Sequence[tuple[SequenceCache, int]]) -> tuple[float, float]:
    """Duration of a pass with so many new rows of each sequence, and what finding out took, in seconds."""
    durations = []
    # One more than is counted: the first pass of a shape may choose a kernel.
    for _ in range(_NUM_REPEATS + 1):
        lengths = [cache.length for cache, _ in sequences]
        started = time.perf_counter()
        logits = runner.forward([Work(cache, [0] * rows, num_logits=rows) for cache, rows in sequences])
        float(logits[0][0, 0])  # A GPU is done only when a value is read.
        durations.append(time.perf_counter() - started)
        for (cache, _), length in zip(sequences, lengths, strict=True):
            cache.truncate(length)
    return statistics.median(durations[1:]), sum(durations)


def _microseconds(seconds: float) -> int:
    return max(1, round(1e6 * seconds))
