"""How a server keeps what it says private, and whom it serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from specdec.serving.binding import is_loopback
from specdec.serving.certificates import Certificates
from specdec.serving.gate import Gate
from specdec.serving.reloaded import Reloadable, Reloaded
from specdec.serving.security_error import SecurityError
from specdec.serving.server_certificates import server_credentials


@dataclass(frozen=True, slots=True)
class ServerSecurity:
    """What a server does beyond plaintext for everybody.

    Args:
        certificates: the server's own, and the authorities of clients if these must show one; None: plaintext.
        gates: who is served; each must let a call pass.
        secrets: what else is read again when its file changes.
        has_reflection: whether callers may ask for the protos; the gates hold for that too.
        health_port: a further port, in plaintext, that answers health checks and nothing else, for probes that have no
            certificate; 0 takes a free one, None: there is none.
        allows_insecure_bind: whether other machines may reach a server without encryption, or one that serves anybody.
    """

    certificates: Reloaded[Certificates, Certificates] | None = None
    gates: Sequence[Gate[Any]] = ()
    secrets: Sequence[Reloadable] = ()
    has_reflection: bool = False
    health_port: int | None = None
    allows_insecure_bind: bool = False

    @property
    def credentials(self) -> grpc.ServerCredentials | None:
        """What the port is opened with; None: plaintext."""
        return None if self.certificates is None else server_credentials(self.certificates)

    @property
    def reloadables(self) -> tuple[Reloadable, ...]:
        """All that is read again when its files change."""
        return (*self.secrets, *(() if self.certificates is None else (self.certificates,)))

    def missing(self, host: str) -> str:
        """What a server at this host lacks, for people; empty: nothing, or only this machine reaches it."""
        if is_loopback(host):
            return ""
        knows_callers = bool(self.gates) or (
            self.certificates is not None and self.certificates.value.authorities is not None
        )
        lacking = [
            name
            for name, is_there in (("encryption", self.certificates is not None), ("authentication", knows_callers))
            if not is_there
        ]
        return ", ".join(f"no {name}" for name in lacking)

    def check_exposure(self, host: str) -> None:
        """Refuse to be reached by other machines without encryption and authentication, unless that is wanted.

        Raises:
            SecurityError: something is missing.
        """
        missing = self.missing(host)
        if missing and not self.allows_insecure_bind:
            raise SecurityError(
                f"others can reach {host} and there is {missing.replace(', ', ' and ')}; set up TLS and who may call, "
                "listen on 127.0.0.1, or say --insecure-bind"
            )


PLAINTEXT = ServerSecurity()
