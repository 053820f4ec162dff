"""What the orchestrator's settings say about certificates, tokens and secrets, made ready for both of its sides."""

from __future__ import annotations

import logging
from dataclasses import replace

from orchestrator.settings import OrchestratorSettings
from orchestrator.token_tenant import bind_tenant
from orchestrator.token_use import TokenUse
from specdec.serving.binding import is_loopback_target
from specdec.serving.certificates import CertificateFiles
from specdec.serving.channel_security import ChannelSecurity
from specdec.serving.reloaded import Reloaded
from specdec.serving.secrets import read_secrets
from specdec.serving.server_security import ServerSecurity
from specdec.serving.service_security import basic_security
from specdec.serving.token_file import parse_token_file, read_token_file
from specdec.serving.token_gate import TokenGate

_log = logging.getLogger(__name__)


def front_security(settings: OrchestratorSettings) -> ServerSecurity:
    """Towards clients.

    Raises:
        SecurityError: a file cannot be read or holds something else, of either side.
    """
    for link, addresses in (
        (target_security(settings), settings.target),
        (draft_security(settings), settings.draft),
    ):
        _warn_of_plaintext(link, addresses)
        if link is not None:
            # Each link reads them again when it connects; but what is wrong now is better told now.
            link.credentials()
            for address in _split(addresses):
                link.metadata(address)
    basic = basic_security(settings, settings.client_ca)
    path = settings.token_file
    if path is None:
        return basic
    entries = Reloaded("the token file", lambda: read_token_file(path), lambda text: parse_token_file(text, path))
    gate = TokenGate(
        lambda: entries.value, lambda request: TokenUse(request, settings.max_new_tokens), bind=bind_tenant
    )
    return replace(basic, gates=(gate,), secrets=(entries,))


def target_security(settings: OrchestratorSettings) -> ChannelSecurity | None:
    """Towards target services; None: plaintext, and they are not told who calls."""
    return _link_security(settings, settings.target, settings.target_tls_name)


def draft_security(settings: OrchestratorSettings) -> ChannelSecurity | None:
    """Towards draft services; as `target_security`."""
    return _link_security(settings, settings.draft, settings.draft_tls_name)


def _link_security(settings: OrchestratorSettings, addresses: str, tls_name: str) -> ChannelSecurity | None:
    secret_file = settings.shared_secret_file
    if settings.tls_ca is None and secret_file is None:
        return None
    return ChannelSecurity(
        files=(
            None
            if settings.tls_ca is None
            else CertificateFiles(settings.tls_cert, settings.tls_key, authorities=settings.tls_ca)
        ),
        secret=None if secret_file is None else lambda: read_secrets(secret_file)[0],
        server_name=tls_name or _name_in(addresses),
        allows_plain_secret=settings.insecure_secret,
    )


def _warn_of_plaintext(link: ChannelSecurity | None, addresses: str) -> None:
    elsewhere = [address for address in _split(addresses) if not is_loopback_target(address)]
    if elsewhere and (link is None or link.files is None):
        _log.warning("what goes to %s is not encrypted, prompts included; set --tls-ca", ", ".join(elsewhere))


def _name_in(addresses: str) -> str:
    """The name that replicas are found by, since each is called by its number then; empty: there is none, or many."""
    names = {
        address.rpartition("/")[2].removeprefix("dns:").rpartition(":")[0] if address.startswith("dns:") else ""
        for address in _split(addresses)
    }
    return names.pop() if len(names) == 1 else ""


def _split(addresses: str) -> list[str]:
    return [address.strip() for address in addresses.split(",") if address.strip()]
