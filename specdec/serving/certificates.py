"""Certificates and keys in PEM files, which may be replaced while a process runs."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from specdec.serving.security_error import SecurityError


@dataclass(frozen=True, slots=True)
class Certificates:
    """The content of the files; what there is no file for is None."""

    chain: bytes | None = None
    """The own certificate, then those between it and its authority."""
    key: bytes | None = field(default=None, repr=False)
    authorities: bytes | None = None
    """Whose signature makes the other end's certificate a good one."""


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Where certificates are; each a path, or None.

    Raises:
        SecurityError: there is a certificate without a key, or a key without a certificate.
    """

    chain: Path | None = None
    key: Path | None = None
    authorities: Path | None = None

    def __post_init__(self) -> None:
        if (self.chain is None) != (self.key is None):
            given, missing = ("certificate", "key") if self.key is None else ("key", "certificate")
            raise SecurityError(f"there is a TLS {given} without its {missing}; give both or neither")

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that there are."""
        return tuple(path for path in (self.chain, self.key, self.authorities) if path is not None)

    def read(self) -> Certificates:
        """Read the files and check that they fit together.

        Raises:
            SecurityError: one cannot be read or holds something else, or the key is not that of the certificate.
        """
        content = self.content()
        if self.chain is not None and self.key is not None:
            _check_pair(self.chain, self.key)
        if self.authorities is not None and content.authorities is not None:
            _check_authorities(self.authorities, content.authorities)
        if self.content() != content:
            raise SecurityError(f"{self.paths[0]} or a file that goes with it changed while it was read")
        return content

    def content(self) -> Certificates:
        """What is in the files, whatever it is.

        Raises:
            SecurityError: one cannot be read.
        """
        return Certificates(
            *(None if path is None else _read(path) for path in (self.chain, self.key, self.authorities))
        )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SecurityError(f"{path} cannot be read: {(error.strerror or 'unknown reason').lower()}") from None


def _check_pair(chain: Path, key: Path) -> None:
    def refuse_to_ask() -> str:
        raise SecurityError(f"the key in {key} is encrypted; give one without a passphrase, readable by this user only")

    try:
        # gRPC says nothing about a pair that does not fit; it fails each handshake.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(chain, key, refuse_to_ask)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise SecurityError(f"the key in {key} is not the one of the certificate in {chain}") from None
        raise SecurityError(f"{chain} holds no certificate in PEM form, or {key} no private key") from None
    except OSError as error:
        raise SecurityError(f"{chain} or {key} cannot be read: {error.strerror}") from None


def _check_authorities(path: Path, content: bytes) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=content.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise SecurityError(f"{path} holds no certificates in PEM form") from None
