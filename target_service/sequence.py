"""A sequence as the target service knows it: a cache of what the orchestrator has committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from specdec.checksum import prefix_checksum
from specdec.engine.connection import Connection
from specdec.engine.sequences import check_token_ids
from specdec.errors import InvalidArgumentError, OutOfRangeError
from specdec.runner.cache import SequenceCache
from specdec.sampling.chooser import TokenChooser
from specdec.sampling.params import SamplingParams
from specdec.v1 import model_pb2, target_pb2


@dataclass(slots=True)
class TargetSequence:
    """Committed tokens, and their keys and values."""

    connection: Connection[target_pb2.TargetEvent]
    sequence_id: bytes
    epoch: int
    token_ids: list[int]
    max_length: int
    num_logprobs: int | None
    chooser: TokenChooser
    checksum: int
    num_cached_tokens: int = 0
    last_event: target_pb2.TargetEvent | None = None
    """The answer to the last round, repeated if it is asked again."""
    cache: SequenceCache = field(default_factory=SequenceCache)

    @classmethod
    def from_open(
        cls,
        connection: Connection[target_pb2.TargetEvent],
        sequence_id: bytes,
        command: target_pb2.TargetOpen,
        info: model_pb2.ModelInfo,
        device: torch.device,
    ) -> TargetSequence:
        """Check an open and make the sequence.

        Raises:
            InvalidArgumentError: a field has no meaning here, or a token id is outside the vocabulary.
            OutOfRangeError: the committed tokens leave no room for another one.
        """
        token_ids = list(command.token_ids)
        check_token_ids("token_ids", token_ids, info.vocab_size)
        if not 1 <= command.prompt_length <= len(token_ids):
            raise InvalidArgumentError(
                f"prompt_length is {command.prompt_length}; it must be between 1 and the {len(token_ids)} tokens sent"
            )
        if command.acceptance_rule not in info.acceptance_rules:
            raise InvalidArgumentError("acceptance_rule is not one of those that this target advertises")
        if not 1 <= command.max_length <= info.max_context_length:
            raise InvalidArgumentError(
                f"max_length is {command.max_length}; it must be between 1 and the context of {info.max_context_length}"
            )
        if len(token_ids) >= command.max_length:
            raise OutOfRangeError(
                f"{len(token_ids)} tokens leave no room for another one within max_length {command.max_length}"
            )
        params = SamplingParams.from_proto(command.sampling)
        params.check_token_ids(info.vocab_size)
        return cls(
            connection=connection,
            sequence_id=sequence_id,
            epoch=command.epoch,
            token_ids=token_ids,
            max_length=command.max_length,
            num_logprobs=params.num_logprobs,
            chooser=TokenChooser(params, command.prompt_length, device),
            checksum=prefix_checksum(token_ids),
        )

    def fit_window(self, token_ids: Sequence[int], parents: Sequence[int]) -> tuple[list[int], list[int] | None]:
        """The nodes, cut where they would leave no room for the target's own token within `max_length`."""
        room = self.max_length - len(self.token_ids) - 1
        if not parents:
            return list(token_ids[:room]), None
        depths: list[int] = []
        for parent in parents:
            depth = depths[parent] + 1 if parent >= 0 else 1
            if depth > room:
                break
            depths.append(depth)
        return list(token_ids[: len(depths)]), list(parents[: len(depths)])

    def commit(self, token_ids: Sequence[int]) -> None:
        """Append the outcome of a round."""
        self.token_ids.extend(token_ids)
        self.checksum = prefix_checksum(token_ids, self.checksum)


@dataclass(slots=True)
class PendingRound:
    """A window that waits for its verdict; the round of an open has no draft tokens."""

    sequence: TargetSequence
    round: int
    draft_tokens: list[int]
    parents: list[int] | None
    trace_context: model_pb2.TraceContext
    arrived: float
    is_open: bool = False
    started: float | None = None
    """When its first forward pass began; seconds of `time.perf_counter`, as `arrived`."""
    compute_seconds: float = 0.0

    @property
    def num_uncached_tokens(self) -> int:
        """Committed tokens without keys and values: one in a running sequence, all of them at first."""
        return len(self.sequence.token_ids) - self.sequence.cache.length

    @property
    def num_window_rows(self) -> int:
        """Draft tokens to verify."""
        return len(self.draft_tokens)


def check_window(window: target_pb2.Window, info: model_pb2.ModelInfo) -> None:
    """Refuse a window that is malformed whatever it stands on.

    Raises:
        InvalidArgumentError: naming the field and the bound.
    """
    if len(window.token_ids) > info.max_num_draft_tokens:
        raise InvalidArgumentError(
            f"the window has {len(window.token_ids)} draft tokens; at most {info.max_num_draft_tokens} are verified"
        )
    if window.token_ids:
        check_token_ids("window.token_ids", window.token_ids, info.vocab_size)
    if not window.parents:
        return
    if len(window.parents) != len(window.token_ids):
        raise InvalidArgumentError("window.parents must be empty or as long as window.token_ids")
    if any(not -1 <= parent < node for node, parent in enumerate(window.parents)):
        raise InvalidArgumentError("each of window.parents must be -1 or the index of an earlier node")
    edges = list(zip(window.parents, window.token_ids, strict=True))
    if len(set(edges)) != len(edges):
        raise InvalidArgumentError("two nodes of the window have the same parent and the same token")
