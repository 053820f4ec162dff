"""What forward passes of the loaded model cost on this machine, before there is any traffic."""

from __future__ import annotations

import statistics
import time

from specdec.runner.cache import SequenceCache
from specdec.runner.runner import ModelRunner, Work
from specdec.v1 import model_pb2

_CONTEXT_ROWS = 32
_BUDGET_SECONDS = 1.5
"""For all of it; a machine too slow to measure large passes measures small ones only."""
_NUM_REPEATS = 3


def measure_forward_costs(runner: ModelRunner, max_rows: int, max_length: int) -> list[model_pb2.ForwardCost]:
    """Time passes of 1, 2, 3, 5, 9, 17, ... rows (a token and its window), as far as the budget allows.

    Args:
        runner: of the model.
        max_rows: most rows of a pass.
        max_length: longest sequence, in tokens.

    Returns:
        Medians, with increasing rows; at least that of one row.
    """
    began = time.perf_counter()
    context = min(_CONTEXT_ROWS, max_length - 1)
    cache = SequenceCache()
    if context:
        runner.forward([Work(cache, [0] * context, num_logits=0)])
    costs: list[model_pb2.ForwardCost] = []
    rows, step = 1, 1
    while rows <= min(max_rows, max_length - context):
        durations = []
        # One more than is counted: the first pass of a shape may choose a kernel.
        for _ in range(_NUM_REPEATS + 1):
            started = time.perf_counter()
            logits = runner.forward([Work(cache, [0] * rows, num_logits=rows)])
            float(logits[0][0, 0])  # A GPU is done only when a value is read.
            durations.append(time.perf_counter() - started)
            cache.truncate(context)
        costs.append(
            model_pb2.ForwardCost(rows=rows, microseconds=max(1, round(1e6 * statistics.median(durations[1:]))))
        )
        # The next size takes about twice as long as this one at worst.
        if time.perf_counter() - began + 2 * sum(durations) > _BUDGET_SECONDS:
            break
        rows, step = rows + step, (2 * step if rows > 1 else 1)
    return costs
