"""The two ends of every gRPC connection of the project. Their options belong together, so they are set in one place.

A server closes a connection that pings more often than it allows (too_many_pings), so both ends take their numbers from
here. A peer that is frozen or cut off answers no ping: the connection fails after `time_seconds + timeout_seconds`.
"""

from dataclasses import dataclass

import grpc

from specdec.serving.channel_security import ChannelSecurity
from specdec.serving.metadata_channel import MetadataChannel

MIN_KEEPALIVE_SECONDS = 0.5
"""No end pings more often. Servers allow twice that, because pings may arrive closer together than they were sent."""
MIN_RECONNECT_SECONDS = 0.1
MAX_RECONNECT_SECONDS = 2.0
CONNECT_TIMEOUT_SECONDS = 3.0
HANDSHAKE_TIMEOUT_SECONDS = 10.0
"""How long a server leaves open a connection whose other end does not get on with TLS or HTTP/2."""

Options = list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Keepalive:
    """How a silent peer is told from a dead one.

    Raises:
        ValueError: a time or timeout is too short.
    """

    time_seconds: float = 5.0
    timeout_seconds: float = 5.0

    def __post_init__(self) -> None:
        if self.time_seconds < MIN_KEEPALIVE_SECONDS or self.timeout_seconds <= 0:
            raise ValueError(f"time_seconds must be at least {MIN_KEEPALIVE_SECONDS:g}, timeout_seconds above 0")

    def options(self) -> Options:
        # Without ping_timeout_ms the core waits a minute for the answer to a ping, whatever keepalive_timeout_ms says.
        return [
            ("grpc.keepalive_time_ms", round(self.time_seconds * 1000)),
            ("grpc.keepalive_timeout_ms", round(self.timeout_seconds * 1000)),
            ("grpc.http2.ping_timeout_ms", round(self.timeout_seconds * 1000)),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
        ]


DEFAULT_KEEPALIVE = Keepalive()


def server_options(max_message_bytes: int, keepalive: Keepalive = DEFAULT_KEEPALIVE) -> Options:
    """Options of a server that `open_channel` connects to. A port in use is an error and never shared."""
    return [
        *_message_options(max_message_bytes),
        *keepalive.options(),
        ("grpc.http2.min_ping_interval_without_data_ms", round(MIN_KEEPALIVE_SECONDS * 500)),
        ("grpc.so_reuseport", 0),
        ("grpc.server_handshake_timeout_ms", round(HANDSHAKE_TIMEOUT_SECONDS * 1000)),
    ]


def open_channel(
    address: str,
    *,
    max_message_bytes: int,
    keepalive: Keepalive = DEFAULT_KEEPALIVE,
    security: ChannelSecurity | None = None,
) -> grpc.aio.Channel:
    """A channel; connects when first used and reconnects by itself. Call inside the event loop that uses it.

    Args:
        address: host:port, or another gRPC target.
        max_message_bytes: largest message, either way; a larger one fails its call with RESOURCE_EXHAUSTED.
        keepalive: when a silent server is given up.
        security: certificates and secrets, whose files are read now; None: plaintext, and nobody is told who calls.

    Raises:
        SecurityError: a certificate or secret cannot be read, or would not be safe on its way.
    """
    security = security or ChannelSecurity()
    credentials, metadata = security.credentials(), security.metadata(address)
    options = [
        *_message_options(max_message_bytes),
        *keepalive.options(),
        ("grpc.initial_reconnect_backoff_ms", round(MIN_RECONNECT_SECONDS * 1000)),
        ("grpc.max_reconnect_backoff_ms", round(MAX_RECONNECT_SECONDS * 1000)),
        # Despite its name this is how long one attempt to connect may take.
        ("grpc.min_reconnect_backoff_ms", round(CONNECT_TIMEOUT_SECONDS * 1000)),
        *security.options(),
    ]
    if credentials is None:
        channel = grpc.aio.insecure_channel(address, options=options)
    else:
        channel = grpc.aio.secure_channel(address, credentials, options=options)
    return MetadataChannel(channel, metadata) if metadata else channel


def _message_options(max_message_bytes: int) -> Options:
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
    ]
