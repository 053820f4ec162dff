"""What the settings of a service say about certificates, secrets and callers, made ready."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from specdec.serving.certificates import CertificateFiles
from specdec.serving.peer_gate import PeerGate
from specdec.serving.reloaded import Reloaded
from specdec.serving.secrets import digest, read_secrets
from specdec.serving.server_certificates import load_certificates
from specdec.serving.server_security import ServerSecurity
from specdec.settings import ModelServiceSettings, ServiceSettings


def basic_security(settings: ServiceSettings, authorities: Path | None) -> ServerSecurity:
    """Certificates, reflection and the port for health, without a gate.

    Args:
        settings: of a service.
        authorities: certificates of whose clients are served; None: nobody is asked for one.

    Raises:
        SecurityError: a file cannot be read, or the files do not fit together.
    """
    certificates = None
    if settings.tls_cert is not None:
        certificates = load_certificates(CertificateFiles(settings.tls_cert, settings.tls_key, authorities))
    return ServerSecurity(
        certificates=certificates,
        has_reflection=settings.reflection,
        health_port=settings.health_port,
        allows_insecure_bind=settings.insecure_bind,
    )


def service_security(settings: ModelServiceSettings) -> ServerSecurity:
    """Of a draft or target service: only orchestrators may call, as far as the settings say how to know them.

    Raises:
        SecurityError: a file cannot be read, or the files do not fit together.
    """
    basic = basic_security(settings, settings.tls_ca)
    path = settings.shared_secret_file
    if path is None and not settings.allowed_peers:
        return basic
    names = [name.strip() for name in settings.allowed_peers.split(",") if name.strip()]
    if path is None:
        return replace(basic, gates=(PeerGate(None, names),))
    digests = Reloaded("the shared secret", lambda: read_secrets(path), lambda secrets: [*map(digest, secrets)])
    return replace(basic, gates=(PeerGate(lambda: digests.value, names),), secrets=(digests,))
