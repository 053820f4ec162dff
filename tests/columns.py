"""Windows in columns, written apart from the code that is tested."""

from __future__ import annotations

from collections.abc import Iterable

from specdec.v1 import target_pb2


def in_columns(commands: Iterable[target_pb2.TargetCommand]) -> target_pb2.TargetCommand:
    """Windows that have nothing that there is no column for, as one command."""
    batch = target_pb2.WindowBatch()
    for command in commands:
        window = command.window
        batch.sequence_ids.append(command.sequence_id)
        batch.epochs.append(window.epoch)
        batch.rounds.append(window.round)
        batch.base_lengths.append(window.base_length)
        batch.checksums.append(window.checksum)
        batch.num_draft_tokens.append(len(window.token_ids))
        batch.token_ids.extend(window.token_ids)
        batch.without_features.append(window.without_features)
    return target_pb2.TargetCommand(windows=batch)
