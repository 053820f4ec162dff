"""The file that says which tokens are good: names, digests and limits, no token."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from specdec.serving.secrets import digest
from specdec.serving.security_error import SecurityError
from specdec.serving.token_limits import Limits, Rate

PREFIX = "specdec_"
"""How tokens made here begin, so that scanners for leaked secrets can know them."""
NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MAX_FILE_BYTES = 16 << 20
_MAX_CONCURRENT = 1_000_000


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """One line of the file."""

    name: str
    """Whose token it is. The only part of it that is ever shown."""
    digest: bytes = field(repr=False)
    """SHA-256 of the token."""
    limits: Limits = field(default_factory=Limits)
    tenant: str = ""
    """Whose requests its holder sends; empty: of anybody who is no tenant of another token."""

    def line(self) -> str:
        """The entry as a line of the file."""
        limits = self.limits
        parts = [self.name, self.digest.hex()]
        for key, rate in (("requests", limits.requests), ("tokens", limits.tokens)):
            if rate is not None:
                parts.append(f"{key}={rate.count}/{rate.period}")
        if limits.concurrent is not None:
            parts.append(f"concurrent={limits.concurrent}")
        if self.tenant:
            parts.append(f"tenant={self.tenant}")
        return " ".join(parts)


def new_token() -> str:
    """A token that nobody can guess: 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def entry_for(token: str, name: str, limits: Limits, tenant: str = "") -> TokenEntry:
    """The entry of a token.

    Raises:
        SecurityError: the name, or that of the tenant, is malformed.
    """
    if not all(re.fullmatch(NAME_PATTERN, given) for given in (name, tenant or name)):
        raise SecurityError("a name has up to 64 letters, digits and . _ @ -, and begins with a letter or digit")
    return TokenEntry(name, digest(token), limits, tenant)


def read_token_file(path: Path) -> str:
    """The text of the file.

    Raises:
        SecurityError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SecurityError(f"{path} cannot be read: {(error.strerror or 'unknown reason').lower()}") from None
    if len(content) > _MAX_FILE_BYTES:
        raise SecurityError(f"{path} is longer than {_MAX_FILE_BYTES} bytes")
    return content.decode("utf-8", errors="replace")


def parse_token_file(text: str, path: Path) -> tuple[TokenEntry, ...]:
    """The entries. A line is: NAME SHA256 [requests=10/s] [concurrent=4] [tokens=100000/m] [tenant=NAME]; # begins
    a comment.

    Args:
        text: of the file. Without an entry nobody is served, which is no mistake.
        path: for messages, which name lines and never what is in them.

    Raises:
        SecurityError: a line is malformed, or two have the same name or token.
    """
    entries: list[TokenEntry] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{path}, line {number}"
        entry = _parse_words(words, where)
        if any(entry.name == other.name or entry.digest == other.digest for other in entries):
            raise SecurityError(f"{where}: another line has the same name or token")
        entries.append(entry)
    return tuple(entries)


def _parse_words(words: list[str], where: str) -> TokenEntry:
    if len(words) < 2 or not re.fullmatch(NAME_PATTERN, words[0]) or not _DIGEST.fullmatch(words[1]):
        raise SecurityError(f"{where}: it must be a name and the SHA-256 of a token in 64 hexadecimal digits")
    given: dict[str, str] = {}
    for word in words[2:]:
        key, _, value = word.partition("=")
        if key in given or key not in ("requests", "concurrent", "tokens", "tenant"):
            raise SecurityError(f"{where}: what may follow is requests=, concurrent=, tokens= and tenant=, each once")
        given[key] = value
    try:
        rates = {key: Rate.parse(given[key]) for key in ("requests", "tokens") if key in given}
    except ValueError as error:
        raise SecurityError(f"{where}: {error}") from None
    concurrent = given.get("concurrent")
    if concurrent is not None and not (concurrent.isdecimal() and 0 < int(concurrent[:9]) <= _MAX_CONCURRENT):
        raise SecurityError(f"{where}: concurrent= is a number of requests, from 1 to {_MAX_CONCURRENT}")
    tenant = given.get("tenant", "")
    if "tenant" in given and not re.fullmatch(NAME_PATTERN, tenant):
        raise SecurityError(f"{where}: tenant= is a name like that of the token")
    limits = Limits(rates.get("requests"), None if concurrent is None else int(concurrent), rates.get("tokens"))
    return TokenEntry(words[0], bytes.fromhex(words[1]), limits, tenant)
