"""Whose request it is, as the draft service is told: a hash, so that names neither travel nor stay."""

from __future__ import annotations

import hashlib

from specdec.errors import InvalidArgumentError

MAX_TENANT_BYTES = 256


def tenant_key(name: str, tokenizer_hash: str) -> bytes:
    """What stands for a tenant at the draft service: SHA-256 of 32 bytes; empty for an empty name, which is nobody.

    Args:
        name: as the client gave it.
        tokenizer_hash: of the target; token ids of one vocabulary mean nothing in another.

    Raises:
        InvalidArgumentError: the name is too long.
    """
    encoded = name.encode()
    if len(encoded) > MAX_TENANT_BYTES:
        raise InvalidArgumentError(f"tenant has {len(encoded)} bytes; at most {MAX_TENANT_BYTES} are taken")
    return hashlib.sha256(b"\0".join((b"specdec tenant", tokenizer_hash.encode(), encoded))).digest() if name else b""
