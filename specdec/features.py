"""Features on the wire: hidden states of a target that a draft reads. See `specdec.runner.hidden_states`."""

from __future__ import annotations

MAX_STATES = 8
"""Most hidden states of one token that are carried."""
MAX_BYTES = 2 << 20
"""Most bytes of features that one message carries for a sequence: half of gRPC's customary limit."""
MAX_KEPT_BYTES = 16 << 20
"""Most bytes of features that a drafter keeps for a sequence, those of its last tokens; a prompt's come in several
messages."""
_ELEMENT_BYTES = 2  # bfloat16


def feature_bytes(num_states: int, hidden_size: int) -> int:
    """Bytes of one token's features."""
    return num_states * hidden_size * _ELEMENT_BYTES
