"""Windows as peers ask for them: in a command each, or many in one."""

from __future__ import annotations

from typing import NamedTuple

from specdec.engine.sequences import check_token_ids
from specdec.errors import InvalidArgumentError
from specdec.sampling.laws import DraftLaw
from specdec.v1 import model_pb2, target_pb2
from target_service.judge import DraftWindow

MAX_BATCHED_WINDOWS = 4096
"""Windows of one command."""


class AskedWindow(NamedTuple):
    """A window whose draft tokens nobody has looked at yet."""

    epoch: int
    round: int
    base_length: int
    checksum: int
    without_features: bool
    token_ids: list[int]
    """The draft tokens of a window of a batch, which is a chain."""
    message: target_pb2.Window | None = None
    """A window that came by itself."""

    @classmethod
    def of(cls, message: target_pb2.Window) -> AskedWindow:
        """The one in a message of its own."""
        epoch, round_index, base_length = message.epoch, message.round, message.base_length
        return cls(epoch, round_index, base_length, message.checksum, message.without_features, [], message)


def num_windows(command: target_pb2.TargetCommand) -> int:
    """Of a command, or 1: so many things it asks for."""
    return max(len(command.windows.rounds), 1)


def read_batch(message: target_pb2.WindowBatch) -> list[tuple[bytes, AskedWindow]]:
    """The windows of a batch, and the sequences that they are for.

    Raises:
        InvalidArgumentError: there are too many, or the columns do not match.
    """
    counts = message.num_draft_tokens[:]
    if len(counts) > MAX_BATCHED_WINDOWS:
        raise InvalidArgumentError(f"windows has {len(counts)} entries; at most {MAX_BATCHED_WINDOWS} are taken")
    token_ids = message.token_ids[:]
    if sum(counts) != len(token_ids):
        raise InvalidArgumentError("windows.token_ids must have as many ids as windows.num_draft_tokens says")
    windows = []
    start = 0
    try:
        for sequence_id, epoch, round_index, base_length, checksum, count, without_features in zip(
            message.sequence_ids[:],
            message.epochs[:],
            message.rounds[:],
            message.base_lengths[:],
            message.checksums[:],
            counts,
            message.without_features[:],
            strict=True,
        ):
            end = start + count
            window = AskedWindow(epoch, round_index, base_length, checksum, without_features, token_ids[start:end])
            windows.append((sequence_id, window))
            start = end
    except ValueError:
        raise InvalidArgumentError("the columns of windows must be equally long") from None
    return windows


def read_window(asked: AskedWindow, rule: model_pb2.AcceptanceRule.ValueType, info: model_pb2.ModelInfo) -> DraftWindow:
    """The draft tokens that are asked about.

    Raises:
        InvalidArgumentError: they are malformed whatever they stand on; names the field and the bound.
    """
    message = asked.message
    token_ids = asked.token_ids if message is None else message.token_ids[:]
    if len(token_ids) > info.max_num_draft_tokens:
        raise InvalidArgumentError(
            f"the window has {len(token_ids)} draft tokens; at most {info.max_num_draft_tokens} are verified"
        )
    if token_ids:
        check_token_ids("window.token_ids", token_ids, info.vocab_size)
    if message is None:
        return DraftWindow(token_ids)
    parents = message.parents[:] if message.parents else None
    if parents is not None:
        if len(parents) != len(token_ids):
            raise InvalidArgumentError("window.parents must be empty or as long as window.token_ids")
        if any(not -1 <= parent < node for node, parent in enumerate(parents)):
            raise InvalidArgumentError("each of window.parents must be -1 or the index of an earlier node")
        if parents == list(range(-1, len(parents) - 1)):
            parents = None
        elif rule != model_pb2.ACCEPTANCE_RULE_COUPLED:
            raise InvalidArgumentError("token trees are judged by the coupled rule only; send a chain")
        elif len(set(zip(parents, token_ids, strict=True))) != len(token_ids):
            raise InvalidArgumentError("two nodes of the window have the same parent and the same token")
    laws = None
    if message.distributions:
        if len(message.distributions) != len(token_ids):
            raise InvalidArgumentError("window.distributions must be empty or as long as window.token_ids")
        laws = [
            DraftLaw.from_proto(distribution, token, info.vocab_size)
            for distribution, token in zip(message.distributions, token_ids, strict=True)
        ]
    return DraftWindow(token_ids, parents, laws)
