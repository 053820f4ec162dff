"""A handler with something around each of its calls."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, aclosing
from typing import Any, TypeAlias

import grpc

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Notice: TypeAlias = Callable[[Any], None]
"""Is told each response before it is sent."""
Surround: TypeAlias = Callable[[Any, Context], AbstractContextManager[Notice]]
"""Is called with the request (None: there is a stream of them) and the context, and surrounds the call. What it raises
becomes the status of the call."""


def surrounded(handler: Handler, surround: Surround) -> Handler:
    """The same method, with `surround` around each call. Responses that a handler writes by itself are not noticed."""
    if handler.response_streaming:
        behaviour = handler.stream_stream or handler.unary_stream
        wrap = _yielding if inspect.isasyncgenfunction(behaviour) else _answering
        make = (
            grpc.stream_stream_rpc_method_handler if handler.request_streaming else grpc.unary_stream_rpc_method_handler
        )
    else:
        behaviour = handler.stream_unary or handler.unary_unary
        wrap = _answering
        make = (
            grpc.stream_unary_rpc_method_handler if handler.request_streaming else grpc.unary_unary_rpc_method_handler
        )
    return make(
        wrap(behaviour, surround, handler.request_streaming),
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


def _answering(behaviour: Any, surround: Surround, is_stream: bool) -> Any:
    async def answer(request: Any, context: Context) -> Any:
        with surround(None if is_stream else request, context) as notice:
            response = await behaviour(request, context)
            if response is not None:
                notice(response)
            return response

    return answer


def _yielding(behaviour: Any, surround: Surround, is_stream: bool) -> Any:
    async def answer(request: Any, context: Context) -> AsyncIterator[Any]:
        with surround(None if is_stream else request, context) as notice:
            async with aclosing(behaviour(request, context)) as responses:
                async for response in responses:
                    notice(response)
                    yield response

    return answer
