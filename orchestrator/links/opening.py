"""What both services are told of a sequence besides its tokens."""

from __future__ import annotations

from dataclasses import dataclass

from specdec.v1 import model_pb2, sampling_pb2

SEQUENCE_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class Opening:
    """The same at every open of the sequence."""

    prompt_length: int
    sampling: sampling_pb2.SamplingParams
    """Every field set."""
    acceptance_rule: model_pb2.AcceptanceRule.ValueType
    max_length: int
    """Largest committed length it may reach."""
    tenant: bytes = b""
    """See `tenant_key`; for the draft service only."""
