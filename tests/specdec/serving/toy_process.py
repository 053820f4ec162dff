"""The toy service as a real process, with the lines it logs and the streams it sends."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from specdec.v1 import generation_pb2

TOY_SECONDS = 20.0
"""Longest wait for anything the process should do."""


@dataclass
class ToyProcess:
    """A running process; `lines` grows as it logs."""

    process: asyncio.subprocess.Process
    reader: asyncio.Task[None]
    lines: list[str]

    async def wait_for_line(self, pattern: str) -> re.Match[str]:
        """The first line that matches; fails if there is none in time or the process ends without it."""
        deadline = asyncio.get_running_loop().time() + TOY_SECONDS
        while True:
            for line in self.lines:
                if found := re.search(pattern, line):
                    return found
            ended = self.process.returncode is not None
            assert not ended, f"ended with {self.process.returncode}: {self.lines}"
            assert asyncio.get_running_loop().time() < deadline, f"no line {pattern!r}: {self.lines}"
            await asyncio.sleep(0.02)

    async def address(self) -> str:
        """Where it listens."""
        return (await self.wait_for_line(r"listening on ([\d.:]+)")).group(1)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def status(self) -> int:
        """Exit status, once it has ended and all its lines are here; negative: killed by that signal."""
        await asyncio.wait_for(self.reader, TOY_SECONDS)
        return await asyncio.wait_for(self.process.wait(), TOY_SECONDS)


@asynccontextmanager
async def toy_process(
    *arguments: str, module: str = "tests.specdec.serving.toy_service", variables: Mapping[str, str] | None = None
) -> AsyncIterator[ToyProcess]:
    """Run `python -m module`; kill it at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-W", "error"),
        "-m",
        module,
        *arguments,
        env={**os.environ, **(variables or {})},
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    lines: list[str] = []
    reader = asyncio.create_task(_read_lines(process.stderr, lines))
    try:
        yield ToyProcess(process, reader, lines)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reader


async def rest_of(call: Any) -> list[generation_pb2.GenerateResponse]:
    """What is left of a stream, read to its end."""
    events = []
    while (event := await call.read()) is not grpc.aio.EOF:
        events.append(event)
    return events


async def _read_lines(stream: asyncio.StreamReader, lines: list[str]) -> None:
    async for line in stream:
        # One by one: the test waits for them.
        lines.append(line.decode().rstrip("\n"))  # noqa: PERF401
