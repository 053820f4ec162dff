"""How large a message can be, computed from what a service advertises."""

from specdec.sampling.params import MAX_DRAFT_LAW_SIZE, MAX_LISTED_TOKEN_IDS, MAX_LOGIT_BIAS_ENTRIES

SEQUENCE_ID_BYTES = 16
MAX_CACHE_SALT_BYTES = 64

LARGEST_CONTEXT_LENGTH = 1 << 20
"""Longest sequence that any service advertises; bounds messages before a model is loaded."""

_VARINT_BYTES = 5
_FIXED_BYTES = 4096


def max_command_bytes(max_context_length: int, max_num_draft_tokens: int) -> int:
    """Most bytes of one command: an open with a full context, or a window with the law of each draft token."""
    opening = (
        max_context_length * _VARINT_BYTES
        + 3 * MAX_LISTED_TOKEN_IDS * _VARINT_BYTES
        + MAX_LOGIT_BIAS_ENTRIES * (2 * _VARINT_BYTES + 9)
    )
    window = max_num_draft_tokens * (MAX_DRAFT_LAW_SIZE + 2) * 2 * _VARINT_BYTES
    return max(opening, window) + _FIXED_BYTES


def max_message_bytes(max_context_length: int, max_num_draft_tokens: int) -> int:
    """Most bytes of a message. Senders put several commands into one only up to gRPC's customary 4 MiB."""
    return max(4 << 20, max_command_bytes(max_context_length or LARGEST_CONTEXT_LENGTH, max_num_draft_tokens))
