"""How long forward passes take: of several models in turns, so that a busy machine slows all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from draft_service.feature_runner import FeatureRunner
from specdec.runner.cache import SequenceCache
from specdec.runner.runner import ModelRunner, Work

_PREFIX_TOKENS = 128
_WARM_UP_STEPS, _TIMED_STEPS = 3, 15


def step_seconds(passes: Sequence[tuple[str, ModelRunner, int]], max_length: int) -> dict[tuple[str, int], float]:
    """Median time of a pass of one sequence, by the name of its model and its rows.

    Args:
        passes: name of a model, what runs it, and rows of the pass; all of them are run in each turn.
        max_length: context of the models.
    """
    prefix = [0] * min(_PREFIX_TOKENS, max_length - max(rows for _, _, rows in passes))
    caches: dict[str, SequenceCache] = {}
    for name, runner, _ in passes:
        if name not in caches:
            caches[name] = SequenceCache()
            runner.forward([Work(caches[name], prefix, num_logits=1)])
    seconds: dict[tuple[str, int], list[float]] = {(name, rows): [] for name, _, rows in passes}
    for step in range(_WARM_UP_STEPS + _TIMED_STEPS):
        for name, runner, rows in passes:
            started = time.perf_counter()
            work = Work(caches[name], [0] * rows, num_logits=rows)
            if isinstance(runner, FeatureRunner):
                work = runner.blank_step(caches[name], rows)
            logits = runner.forward([work])
            # On a GPU the pass has ended only when its result is here.
            float(logits[0][0, 0])
            if step >= _WARM_UP_STEPS:
                seconds[name, rows].append(time.perf_counter() - started)
            caches[name].truncate(len(prefix))
    return {key: statistics.median(measured) for key, measured in seconds.items()}
