"""Secrets: read from files, compared without telling how much of one was right."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from pathlib import Path

from specdec.serving.channel_security import AUTHORIZATION_KEY, BEARER
from specdec.serving.security_error import SecurityError

MIN_SECRET_CHARACTERS = 16
"""A shorter secret can be guessed."""
_SENDABLE = re.compile(r"[\x21-\x7e]+")
"""What metadata can carry, without spaces."""
_MAX_FILE_BYTES = 1 << 20


def read_secrets(path: Path) -> tuple[str, ...]:
    """The secrets in a file, one a line, the one to send first; at least one.

    Raises:
        SecurityError: there is no file, or something in it that could not be sent, or be guessed.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES)
    except OSError as error:
        raise SecurityError(f"{path} cannot be read: {(error.strerror or 'unknown reason').lower()}") from None
    secrets = tuple(line.strip() for line in content.decode("ascii", errors="replace").splitlines() if line.strip())
    if not secrets or any(len(secret) < MIN_SECRET_CHARACTERS or not _SENDABLE.fullmatch(secret) for secret in secrets):
        raise SecurityError(
            f"{path} must hold secrets of at least {MIN_SECRET_CHARACTERS} visible ASCII characters, one a line"
        )
    return secrets


def digest(secret: str) -> bytes:
    """SHA-256 of a secret. It suffices because secrets here are random: nobody can try them all."""
    return hashlib.sha256(secret.encode()).digest()


def matching(presented: str, expected: Sequence[bytes]) -> int | None:
    """Which of these digests a secret has, if one; takes as long wherever they differ, and whichever it is."""
    found = None
    presented_digest = digest(presented)
    for index, candidate in enumerate(expected):
        if hmac.compare_digest(presented_digest, candidate):
            found = index
    return found


def presented_secret(metadata: Sequence[tuple[str, str | bytes]] | None) -> str | None:
    """The one secret that a call carries; None: it carries none, or several."""
    values = [value for key, value in metadata or () if key == AUTHORIZATION_KEY]
    if len(values) != 1 or not isinstance(values[0], str):
        return None
    scheme, space, secret = values[0].partition(" ")
    return secret if space and scheme.lower() == BEARER.strip().lower() else None
