"""Stands in for a service of the project: health, a generation service, log lines, and an orderly end.

    python fake_service.py --port=N [other flags, which it prints]

The environment variable FAKE_<NAME> of the service (its package's name, or "SERVICE") may hold words: "fail" ends it at
once with status 3, "starting" never becomes SERVING, "deaf" ignores SIGTERM.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from specdec.v1 import generation_pb2_grpc
from tests.specdec.fake_generation import FakeGeneration


async def main() -> None:
    name = Path(__file__).parent.name.partition("_")[0]
    mode = os.environ.get(f"FAKE_{name.upper()}", "")
    print(f"flags: {' '.join(sys.argv[1:])}")
    if "fail" in mode:
        print("cannot load the model")
        raise SystemExit(3)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, (lambda: None) if "deaf" in mode else stop.set)
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(FakeGeneration(), server)
    serving = (
        health_pb2.HealthCheckResponse.NOT_SERVING if "starting" in mode else health_pb2.HealthCheckResponse.SERVING
    )
    await servicer.set("", serving)
    port = next(flag.partition("=")[2] for flag in sys.argv if flag.startswith("--port="))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    print(f"listening on {port}")
    await stop.wait()
    await server.stop(0.1)
    print(f"{name} drained at {loop.time():.3f}")


if __name__ == "__main__":
    asyncio.run(main())
