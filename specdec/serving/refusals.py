"""Turns what a handler raises into the status of its call."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from specdec.errors import InvalidArgumentError, Refusal

logger = logging.getLogger(__name__)

INTERNAL_MESSAGE = "internal error; the log of the service has the details"
STATUS_DETAILS_KEY = "grpc-status-details-bin"
"""Trailing metadata that holds the google.rpc.Status of a refused call, if it says more than code and sentence."""

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class RefusalInterceptor(grpc.aio.ServerInterceptor):
    """A `Refusal` becomes its status code and sentence, any other exception INTERNAL without detail (the log has it).

    Works for all four shapes of call, and for handlers that yield as well as for those that write. Bytes that are no
    message of the method become INVALID_ARGUMENT. A handler that yields is closed within its call, so its `finally`
    runs at once when the client goes away.
    """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        return None if handler is None else _guarded(handler, handler_call_details.method)


def _guarded(handler: Handler, method: str) -> Handler:
    parse = _refusing_parser(handler.request_deserializer)
    # A stream is parsed where the handler reads, so what parsing raises passes through here. A single message would be
    # parsed before the handler is called, out of reach, so gRPC is told to hand over the bytes.
    deserializer, first = (parse, _as_it_is) if handler.request_streaming else (_as_it_is, parse)
    if handler.response_streaming:
        behaviour = _streaming(handler.stream_stream or handler.unary_stream, first, method)
        make = (
            grpc.stream_stream_rpc_method_handler if handler.request_streaming else grpc.unary_stream_rpc_method_handler
        )
    else:
        behaviour = _unary(handler.stream_unary or handler.unary_unary, first, method)
        make = (
            grpc.stream_unary_rpc_method_handler if handler.request_streaming else grpc.unary_unary_rpc_method_handler
        )
    return make(behaviour, request_deserializer=deserializer, response_serializer=handler.response_serializer)


def _unary(behaviour: Any, first: Callable[[Any], Any], method: str) -> Any:
    async def answer(request: Any, context: Context) -> Any:
        try:
            return await behaviour(first(request), context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001
            await _abort(context, method, error)

    return answer


def _streaming(behaviour: Any, first: Callable[[Any], Any], method: str) -> Any:
    async def answer(request: Any, context: Context) -> None:
        try:
            if inspect.isasyncgenfunction(behaviour):
                async with aclosing(behaviour(first(request), context)) as responses:
                    async for response in responses:
                        await _tell(context.write(response))
            else:
                await behaviour(first(request), context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001
            await _abort(context, method, error)

    return answer


async def _abort(context: Context, method: str, error: Exception) -> None:
    """Never returns: ends the call with the status of `error`."""
    if isinstance(error, Refusal) and error.code is not grpc.StatusCode.INTERNAL:
        await _tell(context.abort(error.code, str(error), _details(error)))
    logger.error("%s failed", method, exc_info=error)
    await _tell(context.abort(grpc.StatusCode.INTERNAL, INTERNAL_MESSAGE))


def _details(refusal: Refusal) -> tuple[tuple[str, bytes], ...]:
    """Trailing metadata for clients that read the richer error model of gRPC."""
    if refusal.retry_seconds is None:
        return ()
    return ((STATUS_DETAILS_KEY, refusal.to_status().SerializeToString()),)


async def _tell(sending: Awaitable[None]) -> None:
    """Send something: if the client has just left, the call is cancelled, and nothing has failed."""
    try:
        await sending
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None


def _refusing_parser(parse: Callable[[bytes], Any] | None) -> Callable[[bytes], Any]:
    if parse is None:
        return _as_it_is

    def refusing(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError:
            raise InvalidArgumentError("the bytes sent are no message of this method") from None

    return refusing


def _as_it_is(request: Any) -> Any:
    return request
