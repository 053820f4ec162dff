"""The library that the services of specdec stand on: protocol, models, runner, sampling, serving, telemetry."""

PROTOCOL_VERSION = 1
"""Version of protos/specdec/v1 spoken by this code; peers with another one are refused in the handshake."""
