"""`python -m specdec.serving.probe NAME`: whether the service of this container is alive, for HEALTHCHECK of its image.

Kubernetes asks by itself, through the probes of the pod.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specdec.serving.binding import joined
from specdec.serving.health import LIVENESS_NAME
from specdec.settings import DEFAULT_DRAFT_PORT, DEFAULT_ORCHESTRATOR_PORT, DEFAULT_TARGET_PORT

_PORTS = {"draft": DEFAULT_DRAFT_PORT, "target": DEFAULT_TARGET_PORT, "orchestrator": DEFAULT_ORCHESTRATOR_PORT}
_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
_TIMEOUT_SECONDS = 3.0


def probe_address(name: str, environment: Mapping[str, str]) -> str:
    """Where the service answers health checks in plaintext, as its environment variables say; flags are not seen.

    Args:
        name: "draft", "target" or "orchestrator".
        environment: variables of the container.

    Raises:
        ValueError: it has no such port.
    """
    prefix = f"SPECDEC_{name.upper()}_"
    port = environment.get(f"{prefix}HEALTH_PORT")
    if not port:
        if environment.get(f"{prefix}TLS_CERT"):
            raise ValueError(f"with TLS, checks without a certificate need {prefix}HEALTH_PORT")
        port = environment.get(f"{prefix}PORT") or str(_PORTS[name])
    host = environment.get(f"{prefix}HOST") or "127.0.0.1"
    return joined(_EVERY_ADDRESS.get(host, host), int(port))


def is_alive(address: str) -> bool:
    """Whether whatever listens there says that it is alive, within some seconds."""
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        request = health_pb2.HealthCheckRequest(service=LIVENESS_NAME)
        try:
            response = health_pb2_grpc.HealthStub(channel).Check(request, timeout=_TIMEOUT_SECONDS)
        except grpc.RpcError:
            return False
    return bool(response.status == health_pb2.HealthCheckResponse.SERVING)


def main(arguments: list[str], environment: Mapping[str, str]) -> int:
    """Exit status: 0 if it is alive, else 1, with a sentence on standard error."""
    try:
        address = probe_address(arguments[0], environment)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if is_alive(address):
        return 0
    sys.stderr.write(f"{address} does not say that it is alive\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
