"""What stands before all methods of a server and lets in only those who may."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NoReturn, TypeVar

import grpc
from grpc_health.v1 import health

from specdec.errors import Refusal
from specdec.serving.refused_callers import RefusedCallers
from specdec.serving.surrounding import Context, Handler, Surround, surrounded

Caller = TypeVar("Caller")
Metadata = Sequence[tuple[str, "str | bytes"]]

OPEN_METHODS = frozenset(f"/{health.SERVICE_NAME}/{method}" for method in ("Check", "Watch"))
"""Probes have no identity, and learn only whether the service is well."""


class Gate(grpc.aio.ServerInterceptor, Generic[Caller]):
    """An interceptor that asks who calls before any method runs; health is open to all.

    It stands behind the interceptor that turns refusals into statuses.
    """

    def __init__(self) -> None:
        self.refused = RefusedCallers()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        if handler_call_details.method in OPEN_METHODS:
            return await continuation(handler_call_details)
        try:
            caller = self.identify(handler_call_details.invocation_metadata)
        except Refusal as refusal:
            # Not even told whether there is such a method; and nothing that was sent is waited for.
            return self._refusing(refusal)
        handler = await continuation(handler_call_details)
        return None if handler is None else surrounded(handler, self.admission(caller))

    @abstractmethod
    def identify(self, metadata: Metadata) -> Caller:
        """Who calls, by the metadata.

        Raises:
            UnauthenticatedError: nobody that is known. The message does not say what was wrong.
        """

    @abstractmethod
    def admission(self, caller: Caller) -> Surround:
        """What surrounds a call of the caller; may raise refusals when entered."""

    def _refusing(self, refusal: Refusal) -> Handler:
        async def refuse(request_iterator: object, context: Context) -> NoReturn:
            self.refused.note(context)
            raise refusal

        return grpc.stream_stream_rpc_method_handler(refuse)
