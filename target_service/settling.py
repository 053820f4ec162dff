"""From the logits of a round to its committed outcome, and what is told of that."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from specdec.v1 import sampling_pb2
from target_service.acceptance import Acceptance
from target_service.answer import Answer, Timings
from target_service.sequence import PendingRound

MOST_UNREAD = 256
"""Events that wait at a connection from which on features are left out there: they may have 2 MiB each. More than
the verdicts of one pass, which are gone in a moment."""


class Settled(NamedTuple):
    """A round whose outcome is committed."""

    pending: PendingRound
    base_length: int
    """Committed length before it."""
    outcome: Acceptance
    features: bytes
    logprobs: list[sampling_pb2.TokenLogprobs]

    @property
    def goes_in_batch(self) -> bool:
        """Whether its answer may travel with those of others."""
        return self.pending.is_batched and not self.logprobs

    def answer(self, num_sequences: int, num_rows: int) -> Answer:
        """What it is answered with, if its last pass was of so many sequences and rows."""
        pending, base_length, outcome, features, logprobs = self
        sequence = pending.sequence
        queue_seconds = (pending.started or pending.arrived) - pending.arrived
        return Answer(
            sequence.sequence_id,
            sequence.epoch,
            pending.round,
            base_length,
            pending.num_window_rows,
            outcome.accepted_nodes,
            outcome.next_token_id,
            outcome.is_bonus,
            Timings(round(queue_seconds * 1e6), round(pending.compute_seconds * 1e6), num_sequences, num_rows),
            features,
            logprobs,
            pending.candidate,
            sequence.cache.num_adopted if pending.is_open else None,
        )


def settle(
    pending: PendingRound,
    logits: torch.Tensor,
    outcome: Acceptance | None,
    tell_features: Callable[[PendingRound, int], None],
) -> Settled:
    """Decide a window and commit the outcome.

    Args:
        pending: its round, whose rows have been run.
        logits: (draft tokens + 1, vocab_size), float32; see `Judge.decide`.
        outcome: of its window, if it is known already; None: it is decided by the logits.
        tell_features: sends those up to a token that the answer need not carry.

    Raises:
        InvalidArgumentError, DataLossError: as `Judge.decide`; nothing is committed.
    """
    sequence, window = pending.sequence, pending.window
    judge, token_ids, cache, drafts = sequence.judge, sequence.token_ids, sequence.cache, window.token_ids
    base_length = len(token_ids)
    if outcome is None:
        outcome = judge.decide(token_ids, window, logits)
    accepted_nodes = outcome.accepted_nodes
    logprobs = judge.logprobs(token_ids, window, logits, outcome) if judge.gives_logprobs else []
    cache.keep_rows(base_length, accepted_nodes)
    features = b""
    if sequence.feature_states and sequence.connection.num_unread < MOST_UNREAD:
        tell_features(pending, cache.length - sequence.max_feature_tokens)
        features = pending.features()
    sequence.commit([*[drafts[node] for node in accepted_nodes], outcome.next_token_id])
    cache.publish(token_ids)
    return Settled(pending, base_length, outcome, features, logprobs)
