"""What both services are told of a sequence besides its tokens."""

from __future__ import annotations

import hashlib
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
    """See `tenant_key`; for the draft service."""
    feature_states: tuple[int, ...] = ()
    """Hidden states of the target that the drafter reads; for the target."""
    max_feature_tokens: int = 0
    """Of how many tokens the drafter takes them at once."""

    @property
    def cache_salt(self) -> bytes:
        """What keeps the tenant's prefixes in the target's cache apart from those of others; empty for nobody's."""
        return hashlib.sha256(b"specdec cache salt" + self.tenant).digest()[:16] if self.tenant else b""
