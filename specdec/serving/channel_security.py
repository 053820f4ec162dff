"""How a channel knows whom it talks to, and shows who it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc

from specdec.serving.binding import is_loopback_target
from specdec.serving.certificates import CertificateFiles
from specdec.serving.security_error import SecurityError

AUTHORIZATION_KEY = "authorization"
"""Metadata that carries a token or the shared secret. Proxies and tools keep what has this name out of their logs."""
BEARER = "Bearer "
_SENDABLE = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class ChannelSecurity:
    """What a channel uses beyond plaintext. Everything is read again for each channel that is opened.

    Args:
        files: use TLS: check the server against the authorities (None: those that gRPC brings), and show the chain if
            the server asks. None: plaintext.
        secret: gives the token or shared secret to send with each call; may raise `SecurityError`.
        server_name: name that the server's certificate must hold; empty: the host in the address.
        allows_plain_secret: send the secret in plaintext even to another machine.
    """

    files: CertificateFiles | None = None
    secret: Callable[[], str] | None = field(default=None, repr=False)
    server_name: str = ""
    allows_plain_secret: bool = False

    def credentials(self) -> grpc.ChannelCredentials | None:
        """What a channel is opened with; None: plaintext.

        Raises:
            SecurityError: a file cannot be read, or the files do not fit together.
        """
        if self.files is None:
            return None
        certificates = self.files.read()
        return grpc.ssl_channel_credentials(certificates.authorities, certificates.key, certificates.chain)

    def metadata(self, address: str) -> tuple[tuple[str, str], ...]:
        """What each call to the address carries.

        Raises:
            SecurityError: the secret cannot be read, or would go to another machine without encryption.
        """
        if self.secret is None:
            return ()
        if self.files is None and not self.allows_plain_secret and not is_loopback_target(address):
            raise SecurityError(f"a secret is not sent to {address} without TLS, where others could read it on its way")
        secret = self.secret()
        if not _SENDABLE.fullmatch(secret):
            # gRPC would say so too, and show it.
            raise SecurityError("the secret is empty, or has characters that cannot be sent: spaces or beyond ASCII")
        return ((AUTHORIZATION_KEY, f"{BEARER}{secret}"),)

    def options(self) -> list[tuple[str, str]]:
        """Options of the channel."""
        return [("grpc.ssl_target_name_override", self.server_name)] if self.files and self.server_name else []
