"""The gate of the orchestrator: clients show a token, which has limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from specdec.errors import UnauthenticatedError
from specdec.serving.gate import Gate, Metadata
from specdec.serving.secrets import matching, presented_secret
from specdec.serving.surrounding import Context, Notice, Surround
from specdec.serving.token_file import TokenEntry
from specdec.serving.token_limits import Quota, Usage

REFUSED = "a good token is needed, as metadata 'authorization: Bearer TOKEN'"


class MeteredUsage(Usage, Protocol):
    """A usage that learns from responses."""

    def notice(self, response: Any) -> None:
        """A response is about to be sent."""
        ...

    def abandon(self) -> None:
        """The call ended before its end: it was cancelled, or ran out of time."""
        ...


class TokenGate(Gate[TokenEntry]):
    """Lets in who has a token of the file, within its limits.

    Args:
        entries: gives the entries of the file as it is now. A token that is gone is refused at once; what its holder
            runs already goes on.
        meter: makes the usage of a request; gets None of a call whose requests come as a stream.
        bind: is called with the request, the entry of its token and all entries, before it is admitted; may change the
            request, or raise a refusal.
        clock: seconds, for tests.
    """

    def __init__(
        self,
        entries: Callable[[], Sequence[TokenEntry]],
        meter: Callable[[Any], MeteredUsage],
        bind: Callable[[Any, TokenEntry, Sequence[TokenEntry]], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._entries = entries
        self._meter = meter
        self._bind = bind
        self._clock = clock
        self._quotas: dict[str, Quota] = {}

    def identify(self, metadata: Metadata) -> TokenEntry:
        """See `Gate`."""
        presented = presented_secret(metadata)
        if presented is None:
            raise UnauthenticatedError(REFUSED)
        entries = self._entries()
        index = matching(presented, [entry.digest for entry in entries])
        if index is None:
            raise UnauthenticatedError(REFUSED)
        return entries[index]

    def admission(self, caller: TokenEntry) -> Surround:
        """See `Gate`."""

        @contextmanager
        def surround(request: Any, context: Context) -> Iterator[Notice]:
            if self._bind is not None:
                self._bind(request, caller, self._entries())
            usage = self._meter(request)
            with self._quota(caller).admitted(usage):
                try:
                    yield usage.notice
                except Exception:
                    raise
                except BaseException:
                    # A call that ends from outside: what it has taken may be more than what it has answered.
                    usage.abandon()
                    raise

        return surround

    def _quota(self, entry: TokenEntry) -> Quota:
        quota = self._quotas.get(entry.name)
        if quota is None:
            self._forget_the_gone()
            quota = self._quotas[entry.name] = Quota(entry.limits, self._clock)
        quota.change(entry.limits)
        return quota

    def _forget_the_gone(self) -> None:
        names = {entry.name for entry in self._entries()}
        for name in [name for name, quota in self._quotas.items() if name not in names and not quota.num_running]:
            del self._quotas[name]
