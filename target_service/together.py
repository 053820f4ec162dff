"""The outcomes of a pass, decided for all of its windows in few steps."""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable, Sequence
from itertools import accumulate

import torch

from specdec.runner.runner import PassLogits
from specdec.sampling.chooser import choose_rows
from specdec.sampling.noise import first_highest_of_rows
from target_service.acceptance import Acceptance, accept_known, coupled_walk
from target_service.sequence import PendingRound

_log = logging.getLogger(__name__)

_HOST_NUMBERS, _DEVICE_NUMBERS = 1 << 19, 1 << 22
"""Logits that are processed at once: what stays in a processor's cache, and what bounds a device's memory."""


def outcomes_together(rounds: Sequence[PendingRound], logits: Sequence[torch.Tensor]) -> list[Acceptance | None]:
    """What becomes of the windows that nothing decides but the logits of a row, its position and the request's rules.

    One look at all rows costs little more than one at a single row; on a GPU, where each is a way to the host and back,
    no more at all. Where tokens are drawn, all windows are walked along together, since what lies behind a rejected
    token is never drawn.

    Args:
        rounds: those that end with the pass, in the order of their logits.
        logits: of the pass, as `ModelRunner.forward` gives them.

    Returns:
        The outcomes; None for a round that is to be decided by itself, because something else decides it, or its rows
        are no numbers, or this failed: then only those fail that it fails for.
    """
    outcomes: list[Acceptance | None] = [None] * len(rounds)
    if not isinstance(logits, PassLogits):
        return outcomes
    starts = [0, *accumulate(pending.num_window_rows + 1 for pending in rounds)]
    plain = [number for number, pending in enumerate(rounds) if pending.sequence.judge.is_plain]
    others = [
        number
        for number, pending in enumerate(rounds)
        if pending.sequence.judge.chooses_by_rows and not pending.sequence.judge.is_plain
    ]
    try:
        # Of several, the look at all rows is worth it: those of others are few, or waited for all the same.
        if len(plain) >= min(2, len(rounds)):
            tokens, values = first_highest_of_rows(logits.rows)
            for number in plain:
                start, end = starts[number], starts[number + 1]
                if all(map(math.isfinite, values[start:end])):
                    window = rounds[number].window
                    outcomes[number] = accept_known(window.token_ids, window.parents, tokens[start:end])
        if others:
            _walk_together(rounds, others, starts, logits.rows, outcomes)
    except Exception:  # noqa: BLE001 - a device tells here, on the first way to the host, what has gone wrong before
        _log.exception("the windows of a pass could not be decided together")
        return [None] * len(rounds)
    return outcomes


def _walk_together(
    rounds: Sequence[PendingRound],
    numbers: Sequence[int],
    starts: Sequence[int],
    rows: torch.Tensor,
    outcomes: list[Acceptance | None],
) -> None:
    """Walk along the windows of some rounds, all of them one step at a time; see `outcomes_together`."""
    walks = {number: coupled_walk(rounds[number].window.token_ids, rounds[number].window.parents) for number in numbers}
    asked = {number: next(walk) for number, walk in walks.items()}
    while asked:
        alike: dict[Hashable, list[int]] = {}
        for number in asked:
            alike.setdefault(rounds[number].sequence.judge.chooser.rules_key, []).append(number)
        for group in alike.values():
            tokens = _choose(rounds, {number: asked[number] for number in group}, starts, rows)
            for number, token in zip(group, tokens, strict=True):
                if token is None:
                    del asked[number]
                    continue
                try:
                    asked[number] = walks[number].send(token)
                except StopIteration as end:
                    del asked[number]
                    outcomes[number] = end.value


def _choose(
    rounds: Sequence[PendingRound],
    asked: dict[int, tuple[int, Sequence[int]]],
    starts: Sequence[int],
    rows: torch.Tensor,
) -> list[int | None]:
    """The target's tokens behind some nodes, by requests with the same rules."""
    choosers = [rounds[number].sequence.judge.chooser for number in asked]
    places = [starts[number] + node + 1 for number, (node, _) in asked.items()]
    positions = [len(rounds[number].token_ids) + len(path) for number, (_, path) in asked.items()]
    numbers = _HOST_NUMBERS if rows.device.type == "cpu" else _DEVICE_NUMBERS
    size = max(numbers // rows.shape[1], 1)
    tokens: list[int | None] = []
    for start in range(0, len(places), size):
        part = slice(start, start + size)
        tokens += choose_rows(choosers[part], rows[places[part]], positions[part])
    return tokens
