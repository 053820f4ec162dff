"""A channel whose calls all carry some metadata."""

from __future__ import annotations

from typing import Any

import grpc


class MetadataChannel(grpc.aio.Channel):
    """Adds metadata to each call of a channel, and is that channel otherwise.

    Interceptors would do this too. But a stream with an interceptor is a different one in grpc.aio: what is written
    goes through a queue and two more tasks a message, and a write that returned may never be sent.

    Args:
        channel: belongs to this one from now on.
        metadata: goes before the metadata of the call.
    """

    def __init__(self, channel: grpc.aio.Channel, metadata: tuple[tuple[str, str], ...]) -> None:
        self._channel = channel
        self._metadata = metadata

    async def __aenter__(self) -> MetadataChannel:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._channel.close()

    async def close(self, grace: float | None = None) -> None:
        """Close the channel."""
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """As of the channel."""
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """As of the channel."""
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """As of the channel."""
        await self._channel.channel_ready()

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        """A method, with the metadata."""
        return self._with_metadata(self._channel.unary_unary(*args, **kwargs))

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        """A method, with the metadata."""
        return self._with_metadata(self._channel.unary_stream(*args, **kwargs))

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        """A method, with the metadata."""
        return self._with_metadata(self._channel.stream_unary(*args, **kwargs))

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        """A method, with the metadata."""
        return self._with_metadata(self._channel.stream_stream(*args, **kwargs))

    def _with_metadata(self, method: Any) -> Any:
        def call(*args: Any, metadata: Any = None, **kwargs: Any) -> Any:
            return method(*args, metadata=(*self._metadata, *(metadata or ())), **kwargs)

        return call
