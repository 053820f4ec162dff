"""How long forward passes take: of several models in turns, so that a busy machine slows all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from draft_service.feature_runner import FeatureRunner
from specdec.runner.cache import SequenceCache
from specdec.runner.runner import ModelRunner, Work

_PREFIX_TOKENS = 128
_WARM_UP_STEPS, _TIMED_STEPS = 3, 15


@dataclass(frozen=True)
class Pass:
    """A forward pass to be timed."""

    name: str
    """Of its model."""
    runner: ModelRunner
    rows: int
    in_a_row: int = 1
    """How many are run one after the other, as a window is drafted; what is told is the time of one."""


def step_seconds(passes: Sequence[Pass], max_length: int) -> dict[tuple[str, int], float]:
    """Median time of a pass of one sequence, by the name of its model and its rows.

    Args:
        passes: all of them are run in each turn.
        max_length: context of the models.
    """
    prefix = [0] * min(_PREFIX_TOKENS, max_length - max(each.rows * each.in_a_row for each in passes))
    caches: dict[str, SequenceCache] = {}
    for each in passes:
        if each.name not in caches:
            caches[each.name] = SequenceCache()
            each.runner.forward([Work(caches[each.name], prefix, num_logits=1)])
    seconds: dict[tuple[str, int], list[float]] = {(each.name, each.rows): [] for each in passes}
    for step in range(_WARM_UP_STEPS + _TIMED_STEPS):
        for each in passes:
            cache = caches[each.name]
            started = time.perf_counter()
            for _ in range(each.in_a_row):
                work = Work(cache, [0] * each.rows, num_logits=each.rows)
                if isinstance(each.runner, FeatureRunner):
                    work = each.runner.blank_step(cache, each.rows)
                logits = each.runner.forward([work])
                # On a GPU the pass has ended only when its result is here.
                float(logits[0][0, 0])
            if step >= _WARM_UP_STEPS:
                seconds[each.name, each.rows].append((time.perf_counter() - started) / each.in_a_row)
            cache.truncate(len(prefix))
    return {key: statistics.median(measured) for key, measured in seconds.items()}
