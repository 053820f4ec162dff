"""A server's certificates, which may be replaced while it serves."""

from __future__ import annotations

from collections.abc import Callable

import grpc

from specdec.serving.certificates import CertificateFiles, Certificates
from specdec.serving.reloaded import Reloaded


def load_certificates(files: CertificateFiles) -> Reloaded[Certificates, Certificates]:
    """What is in the files, now and after each change.

    Raises:
        SecurityError: a file cannot be read, or the files do not fit together.
    """
    return Reloaded("the TLS certificate", files.content, lambda _: files.read())


def server_credentials(certificates: Reloaded[Certificates, Certificates]) -> grpc.ServerCredentials:
    """Credentials that show the newest certificate to each new connection, and leave those that exist alone.

    Whether clients must show a certificate is settled by whether there are authorities now.
    """
    used = certificates.value
    return grpc.dynamic_ssl_server_credentials(
        _configuration(used),
        # The stub does not know that None means: nothing new.
        _newer_than(used, lambda: certificates.value),  # type: ignore[arg-type]
        require_client_authentication=used.authorities is not None,
    )


def _newer_than(
    first: Certificates, newest: Callable[[], Certificates]
) -> Callable[[], grpc.ServerCertificateConfiguration | None]:
    """What gRPC asks before each handshake, on a thread of its own: a configuration, or None to keep the last."""
    used = first

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        nonlocal used
        current = newest()
        if current is used:
            return None
        used = current
        return _configuration(current)

    return fetch


def _configuration(certificates: Certificates) -> grpc.ServerCertificateConfiguration:
    key, chain = certificates.key, certificates.chain
    pairs = [] if key is None or chain is None else [(key, chain)]
    return grpc.ssl_server_certificate_configuration(pairs, certificates.authorities)
