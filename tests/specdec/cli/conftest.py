import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from specdec.v1 import generation_pb2_grpc
from tests.specdec.cli import fake_service
from tests.specdec.fake_generation import FakeGeneration

ROOT = Path(__file__).parents[3]


@pytest.fixture
def fake_services(tmp_path: Path) -> Path:
    """A working directory in which `python -m target_service` and its sisters are stand-ins."""
    for package in ("target_service", "draft_service", "orchestrator"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
        shutil.copy(fake_service.__file__, tmp_path / package / "__main__.py")
    return tmp_path


@dataclass
class Ended:
    status: int
    out: str
    err: str


class Cli:
    """Runs `specdec ARGS` as a process of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SPECDEC_")},
            "PYTHONPATH": str(ROOT),
        }

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "specdec.cli.main",
            *arguments,
            cwd=self._directory,
            env=self.environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def end(self, process: asyncio.subprocess.Process, *, stdin: bytes = b"") -> Ended:
        try:
            out, err = await asyncio.wait_for(process.communicate(stdin), 60)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode is not None
        return Ended(process.returncode, out.decode(), err.decode())

    async def run(self, *arguments: str, stdin: bytes = b"") -> Ended:
        return await self.end(await self.start(*arguments), stdin=stdin)


@pytest.fixture
def cli(fake_services: Path) -> Cli:
    return Cli(fake_services)


@dataclass
class Server:
    address: str
    generation: FakeGeneration


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """A generation service that is ready, in this process."""
    grpc_server = grpc.aio.server()
    generation = FakeGeneration()
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(generation, grpc_server)
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, grpc_server)
    await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    port = grpc_server.add_insecure_port("127.0.0.1:0")
    await grpc_server.start()
    yield Server(f"127.0.0.1:{port}", generation)
    await grpc_server.stop(None)


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    async def wait_until(condition: Callable[[], bool]) -> None:
        for _ in range(400):
            if condition():
                return
            await asyncio.sleep(0.025)
        raise AssertionError("did not come true within ten seconds")

    return wait_until
