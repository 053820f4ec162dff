"""The gate of a draft or target service, which only orchestrators pass."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from specdec.errors import PermissionDeniedError, UnauthenticatedError
from specdec.serving.gate import Gate, Metadata
from specdec.serving.secrets import matching, presented_secret
from specdec.serving.surrounding import Context, Notice, Surround

REFUSED = "this service accepts no calls from here; the caller must show that it is an orchestrator"


class PeerGate(Gate[None]):
    """Lets in who has the shared secret and a certificate with one of the names, as far as these are asked for.

    The certificate's signature has been checked before, by TLS.

    Args:
        digests: gives the SHA-256 of each secret that is good; None: none is needed.
        allowed_peers: names of which the certificate must hold one; empty: none is needed.
    """

    def __init__(self, digests: Callable[[], Sequence[bytes]] | None, allowed_peers: Collection[str] = ()) -> None:
        super().__init__()
        self._digests = digests
        self._allowed_peers = frozenset(allowed_peers)

    def identify(self, metadata: Metadata) -> None:
        """See `Gate`."""
        if self._digests is None:
            return
        presented = presented_secret(metadata)
        if presented is None or matching(presented, self._digests()) is None:
            raise UnauthenticatedError(REFUSED)

    def admission(self, caller: None) -> Surround:
        """See `Gate`."""

        @contextmanager
        def surround(request: object, context: Context) -> Iterator[Notice]:
            if self._allowed_peers and self._allowed_peers.isdisjoint(certificate_names(context)):
                self.refused.note(context)
                raise PermissionDeniedError(REFUSED)
            yield _ignore

        return surround


def certificate_names(context: Context) -> frozenset[str]:
    """Whom the caller's certificate is for: its subject alternative names, or if it has none its common name."""
    properties: Any = context.auth_context()
    names = properties.get("x509_subject_alternative_name") or properties.get("x509_common_name") or ()
    return frozenset(name.decode(errors="replace") for name in names)


def _ignore(response: object) -> None:
    pass
